"""The request table against the sequences it is derived from, and its batches against the objects' own."""

import shutil

import numpy as np
import pytest
from emulated_cuda import EmulatedKernels
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_properties import EngineMachine

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.backend.select import CudaSelector
from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.pace import Pacer
from cobali_ray.core.plan import plan_tick
from cobali_ray.core.request import Request, SamplingParams
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.record import shape_of
from cobali_ray.testing import FakeClock, Recorder


def columns(engine):
    """Return the table that the sequences give."""
    table = np.zeros((6, engine.limits.n_slots), np.int32)
    table[5] = range(engine.limits.n_slots)
    for s in engine.slots.running:
        pending = 0 if s.status.ended else s.n_pending
        table[:5, s.slot_id] = (1, s.decoding, pending, s.tokens[-1], s.n_computed)
    return table


def arrays(batch):
    return [array[: batch.n_tokens].tolist() for array in batch._arrays]


def walk(engine, going_on):
    """Plan and lay out by the objects alone."""
    plan = plan_tick(going_on, engine.limits)
    sequences = [engine.slots.by_slot[span.slot_id] for span in plan]
    batch = TickBatch(2 * engine.limits.token_budget)
    batch.fill(plan, [s.tokens for s in sequences])
    return batch, sequences


def check_table(engine):
    table = engine._layout.table
    assert table.requests.tolist() == columns(engine).tolist()
    assert table.prefilling == {s.slot_id for s in engine.slots.running if not s.decoding}


def check_layout(engine):
    """Compare what would be computed next; only between ticks."""
    now = engine._layout.now()
    batch, sequences = walk(engine, engine.slots.running)
    assert (arrays(now.batch), now.batch.spans) == (arrays(batch), batch.spans)
    assert now.sequences == sequences
    assert now.rows() == [s for s, span in zip(sequences, batch.spans, strict=True) if span.sample]
    if now.slots is not None:
        assert engine._layout.begin(now) == shape_of(batch.spans, sequences, engine.slots.running)


def check_ahead(engine):
    """Compare what was laid out ahead, while its decode tokens are unknown."""
    ahead = engine._layout._ahead
    going_on = [s for s in engine.slots.running if not s.status.ended]
    going_on = [s for s in going_on if s.n_output + s.n_in_flight < s.request.max_tokens]
    batch, sequences = walk(engine, going_on)
    if not batch.n_tokens or engine.slots.n_short(batch.n_tokens) > 0:
        assert ahead is None
        return
    assert arrays(ahead.batch)[1:] == arrays(batch)[1:]
    assert (ahead.batch.spans, ahead.sequences) == (batch.spans, sequences)


class TableMachine(EngineMachine):
    """Everything that can happen to an engine; the table is looked at between ticks and inside them."""

    def tick(self):
        wait = self.backend.wait

        def look_and_wait():
            wait()
            check_table(self.engine)
            if self.backend.overlaps:
                check_ahead(self.engine)

        # The engine waits after it has published and laid the next batch out.
        self.backend.wait = look_and_wait if self.backend.overlaps else wait
        super().tick()
        self.backend.wait = wait
        self.books_balance()

    def books_balance(self):
        if hasattr(self, "engine"):
            super().books_balance()
            check_table(self.engine)
            check_layout(self.engine)


TableMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestTable = TableMachine.TestCase


class Never(set):
    """A set that is never empty: it sends every tick down the path of the objects."""

    def __bool__(self):
        return True


class Noting(ScriptedBackend):
    """Keeps every batch it is given."""

    def __init__(self, **scripted):
        super().__init__(**scripted)
        self.batches = []

    def forward(self, batch):
        self.batches.append(arrays(batch))
        super().forward(batch)


def tick(engine):
    engine.tick()
    engine.slots.check()
    check_table(engine)


def run(seed, *, n_slots, overlaps, target_s, selector=None, by_objects=False):
    """Run seeded requests that arrive over time; return all batches and events."""
    rng = np.random.default_rng(seed)
    backend = Noting(
        n_slots=n_slots, n_ctx_slot=64, n_cells=64 + 12 * (n_slots - 1), n_batch=24, overlaps=overlaps,
        end_probability=0.02,
    )  # fmt: skip
    limits = EngineLimits(
        n_slots=n_slots, n_ctx_slot=64, n_cells=backend.n_cells, token_budget=24, prefill_chunk=8,
        prefill_order="shortest", min_prefix=2,
    )  # fmt: skip
    events = Recorder()
    engine = Engine(
        backend, limits, FakeClock(step_s=0.001), events, pacer=Pacer(target_s), selector=selector,
        entropy=lambda: 1,
    )  # fmt: skip
    if by_objects:
        engine._layout.table.prefilling = Never()
    for i in range(3 * n_slots):
        prompt = tuple(rng.integers(97, 123, rng.integers(1, 30)).tolist())
        sampling = SamplingParams(temperature=float(rng.integers(0, 2)), seed=i)
        engine.submit(
            Request(request_id=str(i), prompt=prompt, max_tokens=int(rng.integers(1, 30)), sampling=sampling)
        )
        for _ in range(rng.integers(0, 12)):
            tick(engine)
    while engine.has_work:
        tick(engine)
    return backend.batches, events.events


scenarios = {
    "seed": st.integers(0, 2**32 - 1),
    "n_slots": st.integers(1, 12),
    "overlaps": st.booleans(),
    "target_s": st.sampled_from([None, 0.004, "auto"]),
}


@settings(max_examples=40, deadline=None)
@given(**scenarios)
def test_every_batch_is_that_of_the_objects(**scenario):
    assert run(**scenario) == run(**scenario, by_objects=True)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ compiles the kernels for the CPU")
@pytest.mark.parametrize("n_slots", [1, 5])
@pytest.mark.parametrize("overlaps", [False, True], ids=["inline", "overlap"])
def test_the_kernels_choose_the_same_batches(tmp_path, n_slots, overlaps):
    scenario = {"seed": 7, "n_slots": n_slots, "overlaps": overlaps, "target_s": None}
    kernels = EmulatedKernels(tmp_path)
    kernels.n_threads = 32
    assert run(**scenario, selector=CudaSelector(kernels)) == run(**scenario)
