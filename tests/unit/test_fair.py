"""Tenants and classes: who goes next, whose slot is taken, who is let in. The scheduler alone."""

from dataclasses import replace

import pytest

from cobali_ray.core.messages import (
    Assign,
    Compute,
    Emit,
    Emitted,
    Finish,
    Ready,
    Sampled,
    Submitted,
    TickBegun,
    TickEnded,
)
from cobali_ray.core.queue.admission import AdmittedCounts, Line, Occupancy, admit, n_ahead
from cobali_ray.core.queue.fair import CREDIT, MAX_ELSEWHERE, Accounts, ServedElsewhere
from cobali_ray.core.queue.waiting import AGEING_S, MAX_PARKED
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.errors import InvalidParameterError, QueueFullError, WaitTooLongError


def ask(request_id, tenant="a", n_prompt=8, max_tokens=100, **kwargs):
    first = sum(map(ord, request_id))
    prompt = tuple(range(first, first + n_prompt))
    return Request(request_id=request_id, prompt=prompt, max_tokens=max_tokens, tenant=tenant, **kwargs)


class Setup:
    """A scheduler with few slots; `tick` does a tick of `tick_s` and returns who got a slot and who ended."""

    def __init__(self, n_slots=2, *, tick_s=0.1, **changes):
        base = {
            "n_slots": n_slots, "n_ctx_slot": 256, "n_cells": 256 * n_slots, "token_budget": 64,
            "prefill_chunk": 64, "min_prefix": 0, "max_queue": 8,
        }  # fmt: skip
        self.scheduler = Scheduler(EngineLimits(**(base | changes)), check_every=1)
        self.now_s, self.tick_s = 0.0, tick_s
        self.placed, self.ends = [], {}

    def do(self, event):
        out = self.scheduler.handle(event)
        self.placed += [one.request_id for one in out if isinstance(one, Assign)]
        self.ends |= {one.end.request_id: one.end for one in out if isinstance(one, Finish)}
        return out

    def submit(self, *requests):
        for one in requests:
            self.do(Submitted(one, self.now_s))

    def tick(self, n=1):
        for _ in range(n):
            self.now_s += self.tick_s
            for plan in [one.plan for one in self.do(TickBegun(self.now_s)) if isinstance(one, Compute)]:
                after = self.do(Sampled([7] * len(plan.rows), {}, self.now_s))
                if any(isinstance(one, Emit) for one in after):
                    self.do(Emitted([], self.now_s))
                self.do(TickEnded(self.now_s + 0.001 * plan.n_tokens))
        return self

    def running(self):
        return [s.request_id for s in self.scheduler.slots.running]


def test_one_tenant_is_served_in_the_order_of_arrival():
    s = Setup(n_slots=1)
    s.submit(*[ask(f"r{i}", max_tokens=2, n_prompt=9 - i) for i in range(8)])
    s.tick(30)
    assert s.placed == [f"r{i}" for i in range(8)]


def test_turns_go_to_who_was_served_least():
    s = Setup(n_slots=1, max_queue=99)
    s.submit(*[ask(f"a{i}", max_tokens=4) for i in range(9)])
    s.tick(20)
    s.submit(*[ask(f"b{i}", "b", max_tokens=4) for i in range(3)])
    s.tick(60)
    first = s.placed.index("b0")
    assert "".join(name[0] for name in s.placed[first : first + 3]) == "bbb", (
        "a small credit for who was away"
    )


def test_who_was_away_has_no_claim_from_that():
    accounts = Accounts()
    a = accounts.enter(ask("a"))
    a.n_waiting = 1
    a.charge(1_000_000)
    assert accounts.enter(ask("b", "b")).served == pytest.approx(a.served, abs=10_000)


def test_what_others_gave_counts_with_the_next_request():
    s = Setup(n_slots=1)
    s.submit(ask("holds", "c"))
    s.tick()
    s.submit(ask("a1", "a"), ask("b1", "b"), ask("a2", "a", served_elsewhere=2 * CREDIT), ask("b2", "b"))
    s.tick(500)
    assert s.placed == ["holds", "b1", "b2", "a1", "a2"]


def test_each_engine_is_told_once_what_the_others_gave():
    elsewhere = ServedElsewhere()
    elsewhere.note("a", "alice", 100)
    elsewhere.note("b", "alice", 10)
    elsewhere.note("a", "bob", 1)
    assert [elsewhere.take(one, "alice") for one in "abc"] == [10, 100, 110]
    assert [elsewhere.take(one, "alice") for one in "abc"] == [0, 0, 0]
    elsewhere.put_back("b", "alice", 100)
    elsewhere.note("c", "alice", 5)
    assert [elsewhere.take(one, "alice") for one in "abc"] == [5, 105, 0]
    assert elsewhere.take("b", "bob") == 1
    elsewhere.note("a", "alice", 1e9)
    assert elsewhere.take("b", "alice") == MAX_ELSEWHERE, "an hour alone elsewhere shuts nobody out here"
    assert elsewhere.take("b", "alice") == 0


def test_coming_back_after_everybody_left_begins_where_they_were():
    s = Setup(n_slots=1)
    s.submit(ask("a", n_prompt=100, max_tokens=100))
    s.tick(200)
    assert s.scheduler.accounts.enter(ask("a")).served == 300
    assert not s.scheduler.accounts.several


def test_a_better_class_goes_first():
    s = Setup(n_slots=1)
    s.submit(ask("now", max_tokens=3), ask("late", priority=3), ask("early", priority=-1, max_tokens=3))
    s.tick(9)
    assert s.placed == ["early", "now", "late"]


def test_a_better_class_takes_the_newest_slot_of_the_worst():
    s = Setup(n_slots=3)
    s.submit(ask("a", priority=1), ask("b", priority=2), ask("c", priority=2))
    s.tick(2)
    s.submit(ask("first"))
    s.tick()
    assert s.running() == ["a", "b", "first"]
    assert [one.request_id for one in s.scheduler.queue] == ["c"]
    assert s.scheduler.counts.n_preempted_class == {2: 1}
    s.tick(400)
    assert {end.finish_reason for end in s.ends.values()} == {"length"}
    assert all(end.stats.n_output == 100 for end in s.ends.values()), "who was parked lost nothing"


def test_nobody_is_parked_more_than_twice():
    s = Setup(n_slots=1, max_queue=99)
    s.submit(ask("patient", priority=5))
    for i in range(6):
        s.tick(6)
        s.submit(ask(f"urgent{i}", max_tokens=3))
    s.tick(300)
    assert s.ends["patient"].stats.n_preempted == MAX_PARKED
    assert s.ends["patient"].stats.n_output == 100


@pytest.mark.parametrize("tenant", ["a", "b"], ids=["the-same-tenant", "one-that-was-served-alike"])
def test_equals_take_nobodys_slot(tenant):
    s = Setup(n_slots=2)
    s.submit(ask("a0"), ask("a1"))
    s.tick(2)
    s.submit(ask("b", tenant))
    s.tick(2)
    assert s.running() == ["a0", "a1"]


def test_a_tenant_takes_its_share_of_the_slots_and_no_more():
    s = Setup(
        n_slots=8, max_queue=99, n_ctx_slot=4096, n_cells=8 * 4096, token_budget=9000, prefill_chunk=600
    )
    s.submit(*[ask(f"a{i}", n_prompt=600) for i in range(9)])
    s.tick(2)
    s.submit(*[ask(f"b{i}", "b", n_prompt=500) for i in range(6)])
    s.tick(6)
    assert "".join(sorted(name[0] for name in s.running())) == "aaaabbbb"
    assert s.scheduler.counts.n_preempted == 4


def test_who_goes_before_a_better_one_that_is_not_ready_makes_room_for_it_later():
    s = Setup(n_slots=1)
    s.do(Submitted(ask("better"), 0.0, ready=False))
    s.submit(ask("worse", priority=1))
    s.tick(3)
    assert s.running() == ["worse"]
    s.do(Ready("better", s.now_s))
    s.tick()
    assert s.running() == ["better"]


def test_who_is_due_by_age_is_not_passed_by_who_needs_less_room():
    s = Setup(n_slots=3, tick_s=1.0, n_ctx_slot=200, n_cells=200)
    s.submit(ask("runs", priority=5, n_prompt=60))
    s.tick()
    s.scheduler.sequence("runs").n_parked = MAX_PARKED
    s.submit(ask("aged", priority=1, n_prompt=150, max_tokens=5))
    s.tick(12)
    s.submit(ask("small", max_tokens=5))
    s.tick(120)
    assert s.placed == ["runs", "aged", "small"]


def test_a_class_that_waits_long_gets_a_turn():
    """The better class alone is more than the server can do; the worse one begins all the same."""
    s = Setup(n_slots=1, max_queue=999)
    s.submit(ask("patient", priority=1, max_tokens=2))
    for i in range(300):
        s.submit(ask(f"urgent{i}", max_tokens=2))
        s.tick()
        if "patient" in s.ends:
            break
    assert s.ends["patient"].stats.ttft_s < AGEING_S + 3 * s.tick_s
    assert s.placed.index("patient") > 0.8 * AGEING_S / (2 * s.tick_s), "not before its time"


def test_a_full_queue_takes_who_is_below_the_share_of_it():
    s = Setup(n_slots=1, max_queue=4)
    s.submit(*[ask(f"a{i}") for i in range(5)])
    s.tick()
    s.submit(ask("b", "b"))
    assert list(s.ends) == ["a4"], "the newest of whoever has most"
    assert isinstance(s.ends["a4"].error, QueueFullError)
    assert len(s.scheduler.queue) == 4


def test_a_full_queue_takes_a_better_class():
    s = Setup(n_slots=1, max_queue=5)
    s.submit(*[ask(f"a{i}", priority=i // 2) for i in range(5)], ask("a5", priority=2))
    s.tick()
    s.submit(ask("now", priority=1), ask("too"))
    assert list(s.ends) == ["a5", "now"], "whoever is next stays"


def test_who_makes_room_is_told_which_bound_was_reached():
    s = Setup(n_slots=1, max_queue_tokens=20)
    s.submit(*[ask(f"a{i}") for i in range(3)])
    s.tick()
    s.submit(ask("b", "b"))
    assert s.ends["a2"].error.reason == "queue_full_tokens"
    assert "20 tokens" in str(s.ends["a2"].error)


def at_door(request, lines, *, n_free=0, drain_rps=1.0, max_queue=4, **kwargs):
    occupancy = Occupancy(lines, n_free, drain_rps, prefill_s=2.0)
    limits = EngineLimits(
        n_slots=1, n_ctx_slot=64, n_cells=64, token_budget=8, prefill_chunk=8, max_queue=max_queue
    )
    admit(request, occupancy, limits, **kwargs)


@pytest.mark.parametrize(
    ("request_", "lines", "refused"),
    [
        pytest.param(ask("x"), [Line(0, "a", 1.0, 4, 32)], True, id="full"),
        pytest.param(ask("x", "b"), [Line(0, "a", 1.0, 4, 32)], False, id="another-fills-it"),
        pytest.param(ask("x", "b"), [Line(0, "a", 1.0, 2, 9), Line(0, "b", 1.0, 2, 9)], True, id="both-do"),
        pytest.param(
            ask("x", "b", weight=3.0), [Line(0, "a", 1.0, 2, 9), Line(0, "b", 3.0, 2, 9)], False, id="weight"
        ),
        pytest.param(ask("x"), [Line(1, "a", 1.0, 4, 32)], False, id="a-worse-class-fills-it"),
        pytest.param(ask("x"), [Line(0, "a", 1.0, 3, 9), Line(1, "a", 1.0, 1, 9)], True, id="but-one"),
        pytest.param(ask("x"), [Line(0, "a", 1.0, 3, 9), Line(1, "a", 1.0, 4, 9)], True, id="as-many-as-go"),
        pytest.param(ask("x", priority=2), [Line(1, "a", 1.0, 4, 32)], True, id="a-better-class-fills-it"),
    ],
)
def test_a_full_queue_at_the_door(request_, lines, refused):
    if refused:
        with pytest.raises(QueueFullError):
            at_door(request_, lines)
    else:
        at_door(request_, lines)


def test_others_count_at_most_as_much_as_oneself():
    lines = [
        Line(0, "a", 1.0, 50, 0),
        Line(0, "b", 1.0, 2, 0),
        Line(0, "c", 2.0, 50, 0),
        Line(-1, "d", 1.0, 7, 0),
    ]
    assert n_ahead(ask("x", "b"), lines) == 2 + 3 + 6 + 7
    assert n_ahead(ask("x", "b", priority=-2), lines) == 0


def test_who_could_not_begin_in_time_is_refused_with_the_time():
    lines = [Line(0, "a", 1.0, 9, 72)]
    with pytest.raises(WaitTooLongError) as error:
        at_door(ask("x", timeout_s=4.0), lines, drain_rps=2.0, max_queue=99)
    assert (error.value.predicted_s, error.value.retry_after_s) == (4.5, 0.5)
    with pytest.raises(WaitTooLongError, match="max_predicted_ttft_s"):
        at_door(ask("x"), lines, drain_rps=2.0, max_queue=99, max_ttft_s=6.0)
    at_door(ask("x", timeout_s=5.0), lines, drain_rps=2.0, max_queue=99, max_ttft_s=7.0)
    at_door(ask("x", "b", timeout_s=1.0), lines, drain_rps=2.0, max_queue=99)
    at_door(ask("x", timeout_s=1.0), lines, drain_rps=0.0, max_queue=99)
    at_door(ask("x"), [], n_free=1, max_ttft_s=1.0)


def test_who_comes_back_when_told_is_hardly_refused_again():
    """Sixty requests at once for a queue of eight, of which one a second leaves it."""
    s, door, n_refused = Setup(n_slots=2, tick_s=0.1), AdmittedCounts(), 0
    s.submit(ask("first", max_tokens=20))  # its stay is all that is known when the burst comes
    door.note(s.scheduler.sequence("first").request)
    comes_s = {f"a{i}": 3.0 for i in range(60)}
    while len(s.ends) < 61 and s.now_s < 120:
        s.tick()
        for name, at_s in list(comes_s.items()):
            if at_s > s.now_s:
                continue
            request = ask(name, max_tokens=20)
            try:
                admit(request, door.occupancy(s.scheduler), s.scheduler.limits)
            except QueueFullError as refusal:
                n_refused += 1
                comes_s[name] = s.now_s + refusal.retry_after_s
            else:
                del comes_s[name]
                door.note(request)
                s.submit(request)
    assert len(s.ends) == 61
    assert s.now_s < 70, "the slots were hardly ever idle"
    assert n_refused < 60 * 5, "a second each would be 1,500"


def test_answers_of_minutes_that_end_together_are_no_standstill():
    s = Setup(n_slots=2, tick_s=1.0)
    s.submit(*[ask(f"a{i}", max_tokens=60) for i in range(6)])
    s.tick(118)
    assert len(s.ends) == 2
    assert s.scheduler.drain_rps == pytest.approx(2 / 60, rel=0.1)


def test_waiting_for_a_prompt_that_is_under_way_is_no_slow_queue():
    """Several answers of one prompt: all but the first wait until it can be copied, beside free slots."""
    s = Setup(n_slots=4, copies=True, min_prefix=4)
    s.submit(*[replace(ask("a", n_prompt=200, max_tokens=9), request_id=f"a{i}") for i in range(4)])
    s.tick(9)
    assert len(s.running()) == 4
    assert s.scheduler.drain_rate.rps == 0


@pytest.mark.parametrize("n_others", [0, 3], ids=["in-a-slot", "in-host-memory"])
def test_what_is_cached_of_a_prompt_needs_no_time_at_the_door(n_others):
    s = Setup(n_slots=1, min_prefix=4, n_host_cells=4096, max_queue=99)
    s.submit(*[ask(f"{i:b}", n_prompt=200, max_tokens=1) for i in range(8)])
    s.tick(50)
    s.submit(ask("known", n_prompt=200, max_tokens=1))
    s.tick(9)
    s.submit(*[ask(f"{i}", n_prompt=200, max_tokens=1) for i in range(n_others)])
    s.tick(20)
    prefill_s = s.scheduler.prefill_s
    assert prefill_s(ask("known", n_prompt=200)) < 0.1 * prefill_s(ask("a new one", n_prompt=200))
    assert prefill_s(ask("known", n_prompt=200, cache_salt="other")) > prefill_s(ask("known", n_prompt=200))


def test_the_door_forgets_who_left():
    entered = AdmittedCounts()
    for i in range(3):
        entered.note(ask(f"a{i}"))
    inside = Setup().scheduler
    inside.counts.left.add((0, "a"), 2, 16)
    assert entered.occupancy(inside).lines == [Line(0, "a", 1.0, 1, 8)]
    inside.counts.left.add((0, "a"), 1, 8)
    assert entered.occupancy(inside).lines == []


def test_a_class_has_bounds():
    for wrong in ({"priority": 10}, {"priority": -10}, {"weight": 0.0}):
        with pytest.raises(InvalidParameterError):
            ask("x", **wrong)
