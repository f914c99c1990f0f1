"""How far requests are: what an engine says of prompts and places in the queue, and what waits it expects."""

from itertools import pairwise

import pytest
from test_engine import Setup

from cobali_ray.core.cost.ticktime import EnginePace
from cobali_ray.core.queue.forecast import MIN_ANSWERS, AnswerLengths, Stayer
from cobali_ray.core.request.events import Computing, Delta, End, RequestProgress, RequestStats
from cobali_ray.core.views.progress import PLACE_EVERY_S, PROMPT_EVERY_S


class Reporting(Setup):
    """An engine whose ticks take so long that each may report."""

    def __init__(self, *, tick_s=PROMPT_EVERY_S, **more):
        super().__init__(**more)
        self.tick_s = tick_s

    def tick(self):
        self.clock.advance(self.tick_s)
        return super().tick()

    def reports(self, request_id):
        return [e for e in self.events.events[request_id] if isinstance(e, RequestProgress)]


def test_a_prompt_is_reported_chunk_by_chunk_and_whole_before_its_first_token():
    s = Reporting(chunk=8)
    s.submit("a", "x" * 30, progress=True)
    s.run()
    reports = s.reports("a")
    assert [one.n_processed for one in reports] == [8, 16, 24, 30]
    assert {(one.n_prompt, one.n_cached, one.n_ahead, one.wait_s) for one in reports} == {(30, 0, None, None)}
    assert sorted(one.seconds for one in reports) == [one.seconds for one in reports]
    assert not s.engine._progress, "nobody is looked after any longer"
    kinds = [type(e) for e in s.events.events["a"] if not isinstance(e, Computing)]
    assert kinds.index(Delta) == len(reports), "all of it is told before the first token, and nothing after"


def test_what_the_cache_held_counts_as_processed():
    s = Reporting(chunk=8, min_prefix=4)
    s.submit("before", "x" * 20, max_tokens=1)
    s.run()
    s.submit("a", "x" * 20 + "y" * 12, progress=True)
    s.run()
    first, *_, last = s.reports("a")
    assert first.n_cached == 20
    assert first.n_processed == 28
    assert last.n_processed == last.n_prompt == 32


def test_reports_are_rare_where_ticks_are_short_but_the_last_one_always_comes():
    s = Reporting(chunk=8, tick_s=0.0)  # a tick takes some milliseconds by the clock's own steps
    s.submit("a", "x" * 60, progress=True, max_tokens=2)
    s.run()
    assert [one.n_processed for one in s.reports("a")] == [8, 60]


def test_nobody_else_is_told_anything():
    s = Reporting(n_slots=1)
    s.submit("a", "x" * 30, progress=True)
    s.submit("b", "x" * 30)
    s.run()
    assert s.reports("a")
    assert not s.reports("b")


def test_who_waits_hears_its_place_and_then_of_its_prompt():
    s = Reporting(n_slots=1, tick_s=PLACE_EVERY_S)
    for name in "abcd":
        s.submit(name, name * 9, max_tokens=3, progress=name == "d")
    s.run()
    places = [one.n_ahead for one in s.reports("d")]
    n_waits = places.index(None)
    assert places[:n_waits] == sorted(places[:n_waits], reverse=True)
    assert set(places[:n_waits]) == {2, 1, 0}
    assert set(places[n_waits:]) == {None}
    assert s.reports("d")[n_waits].n_processed, "the prompt is reported as soon as there is a slot"


def test_places_are_not_looked_at_in_every_tick_however_many_ask(monkeypatch):
    s = Reporting(n_slots=1, tick_s=PLACE_EVERY_S / 50)
    looked_s, places = [], s.engine._progress.places

    def watched(scheduler):
        looked_s.append(s.clock.now())
        return places(scheduler)

    monkeypatch.setattr(s.engine._progress, "places", watched)
    s.submit("runs", "x" * 9, max_tokens=55)
    for name in "abcd":
        s.submit(name, "y" * 9, progress=True)
        s.tick()
    del looked_s[:-1]  # who comes is told at once
    s.run()
    assert len(looked_s) > 1
    assert all(after - before > 0.9 * PLACE_EVERY_S for before, after in pairwise(looked_s))


def test_places_are_told_also_where_streams_take_the_whole_budget():
    s = Reporting(n_slots=1, budget=1, chunk=1, tick_s=PLACE_EVERY_S)
    s.submit("runs", "x" * 9, max_tokens=9)
    s.submit("waits", "y" * 9, progress=True)
    s.run()
    assert [s.end(name).finish_reason for name in ("runs", "waits")] == ["length", "length"]
    assert {one.n_ahead for one in s.reports("waits")} == {0, None}


def test_a_better_class_and_a_tenant_with_less_in_line_go_first():
    s = Reporting(n_slots=1)
    s.submit("runs", "x" * 9, max_tokens=50, tenant="t")
    s.tick()
    for i in range(4):
        s.submit(f"t{i}", "x" * 9, tenant="t")
    s.submit("u0", "x" * 9, tenant="u")
    s.submit("worse", "x" * 9, tenant="u", priority=1)
    s.submit("better", "x" * 9, tenant="u", priority=-1)
    ahead = {name: place.n_ahead for name, place in s.engine.places().items()}
    assert ahead["better"] == 0
    assert ahead["u0"] == 2, "the better one, and one of the other tenant"
    assert [ahead[f"t{i}"] for i in range(4)] == [2, 3, 4, 5], "u0 takes its turn among them"
    assert ahead["worse"] == 6


def test_an_end_ends_the_reports_whatever_it_is():
    s = Reporting(n_slots=1)
    s.submit("a", "x" * 30, progress=True)
    s.submit("b", "x" * 30, progress=True)
    s.tick()
    for name in "ab":
        s.engine.cancel(name)
    n_reports = {name: len(s.reports(name)) for name in "ab"}
    s.tick()
    s.tick()
    assert {name: len(s.reports(name)) for name in "ab"} == n_reports
    assert all(isinstance(s.events.events[name][-1], End) for name in "ab")


def test_an_answer_that_goes_on_reports_nothing():
    s = Reporting()
    s.submit("a", "x" * 30, progress=True, max_tokens=9, sent_tokens=(7, 8), attempt=1)
    s.run()
    assert not s.reports("a")


# -- how long it takes


TICKS = EnginePace(token_s=0.02, depth_s=0.0, tick_s=0.1, full_tick_s=0.2)
"""A prompt token takes 20 ms beside streams, which get a token in 0.1 s, and in 0.2 s meanwhile."""


def of(n_output, *, n_cached=0, token_s=0.15):
    decode_s = token_s * (n_output - 1)
    return RequestStats(100, n_cached, n_output, 0.0, 0.5, 0.5, decode_s, decode_s + 0.5)


def lengths_of(*lengths, **more):
    answers = AnswerLengths()
    for n in lengths:
        answers.note(of(n, **more))
    return answers


def test_too_little_is_no_forecast():
    answers = lengths_of(*[50] * (MIN_ANSWERS - 1))
    assert answers.waits_s([Stayer(0, 100)], [0], TICKS) is None
    answers.note(of(50))
    assert answers.waits_s([], [0], TICKS) is None
    assert answers.waits_s([Stayer(0, 100)], [0], None) is None
    assert answers.waits_s([Stayer(0, 100)], [], TICKS) == []


@pytest.mark.parametrize(
    ("stayers", "n_prompts", "expected"),
    [
        pytest.param([Stayer(10, 90)], [0, 0, 0], [4.0, 9.0, 14.0], id="one-slot-after-the-other"),
        pytest.param([Stayer(10, 90), Stayer(40, 60)], [0, 0], [1.0, 4.0], id="the-first-to-be-free"),
        pytest.param([Stayer(10, 20)], [0, 0], [2.0, 7.0], id="its-limit-is-nearer"),
        pytest.param([Stayer(10, 70, sure=True)], [0, 0], [7.0, 12.0], id="nothing-but-its-limit-ends-it"),
        pytest.param([Stayer(80, 90)], [0, 0], [4.0, 9.0], id="longer-than-any-other"),
        pytest.param([Stayer(0, 90, n_prompt=100)], [0, 0], [7.0, 12.0], id="its-prompt-comes-first"),
        # 2 s of prefill are 10 of its 40 ticks.
        pytest.param([Stayer(10, 90), Stayer(0, 90, n_prompt=100)], [0], [5.0], id="beside-a-prompt"),
        pytest.param(
            [Stayer(0, 90, n_prompt=100), Stayer(0, 90, n_prompt=100)],
            [0, 0],
            [8.0, 9.0],
            id="one-prompt-at-a-time",
        ),
        pytest.param([Stayer(10, 90)], [100, 0], [4.0, 11.0], id="who-waits-has-a-prompt"),
    ],
)
def test_where_all_answers_are_alike_the_forecast_is_what_happens(stayers, n_prompts, expected):
    answers = lengths_of(*[50] * 9)
    assert answers.waits_s(stayers, n_prompts, TICKS) == pytest.approx(expected)


def test_of_a_prompt_counts_what_is_not_cached():
    answers = lengths_of(*[50] * 9, n_cached=50)
    assert answers.waits_s([Stayer(10, 90)], [100, 0], TICKS) == pytest.approx([4.0, 10.0])


def test_right_drafts_are_more_than_a_token_a_tick():
    answers = lengths_of(*[50] * 9, token_s=0.05)
    assert answers.waits_s([Stayer(10, 90)], [0], TICKS) == pytest.approx([2.0])


def test_a_long_answer_is_expected_to_stay_longer_than_a_young_one():
    answers = lengths_of(*[10] * 20, *[200] * 5)
    (young,), (old,) = (answers.waits_s([Stayer(n, 500)], [0], TICKS) for n in (5, 100))
    assert young == pytest.approx(0.5)
    assert old == pytest.approx(10.0)


def test_the_same_is_forecast_twice():
    answers = lengths_of(*range(1, 60))
    stayers = [Stayer(n, 100) for n in (3, 9, 27)]
    waits = answers.waits_s(stayers, [7] * 9, TICKS)
    assert waits == answers.waits_s(stayers, [7] * 9, TICKS)
    assert waits == sorted(waits)
