"""What is measured before the first request comes, on a scripted model and a clock of its own."""

import pytest

from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.core.cost.ticktime import TickShape
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.engine.calibration import ENOUGH, MAX_S, calibration, measured
from cobali_ray.settings import EngineSettings
from cobali_ray.testing import FakeClock

SETTINGS = EngineSettings(model="builtin:scripted", n_slots=16, n_ctx=8192)


class Machine(ScriptedBackend):
    """A pass takes `pass_s`, a fifth of it more for each row with logits and a tenth for each token."""

    def __init__(self, pass_s):
        self.clock, self.pass_s, self.n_passes = FakeClock(), pass_s, 0
        super().__init__(
            sleep=self.clock.advance, now=self.clock.now, n_slots=16, n_ctx_slot=8192, n_batch=528
        )

    def seconds(self, n_rows, n_tokens):
        return self.pass_s * (1 + 0.2 * n_rows + 0.1 * n_tokens)

    def forward(self, batch):
        self.n_passes += 1
        self._tick_s = self.seconds(len(batch.sampled_slots()), batch.n_tokens)
        super().forward(batch)


def shortest(times):
    return [(shape, min(taken)) for shape, taken in times]


@pytest.fixture
def limits():
    return SETTINGS.limits.on(16, 8192, n_cells=16 * 8192)


@pytest.mark.parametrize("pass_s", [0.0002, 0.02])
def test_after_it_a_pacer_knows_what_any_tick_takes(limits, pass_s):
    machine = Machine(pass_s)
    pacer = Pacer("auto", machine.grain)
    pacer.model.calibrate(shortest(measured(machine, limits, now=machine.clock.now)))
    assert pacer.model.knows_decode
    assert pacer.model.knows_prefill
    for n_decode, n_chunk in ((1, 0), (5, 0), (16, 0), (12, 40), (3, 200), (0, 100), (0, 500)):
        shape = TickShape(n_decode, 0, ((0, n_chunk),) if n_chunk else ())
        expected = machine.seconds(n_decode, n_decode + n_chunk)
        assert pacer.model.predict(shape) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("pass_s", [0.0002, 0.02, 0.5])
def test_it_takes_no_longer_than_it_may_and_leaves_nothing(limits, pass_s):
    machine = Machine(pass_s)
    began = machine.clock.now()
    found = measured(machine, limits, now=machine.clock.now)
    assert machine.clock.now() - began <= MAX_S + machine.seconds(1, 1)
    assert found[0][0] == TickShape(1, 0, ())
    machine.truncate(0, 0)
    with pytest.raises(Exception, match="1 of 0 tokens"):
        machine.truncate(0, 1)


def test_what_was_measured_is_kept_for_the_model_and_the_settings(limits, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"one")
    machine = Machine(0.001)

    def measured_again(settings=SETTINGS):
        before = machine.n_passes
        calibration(machine, limits, settings, path, tmp_path / "kept")
        return machine.n_passes > before

    while measured_again():
        pass
    first = calibration(machine, limits, SETTINGS, path, tmp_path / "kept")
    assert first == calibration(machine, limits, SETTINGS, path, tmp_path / "kept")
    assert measured_again(SETTINGS.replaced(n_threads=3))
    for wrong in ("[[1]]", "[]", "[[[1, 0, []], [0.0]]]", "[[[1, 0, []], [1e999]]]", "[[[1, 0, []], []]]"):
        for file in (tmp_path / "kept").iterdir():
            file.write_text(wrong)
        assert measured_again(), wrong


def test_a_start_on_a_busy_machine_is_put_right_by_the_next(limits):
    busy, calm = Machine(0.5), Machine(0.05)
    first = measured(busy, limits, now=busy.clock.now)
    assert not [shape for shape, _ in first if shape.chunks and shape.chunks[0][1] > 32], "no time for these"
    times = measured(calm, limits, first, calm.clock.now)
    assert dict(shortest(times))[TickShape(1, 0, ())] == pytest.approx(calm.seconds(1, 1))
    assert TickShape(0, 0, ((0, 128),)) in dict(times)
    last: object = None
    while times is not last:
        last, n_passes = times, calm.n_passes
        times = measured(calm, limits, times, calm.clock.now)
    assert calm.n_passes == n_passes, "what was measured often enough is believed"
    assert max(len(taken) for _, taken in times) == ENOUGH


def test_the_shortest_time_of_a_pass_counts(limits, tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"one")
    row = TickShape(1, 0, ())
    monkeypatch.setattr("cobali_ray.engine.calibration.measured", lambda *_: [(row, [0.3, 0.1, 0.2])])
    assert calibration(Machine(0.001), limits, SETTINGS, path, tmp_path / "kept") == [(row, 0.1)]
