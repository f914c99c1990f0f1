"""When drafts are computed: only where more tokens per second are expected of it, and never beyond bounds."""

from math import inf

import pytest

from cobali_ray.core.goodput import MOST_ROWS, MOST_STREAMS, Speculation
from cobali_ray.core.request import Request
from cobali_ray.core.sequence import Sequence

REPEATS = b"the same words again and again, " * 3
NEW = bytes(range(1, 90))


def stream(slot_id=0, prompt=REPEATS, max_tokens=100):
    request = Request(request_id=str(slot_id), prompt=tuple(prompt), max_tokens=max_tokens)
    sequence = Sequence(request, arrived_s=0.0)
    sequence.slot_id = slot_id
    return sequence


def run(speculation, streams, ratio_of, n_ticks, *, right=1.0, plain_ratio=1.0):
    """Let ticks pass that take `ratio_of(tokens drafted)` times as long; return how many drafted what."""
    sizes = []
    for _ in range(n_ticks):
        drafts = speculation.choose(streams, plain_s=0.01, most_s=inf, room=100)
        for slot_id, draft in drafts.items():
            speculation.learn(slot_id, int(right * len(draft)))
        n = sum(map(len, drafts.values()))
        sizes.append(n)
        speculation.took(0.01 * plain_ratio * (ratio_of(n) if drafts else 1.0))
    return sizes


def test_drafts_that_are_right_are_as_long_as_pays_most():
    cheap = run(Speculation(), [stream()], lambda n: 1 + 0.05 * n, 300)
    assert max(set(cheap[200:]), key=cheap[200:].count) == 15
    steep = run(Speculation(), [stream()], lambda n: 1.2 if n <= 3 else 9.0, 300)
    assert max(set(steep[200:]), key=steep[200:].count) == 3


@pytest.mark.parametrize(
    ("ratio", "right"), [pytest.param(20.0, 1.0, id="too-dear"), pytest.param(2.0, 0.0, id="never-right")]
)
def test_drafts_that_do_not_pay_are_tried_now_and_then_only(ratio, right):
    speculation = Speculation()
    run(speculation, [stream()], lambda _: ratio, 300, right=right)
    later = run(speculation, [stream()], lambda _: ratio, 2560, right=right)
    assert 0 < sum(n > 0 for n in later) <= 20


@pytest.mark.parametrize("plain_ratio", [0.5, 2.0])
def test_what_is_said_of_ticks_without_drafts_may_be_wrong(plain_ratio):
    dear, cheap = Speculation(), Speculation()
    run(dear, [stream()], lambda _: 20.0, 300, plain_ratio=plain_ratio)
    assert sum(n > 0 for n in run(dear, [stream()], lambda _: 20.0, 1000, plain_ratio=plain_ratio)) < 20
    run(cheap, [stream()], lambda _: 1.2, 3000, plain_ratio=plain_ratio)
    assert sum(n > 0 for n in run(cheap, [stream()], lambda _: 1.2, 100, plain_ratio=plain_ratio)) > 80


def test_it_begins_again_when_drafts_pay_again():
    speculation = Speculation()
    run(speculation, [stream()], lambda _: 20.0, 300)
    later = run(speculation, [stream()], lambda _: 1.2, 20_000)
    assert sum(n > 0 for n in later[-100:]) > 80


def test_now_and_then_a_tick_has_none_so_that_its_time_is_known():
    sizes = run(Speculation(), [stream()], lambda _: 1.2, 320)
    assert 21 <= sizes.count(0) <= 36


@pytest.mark.parametrize(
    ("streams", "bounds"),
    [
        pytest.param([stream(i) for i in range(MOST_STREAMS + 1)], {}, id="many-streams"),
        pytest.param([], {}, id="nobody"),
        pytest.param([stream(prompt=NEW)], {}, id="nothing-comes-twice"),
        pytest.param([stream()], {"room": 0}, id="no-room"),
        pytest.param([stream()], {"most_s": 0.01}, id="no-time"),
        pytest.param([stream()], {"plain_s": 0.0}, id="nothing-known"),
        pytest.param([stream(max_tokens=1)], {}, id="the-last-token"),
    ],
)
def test_nothing_is_drafted_where_it_cannot_be(streams, bounds):
    speculation = Speculation()
    asked = {"plain_s": 0.01, "most_s": inf, "room": 100} | bounds
    for _ in range(300):
        assert not speculation.choose(streams, **asked)
        speculation.took(0.01)


def test_ticks_that_nobody_asked_about_teach_nothing():
    speculation = Speculation()
    run(speculation, [stream()], lambda _: 1.2, 100)
    assert speculation.took(5.0) == 0.0
    assert all(ratio < 10 for ratio, _ in speculation._ratios.values())


def test_drafts_keep_their_bounds():
    streams = [stream(i, max_tokens=4 + i) for i in range(MOST_STREAMS)]
    for room in (1, 2, 7, 100):
        speculation, n_drafts = Speculation(), 0
        for _ in range(200):
            drafts = speculation.choose(streams, plain_s=0.01, most_s=inf, room=room)
            n_drafted = sum(map(len, drafts.values()))
            assert n_drafted <= room
            assert n_drafted + len(streams) <= MOST_ROWS
            for slot_id, draft in drafts.items():
                assert len(draft) < streams[slot_id].request.max_tokens, "the token behind it counts"
                speculation.learn(slot_id, len(draft))
            speculation.took(0.011)
            n_drafts += len(drafts)
        assert n_drafts or room < MOST_STREAMS
