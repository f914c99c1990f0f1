"""The device that benchmarks look at: what counts as computing, waiting and host work."""

import pytest

from cobali_ray.backend.scripted import ScriptedBackend
from cobali_workloads.inside.device import TimeSpan, WatchedBackend
from cobali_workloads.inside.overlap import OverlapRun, limits_for, middle, simulated, trace
from cobali_workloads.inside.runs import greedy_requests

TICK_S = 0.002
PROMPTS = [[65, 66, 67], [70, 71]]


def run(*, overlaps):
    backend = simulated(2, 64, overlaps=overlaps, tick_s=TICK_S)
    return trace(backend, limits_for(backend), greedy_requests(PROMPTS, max_tokens=12, ignore_eos=True))


@pytest.mark.parametrize("overlaps", [False, True], ids=["inline", "overlapped"])
def test_every_pass_takes_the_device_its_time(overlaps):
    found = run(overlaps=overlaps)
    # Overlap learns one tick late that a request is over; its length was known, so no pass is wasted.
    assert len(found.device) == len(found.waits) == 12
    assert all(end - start == pytest.approx(TICK_S) for start, end in found.device)
    assert found.n_output == 24
    assert found.wall_s >= 12 * TICK_S
    assert found.device_share == pytest.approx(12 * TICK_S / found.wall_s)


def test_a_watched_backend_answers_like_the_one_inside():
    inner = ScriptedBackend(n_slots=2, n_ctx_slot=64, n_batch=64)
    plain, again = (
        trace(WatchedBackend(inner, overlaps=overlaps), limits_for(WatchedBackend(inner, overlaps=False)),
              greedy_requests(PROMPTS, max_tokens=5, ignore_eos=True))
        for overlaps in (False, True)
    )  # fmt: skip
    assert plain.n_output == again.n_output == 10
    assert len(plain.device) == 5


HAND_MADE = OverlapRun(
    0.0,
    10.0,
    [TimeSpan(1, 3), TimeSpan(4, 6), TimeSpan(7, 9)],
    [TimeSpan(2, 3), TimeSpan(5, 6), TimeSpan(7.5, 9)],
    n_output=3,
)


def test_shares_and_host_time():
    assert HAND_MADE.wall_s == 10
    assert HAND_MADE.device_share == pytest.approx(0.6)
    assert HAND_MADE.idle_s == [1, 1]
    assert HAND_MADE.host_s == [2, 1.5]


@pytest.mark.parametrize(
    ("n_ticks", "device", "host"),
    [
        pytest.param(3, [(0, 2), (3, 2), (6, 2)], [(0, 1), (2, 2), (5, 1.5)], id="all"),
        pytest.param(1, [(0, 2)], [(0, 1)], id="the-middle-one"),
    ],
)
def test_the_host_works_whenever_it_does_not_wait(n_ticks, device, host):
    assert middle(HAND_MADE, n_ticks) == {"device": device, "host": host}
