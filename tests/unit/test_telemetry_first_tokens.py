"""TTFT is counted when the first token comes, once, whatever becomes of the request afterwards."""

from __future__ import annotations

import pytest
from test_feed import Setup


@pytest.fixture(params=[False, True], ids=["inline", "overlap"])
def overlaps(request):
    return request.param


def ttft(setup):
    return setup.collector.snapshot().histogram("engine_ttft_seconds")


def first_tokens(setup):
    """Return arrival to first token of every request that got one, as the feed tells it."""
    lives = setup.collector.seen(9999).lives()
    return [life.first_token_s - life.arrived_s for life in lives if life.first_token_s is not None]


def test_it_counts_long_before_the_answer_ends(overlaps):
    s = Setup(overlaps=overlaps, n_slots=1)
    s.submit("long", "a prompt of 21 tokens", max_tokens=40)
    s.submit("waits", "hello", max_tokens=2)
    s.tick()
    assert ttft(s).count == 0, "its prompt is not computed yet"
    for _ in range(3):
        s.tick()
    snapshot = s.collector.snapshot()
    assert sum(snapshot.counters["requests"].values()) == 0, "no request has ended"
    assert ttft(s).count == 1
    assert ttft(s).sum == pytest.approx(first_tokens(s)[0])
    s.run()
    assert ttft(s).count == 2, "not again at the end"


def test_each_request_with_a_first_token_counts_once(overlaps):
    s = Setup(overlaps=overlaps, n_slots=3, n_cells=64, n_ctx=60)
    for i in range(12):
        s.submit(f"r{i}", "a prompt of many tokens"[: 1 + 4 * (i % 5)], max_tokens=(1, 30, 35, 2)[i % 4])
    ticks = 0
    while s.engine.has_work:
        s.tick()
        ticks += 1
        if ticks == 3:
            s.engine.cancel("r1")  # runs
            s.engine.cancel("r11")  # waits
            s.submit("late", "hello", max_tokens=1)
    expected = first_tokens(s)
    assert s.collector.snapshot().totals["preemptions"] > 0
    assert ttft(s).count == len(expected) == 12, "one of thirteen left the queue before"
    assert ttft(s).sum == pytest.approx(sum(expected))


def test_an_answer_that_began_elsewhere_has_its_first_token_there(overlaps):
    s = Setup(overlaps=overlaps)
    s.submit("a~1", "hello", max_tokens=9, sent_tokens=(7, 8), attempt=1)
    s.run()
    assert s.collector.snapshot().counters["requests"]["length"] == 1
    assert ttft(s).count == 0
