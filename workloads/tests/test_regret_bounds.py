"""What pacing holds on devices whose times it must learn: beside other policies, and after a disturbance."""

from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest

from cobali_workloads.inside.devices import DEVICES
from cobali_workloads.inside.regret import BUSY_S, CONTENDERS, LOADS, OURS, RECOVERY_S, cells, most_rps, play

MOST_BEHIND, MOST_WAIT, MOST_AFTER = 1.1, 2.0, 1.2
MORE = [
    ("0.5b-q8_0-flash", "intruder"),
    ("0.5b-q8_0-flash-6x", "intruder"), ("0.5b-q8_0-flash-6x", "poisson-0.9"),
    ("tiny", "cold"), ("0.5b-q8_0", "poisson-0.9"), ("0.5b-q8_0", "bursts"), ("0.5b-q4_0", "poisson-0.9"),
    ("1.5b-152k-vocab", "poisson-0.9"), ("rtx4090", "bursts"), ("m2-ultra", "cold"),
]  # fmt: skip
SOME = [("0.5b-q8_0", "cold"), ("0.5b-q8_0", "intruder")]
SOME += [pytest.param(*one, marks=pytest.mark.thorough) for one in MORE]


@cache
def played(device, load):
    return next(cells([DEVICES[device]], [load]))


@pytest.mark.parametrize(("device", "load"), SOME)
def test_no_policy_is_more_than_a_tenth_ahead_in_mean_e2e(device, load):
    cell = played(device, load)
    assert cell.regret("e2e_mean_s") <= MOST_BEHIND, cell.best("e2e_mean_s")


@pytest.mark.parametrize(("device", "load"), SOME)
def test_nobody_starves(device, load):
    figures = played(device, load).figures
    assert figures[OURS]["ttft_longest_s"] <= MOST_WAIT * figures["llama-server"]["ttft_longest_s"]


def test_who_holds_a_long_prompt_back_is_not_the_best():
    cell = played("0.5b-q8_0", "intruder")
    quickest = min(cell.figures, key=lambda name: cell.figures[name]["e2e_mean_s"])
    assert quickest not in cell.fair
    assert cell.best("e2e_mean_s") != quickest


@pytest.mark.parametrize(
    "name", ["0.5b-q8_0", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("tiny", "h100"))]
)
def test_five_seconds_after_a_disturbance_all_is_as_if_it_had_not_been(name):
    device = DEVICES[name]
    rps = most_rps(device)

    def late(busy):
        for seed in range(2):
            load = LOADS["half-machine"](device, rps, seed)
            for story in play(device, CONTENDERS[OURS], replace(load, busy=busy), rps, seed):
                if story.ask.at_s >= BUSY_S[1] + RECOVERY_S:
                    yield story

    disturbed, calm = list(late(busy=True)), list(late(busy=False))
    assert len(disturbed) == len(calm) >= 9
    for what, took_s in (
        ("mean TTFT", lambda story: story.tokens_s[0] - story.sent_s),
        ("mean E2E", lambda story: story.ended_s - story.sent_s),
    ):
        assert fmean(map(took_s, disturbed)) <= MOST_AFTER * fmean(map(took_s, calm)), what
