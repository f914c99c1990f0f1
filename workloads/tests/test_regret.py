"""The harness of regret: what devices' tables say, how batches are cut, who decides, and the command."""

import json
from statistics import geometric_mean

import pytest
from typer.testing import CliRunner

from cobali_ray.core.cache.slots import Slots
from cobali_ray.core.cost.ticktime import TickShape
from cobali_ray.core.plan.plan import Plan, Span
from cobali_ray.errors import ConfigError
from cobali_workloads.commands import app
from cobali_workloads.inside import regret
from cobali_workloads.inside.devices import DEVICES, N_SLOTS, RTX_4090, BatchPart, Device
from cobali_workloads.inside.regret import (
    CONTENDERS,
    LOADS,
    MAX_S,
    OURS,
    Machine,
    RegretLoad,
    figures_of,
    opening,
    play,
)
from cobali_workloads.simulate.fleet import SimulatedRequest

HALF_B = DEVICES["0.5b-q8_0"]


def rows(*ids):
    return [BatchPart(i, 128, 1, 1) for i in ids]


@pytest.mark.parametrize(
    ("batch", "measured_ms"),
    [
        pytest.param(rows(*range(7)), 134.5, id="dense"),
        pytest.param(rows(0, 2, 3, 5, 8, 9, 12), 259, id="gaps"),
        pytest.param(rows(0, 2, 4, 6, 8, 12, 14), 283, id="every-second"),
        pytest.param([*rows(*range(7)), BatchPart(7, 0, 128, 1)], 692, id="dense-and-a-chunk"),
        pytest.param(
            [*rows(0, 2, 3, 5, 8, 9), BatchPart(10, 0, 128, 1), *rows(12)], 785, id="gaps-and-a-chunk"
        ),
    ],
)
def test_a_split_cache_is_cut_at_gaps_and_takes_what_was_measured(batch, measured_ms):
    assert 1000 * HALF_B.seconds(batch) == pytest.approx(measured_ms, rel=0.1)


FLAT = Device(
    name="flat", source="made up", rows_ms={1: 1.0, 512: 512.0}, outputs_ms={1: 1.0, 16: 32.0}, read_ns=0.0,
    attend_ns=0.0, cut_ms=0.5,
)  # fmt: skip


def test_further_outputs_and_further_micro_batches_cost_extra():
    assert FLAT.seconds([BatchPart(0, 0, 16, 1)]) == pytest.approx(0.016)
    assert FLAT.seconds(rows(*range(16))) == pytest.approx(0.032), "16 more for 16 outputs"
    assert FLAT.seconds([*rows(0), BatchPart(3, 0, 600, 1)]) == pytest.approx(
        0.601 + 0.0005 + 2 / 15 * 0.016, rel=0.01
    )


def test_a_busy_machine_takes_twice_as_long():
    machine = Machine(FLAT, FLAT.limits, seed=1)
    machine.busy_s = (10.0, 20.0)
    slots, plan = Slots(FLAT.limits), Plan((), (), (Span(0, 0, 100, 1),), (), 100)

    def mean(now_s):
        shape = TickShape(0, 0, ((0, 100),))
        return sum(machine.seconds(plan, slots, shape, now_s) for _ in range(400)) / 400

    assert mean(9.9) == pytest.approx(0.1, rel=0.05)
    assert mean(10.0) == pytest.approx(0.2, rel=0.05)
    assert mean(20.0) == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_an_opening_measures_what_fits_into_its_time(device):
    measured = list(opening(device, device.limits))
    assert 0 < sum(seconds for _, seconds in measured) <= MAX_S
    shapes = [shape for shape, _ in measured]
    assert TickShape(1, 0, ()) in shapes
    assert len(set(shapes)) == len(shapes)
    if device is RTX_4090:
        assert TickShape(0, 0, ((0, 512),)) in shapes
        assert TickShape(16, 0, ()) in shapes


@pytest.fixture
def computed(monkeypatch):
    seen = []

    def batch_of(plan, slots):
        seen.append(real(plan, slots))
        return seen[-1]

    real = regret.batch_of
    monkeypatch.setattr(regret, "batch_of", batch_of)
    return seen


LOAD = RegretLoad(
    asks=[SimulatedRequest(f"{i}", 0.05 * i, bytes(200 + i), bytes(16)) for i in range(12)], warm=False
)


@pytest.mark.parametrize(
    ("name", "most", "mixes"),
    [
        ("prefill first", 528, False),
        ("decode first, 64", 80, True),
        ("decode first, 512", 528, True),
        ("llama-server", 2048, True),
    ],
)
def test_policies_do_what_they_are_called(name, most, mixes, computed):
    stories = play(RTX_4090, CONTENDERS[name], LOAD, rps=10.0)
    assert [len(story.tokens_s) for story in stories] == [16] * 12
    assert max(sum(part.length for part in batch) for batch in computed) <= most
    mixed = [batch for batch in computed if len({part.length > 1 for part in batch}) == 2]
    assert bool(mixed) == mixes


def test_bounded_gaps_are_those_of_the_devices_own_table(computed):
    load = LOADS["intruder"](RTX_4090, 10.0, 0)
    play(RTX_4090, CONTENDERS["gaps up to 4 decode ticks"], load, rps=10.0)
    most_s = 4 * RTX_4090.seconds(rows(*range(N_SLOTS)))
    beside = [b for b in computed if {part.length > 1 for part in b} == {False, True}]
    assert len(beside) > 10
    assert all(RTX_4090.seconds(batch) <= most_s or sum(p.length for p in batch) < 32 for batch in beside)


def test_what_is_played_depends_on_the_seed_alone():
    one, again, other = (
        figures_of(play(RTX_4090, CONTENDERS[OURS], LOAD, rps=10.0, seed=seed)) for seed in (0, 0, 1)
    )
    assert one == again != other


def test_the_command_says_how_far_from_the_best(tmp_path):
    words = ["regret", "--device", "0.5b-q8_0", "--load", "cold", "--rounds", "2"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "regret.json").read_text())
    policies, table, worst = report["tables"]
    assert [row[:2] for row in table["rows"]] == [["0.5b-q8_0", "cold"]] * 2
    gaps = {row[1]: float(row[4]) for row in policies["rows"]}
    assert list(gaps.values()) == sorted(gaps.values())
    assert set(gaps) == set(CONTENDERS)
    assert gaps["llama-server"] == 1
    mean = geometric_mean(
        cell["figures"][OURS]["itl_p99_s"] / cell["figures"]["llama-server"]["itl_p99_s"]
        for cell in report["samples"]["cells"]
    )
    assert gaps[OURS] == pytest.approx(mean, abs=0.01), "over both rounds"
    ratios = [float(row[3]) for row in worst["rows"]]
    assert ratios == sorted(ratios, reverse=True)
    assert "Measured: 0.5B shape" in (tmp_path / "regret.md").read_text(), "tables have sources"
    result = CliRunner().invoke(app, [*words, "--rounds", "1", "--json"], catch_exceptions=False)
    (told,) = json.loads(result.stdout)
    assert told["regret"] == report["samples"]["cells"][0]["regret"]
    assert set(told["figures"]) == set(CONTENDERS)
    assert min(told["regret"].values()) >= 1


@pytest.mark.parametrize("option", ["--device", "--load"])
def test_a_name_that_there_is_not_is_refused(option):
    with pytest.raises(ConfigError, match=f"{option}: must be all or some of"):
        CliRunner().invoke(app, ["regret", option, "nothing"], catch_exceptions=False)
