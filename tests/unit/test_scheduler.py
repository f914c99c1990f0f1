"""The scheduler alone: events in, instructions out, no backend."""

from array import array

import pytest

from cobali_ray.core.messages import (
    Assign,
    Cancelled,
    Clear,
    Compute,
    Copy,
    Emit,
    Emitted,
    Failed,
    Filled,
    Finish,
    Moved,
    Ready,
    Refused,
    Restore,
    Sampled,
    Save,
    Stopped,
    Submitted,
    TickBegun,
    TickEnded,
    Truncate,
    Unrestored,
)
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.lifecycle import Status
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request
from cobali_ray.core.scheduler import MAX_PLACED, Scheduler
from cobali_ray.core.story import describe
from cobali_ray.errors import (
    CacheFullError,
    DeadlineExceededError,
    InternalError,
    InvariantError,
    RequestCancelledError,
    SlotFaultError,
)

END = 99


def request(request_id, n_prompt=4, max_tokens=5, **kwargs):
    return Request(
        request_id=request_id, prompt=tuple(range(n_prompt)), max_tokens=max_tokens, reply_to="me", **kwargs
    )


class Setup:
    """A scheduler and a clock; `do` tells it one event, `tick` all events of an inline tick."""

    def __init__(self, n_slots=2, **changes):
        base = {
            "n_slots": n_slots, "n_ctx_slot": 32, "n_cells": 32 * n_slots, "token_budget": 8,
            "prefill_chunk": 8, "min_prefix": 0,
        }  # fmt: skip
        self.scheduler = Scheduler(
            EngineLimits(**(base | changes)), end_tokens=frozenset({END}), check_every=1
        )
        self.now_s = 0.0

    def do(self, event, *args, **kwargs):
        self.now_s += 1.0
        if event is Sampled:
            return self.scheduler.handle(Sampled(args[0], kwargs.get("failed", {}), self.now_s))
        return self.scheduler.handle(event(*args, now_s=self.now_s, **kwargs))

    def submit(self, *requests, **kwargs):
        for one in requests:
            assert self.do(Submitted, one, **kwargs) == []

    def begin(self):
        """Begin a tick; return the plan, None if there is none, and what else is to be done."""
        out = self.do(TickBegun)
        plans = [one.plan for one in out if isinstance(one, Compute)]
        assert len(plans) <= 1
        assert not plans or isinstance(out[-1], Compute), "after whatever makes room for it"
        return (plans[0] if plans else None), [one for one in out if not isinstance(one, Compute)]

    def tick(self, token=7, *, stopped=()):
        plan, out = self.begin()
        if plan is not None:
            after = self.do(Sampled, [token] * len(plan.rows))
            out += after
            if any(isinstance(one, Emit) for one in after):
                out += self.do(Emitted, [Stopped(one, "stop") for one in stopped])
            out += self.do(TickEnded)
        return out

    def in_slot(self, slot_id):
        return self.scheduler.slots.by_slot[slot_id]

    def status(self, request_id):
        return self.scheduler.sequence(request_id).status


def ends(instructions):
    return {
        one.end.request_id: one.end.finish_reason or type(one.end.error)
        for one in instructions
        if isinstance(one, Finish)
    }


def test_a_request_from_door_to_end():
    s = Setup()
    s.submit(request("a", max_tokens=2))
    assert s.status("a") is Status.QUEUED
    plan, out = s.begin()
    assert out == [Truncate(0, 0), Assign(0, "a")]
    assert plan.chunks == (Span(0, 0, 4, True),)
    assert s.status("a") is Status.RUNNING
    (emit,) = s.do(Sampled, [7])
    assert emit == Emit((("a", 7, 0, None),))
    assert s.do(Emitted, []) == s.do(TickEnded) == []
    plan, out = s.begin()
    assert (plan.streams, plan.chunks, out) == ((0,), (), [])
    freed, emit = s.do(Sampled, [8])
    assert freed == Truncate(0, 0)
    assert s.status("a") is Status.FINISHED
    (finish,) = s.do(Emitted, [])
    assert (finish.reply_to, finish.end.finish_reason, finish.end.stats.n_output) == ("me", "length", 2)
    assert not s.scheduler.has_work
    assert s.scheduler.n_open == 0


def test_the_end_token_ends_and_the_slot_is_free_at_once():
    s = Setup(n_slots=1)
    s.submit(request("a"), request("b"))
    s.tick()
    s.begin()
    s.do(Sampled, [END])
    assert s.status("a") is Status.FINISHED
    assert s.scheduler.slots.n_idle == 1
    assert ends(s.do(Emitted, [])) == {"a": "stop"}


def test_overlap_is_the_same_events_in_another_order():
    """The text of one tick's tokens is told while the next pass computes: RELEASING is what comes of it."""
    s = Setup()
    s.submit(request("a"), request("b"))
    plan, _ = s.begin()
    s.do(Sampled, [7] * len(plan.rows))
    s.do(TickEnded)
    plan, _ = s.begin()
    assert plan.streams == (0, 1)
    a = s.scheduler.sequence("a")
    assert ends(s.do(Emitted, [Stopped("a", "stop")])) == {"a": "stop"}
    assert a.status is Status.RELEASING
    assert s.scheduler.slots.n_idle == 0, "a pass computes for it"
    freed, emit = s.do(Sampled, [8, 8])
    assert freed == Truncate(0, 0)
    assert [request_id for request_id, *_ in emit.tokens] == ["b"]
    assert a.status is Status.ENDED
    assert s.scheduler.slots.n_idle == 1


def test_who_finished_may_be_cancelled_before_its_text_is_told():
    s = Setup()
    s.submit(request("a", max_tokens=1))
    s.begin()
    s.do(Sampled, [7])
    assert ends(s.do(Cancelled, "a")) == {"a": RequestCancelledError}
    assert ends(s.do(Emitted, [Stopped("a", "stop")])) == {}


def test_a_stop_string_in_the_last_token_wins_over_its_length():
    s = Setup()
    s.submit(request("a", max_tokens=1))
    s.begin()
    s.do(Sampled, [7])
    assert ends(s.do(Emitted, [Stopped("a", "stop")])) == {"a": "stop"}


def test_who_is_not_ready_does_not_stop_the_line_and_keeps_its_place():
    s = Setup(n_slots=1)
    s.submit(request("waits", max_tokens=1), ready=False)
    assert not s.scheduler.has_work
    s.submit(request("a", max_tokens=1), request("b", max_tokens=1))
    assert ends(s.tick()) == {"a": "length"}
    assert s.status("waits") is Status.NOT_READY
    assert s.do(Ready, "waits") == []
    assert ends(s.tick()) == {"waits": "length"}, "it came before b"
    assert s.do(Ready, "waits") == [], "it has ended meanwhile"


@pytest.mark.parametrize("ready", [True, False])
def test_a_deadline_ends_whoever_waits(ready):
    s = Setup(n_slots=1)
    s.submit(request("a", max_tokens=9))
    s.tick()
    s.submit(request("late", timeout_s=5.0), ready=ready)
    assert s.scheduler.next_deadline_s == s.now_s + 5.0
    s.now_s += 5.0
    assert ends(s.tick()) == {"late": DeadlineExceededError}


def test_a_deadline_that_passes_after_the_last_token_was_drawn_is_met():
    s = Setup()
    s.submit(request("a", max_tokens=1, timeout_s=5.0))
    s.begin()
    s.do(Sampled, [7])
    s.now_s += 10
    s.begin()
    assert ends(s.do(Emitted, [])) == {"a": "length"}


def test_a_full_cache_preempts_the_youngest_who_goes_to_the_head():
    s = Setup(n_slots=2, n_cells=12, n_ctx_slot=12)
    s.submit(request("a", max_tokens=8), request("b", max_tokens=8), request("c", max_tokens=8))
    out = s.tick()
    while not s.scheduler.counts.n_preempted:
        out = s.tick()
    assert Truncate(1, 0) in out
    assert [q.request_id for q in s.scheduler.queue] == ["b", "c"]
    assert s.scheduler.sequence("b").n_prefilled == 0


class Tiered(Setup):
    """The same, with host memory in blocks of 4 tokens; what is moved takes `s_per_token`."""

    def __init__(self, n_slots=1, *, s_per_token=0.0, **changes):
        base = {
            "min_prefix": 2, "n_host_cells": 100, "host_block": 4, "token_budget": 16, "prefill_chunk": 16,
        }  # fmt: skip
        super().__init__(n_slots, **(base | changes))
        self.s_per_token = s_per_token

    def do(self, event, *args, **kwargs):
        out = super().do(event, *args, **kwargs)
        n = sum(m.n_keep if isinstance(m, Restore) else m.blocks[-1][2] for m in moves(out))
        if n:
            assert self.scheduler.handle(Moved(n, n * self.s_per_token, [])) == []
        return out


def moves(out):
    return [one for one in out if isinstance(one, Save | Restore)]


def numbers(request_id, first, n_prompt=10, max_tokens=1):
    return Request(request_id=request_id, prompt=tuple(range(first, first + n_prompt)), max_tokens=max_tokens)


def test_what_a_slot_loses_is_kept_and_comes_back():
    s = Tiered()
    s.submit(numbers("a", 0), numbers("b", 100), numbers("again", 0, n_prompt=12))
    assert moves(s.tick()) == []
    out = s.tick()
    assert out[:3] == [Save(0, ((0, 0, 4), (1, 4, 8), (2, 8, 10))), Truncate(0, 0), Assign(0, "b")]
    plan, out = s.begin()
    assert out == [
        Save(0, ((3, 0, 4), (4, 4, 8), (5, 8, 10))),
        Truncate(0, 0),
        Restore(0, (0, 1, 2), 10),
        Assign(0, "again"),
    ]
    assert plan.chunks == (Span(0, 10, 2, True),)
    s.do(Sampled, [7])
    assert [f.end.stats.n_cached for f in s.do(Emitted, []) if isinstance(f, Finish)] == [10]
    tier = s.scheduler.tiers.host
    assert (tier.n_hits, tier.n_restored, tier.n_saved, tier.n_used) == (1, 10, 20, 20)


def test_what_slots_hold_is_neither_restored_nor_saved():
    s = Tiered()
    s.submit(numbers("a", 0), numbers("more", 0, n_prompt=14), numbers("less", 0, n_prompt=13))
    assert [moves(s.tick()) for _ in range(3)] == [[], [], []], "less than a block is lost"


def test_what_cannot_be_brought_back_is_computed_and_not_tried_again():
    s = Tiered()
    s.submit(numbers("a", 0), numbers("b", 100), numbers("again", 0, n_prompt=12))
    s.tick()
    s.tick()
    plan, _ = s.begin()
    assert plan.chunks == (Span(0, 10, 2, True),)
    account = s.scheduler.sequence("again").account
    served = account.served
    forget, compute = s.do(Unrestored, [0], [0, 1, 2])
    assert account.served == served + 10, "what was held to be cached is computed after all"
    assert sorted(forget.block_ids) == [0, 1, 2]
    assert compute.plan.chunks == (Span(0, 0, 12, True),)
    s.do(Sampled, [7])
    assert [f.end.stats.n_cached for f in s.do(Emitted, []) if isinstance(f, Finish)] == [0]
    assert s.scheduler.tiers.host.n_used == 10


def test_cells_that_could_not_be_saved_are_not_expected():
    s = Tiered()
    s.submit(numbers("a", 0), numbers("b", 100), numbers("again", 0, n_prompt=12))
    s.tick()
    s.tick()
    (forget,) = s.scheduler.handle(Moved(10, 0.0, [1]))
    assert sorted(forget.block_ids) == [1, 2], "and nothing behind them"
    plan, _ = s.begin()
    assert plan.chunks == (Span(0, 4, 8, True),)


def test_a_tick_moves_as_much_as_it_has_time_for():
    """Beyond the first move: here a prefix that is saved, after which the next in the queue has to wait."""
    s = Tiered(n_slots=3, s_per_token=1.0, token_budget=64, cell_bytes=10**6)
    s.submit(*[numbers(name, 100 * i) for i, name in enumerate("abc")])
    s.tick()
    s.submit(*[numbers(name * 2, 1000 + 100 * i) for i, name in enumerate("abc")])
    out = s.tick()
    assert [one.slot_id for one in moves(out)] == [0], "the others are lost"
    assert len([one for one in out if isinstance(one, Assign)]) == 3
    s.submit(numbers("d", 2000), numbers("a again", 0, n_prompt=12))
    plan, out = s.begin()
    assert [type(one) for one in moves(out)] == [Save]
    assert [q.request_id for q in s.scheduler.queue] == ["a again"], "it is not computed for want of 2 ms"
    assert len(plan.chunks) == 1
    s.do(Sampled, [7])
    s.do(Emitted, [])
    plan, out = s.begin()
    assert [one.n_keep for one in moves(out) if isinstance(one, Restore)] == [10]


def test_what_is_needed_now_is_not_given_up_for_what_is_saved_now():
    s = Tiered(n_host_cells=12)
    s.submit(numbers("a", 0), numbers("b", 100), numbers("again", 0, n_prompt=12))
    s.tick()
    s.tick()
    assert [one.n_keep for one in s.tick() if isinstance(one, Restore)] == [10]


def test_what_is_brought_back_is_not_given_up_for_what_is_dropped_for_its_cells():
    s = Tiered(n_slots=3, n_cells=30, n_ctx_slot=30, n_host_cells=18, token_budget=30)
    s.submit(numbers("a", 0, n_prompt=16))
    s.tick()
    s.submit(*[numbers(name, 100 * i) for i, name in enumerate("xyz", 1)])
    s.tick()
    s.tick()
    assert (s.scheduler.slots.n_cells_idle, s.scheduler.tiers.host.n_used) == (30, 16)
    s.submit(numbers("again", 0, n_prompt=18))
    plan, out = s.begin()
    assert [(one.n_keep, len(one.block_ids)) for one in out if isinstance(one, Restore)] == [(16, 4)]
    assert [(c.start, c.length) for c in plan.chunks] == [(16, 2)]
    assert s.scheduler.tiers.host.n_used == 16


def test_after_a_failure_nothing_is_trusted():
    s = Tiered()
    s.submit(numbers("a", 0), numbers("b", 100))
    s.tick()
    s.tick()
    assert s.scheduler.tiers.host.n_used == 10
    assert s.do(Failed, InternalError("fire"))[-1] == Clear()
    assert s.scheduler.tiers.host.n_used == 0
    s.submit(numbers("again", 0, n_prompt=12))
    assert moves(s.tick()) == []


def test_without_prefix_reuse_nothing_is_moved():
    s = Tiered(min_prefix=0)
    s.submit(numbers("a", 0), numbers("b", 100))
    assert moves(s.tick()) + moves(s.tick()) == []


def test_moving_cells_is_no_part_of_the_time_that_a_tick_of_its_shape_takes():
    s = Tiered(s_per_token=0.05)
    learnt = []
    s.scheduler.pacer.learn = lambda _shape, seconds: learnt.append(seconds) or 0.0
    s.submit(numbers("a", 0), numbers("b", 100))
    s.tick()
    s.tick()
    assert learnt == pytest.approx([3.0, 2.5])


def test_a_refused_pass_counts_nothing_twice():
    """The cache was fuller than our books said: another plan follows, and what was passed counts once."""
    s = Setup(n_slots=3, prefill_order="shortest", n_cells=96)
    s.submit(request("long", n_prompt=20), request("short", n_prompt=6), request("other", n_prompt=6))
    plan, _ = s.begin()
    assert [c.slot_id for c in plan.chunks] == [1, 2]
    out = s.do(Refused, CacheFullError("no room"), None)
    assert s.scheduler.counts.n_preempted == 1
    assert isinstance(out[-1], Compute)
    assert s.scheduler.sequence("long").n_passed == 0
    s.do(Sampled, [7])
    assert s.scheduler.sequence("long").n_passed == 6


def test_the_slot_at_fault_ends_alone():
    s = Setup()
    s.submit(request("bad"), request("good"))
    s.begin()
    out = s.do(Refused, SlotFaultError(0, "no such token"), 0)
    assert ends(out) == {"bad": InternalError}
    assert [s.in_slot(i).request_id for i in out[-1].plan.rows] == ["good"]


def test_only_later_prompts_pass_by():
    s = Setup(n_slots=3, prefill_order="shortest", n_cells=96)
    s.submit(request("short", n_prompt=8), request("long", n_prompt=20), request("later", n_prompt=6))
    plan, _ = s.begin()
    assert [c.slot_id for c in plan.chunks] == [2, 0], "the later one first, then what is left for the short"
    s.do(Sampled, [7])
    passed = {name: s.scheduler.sequence(name).n_passed for name in ("short", "long", "later")}
    assert passed == {"short": 6, "long": 6, "later": 0}, "the short one came before the long one"


def test_a_row_that_cannot_be_drawn_ends_alone():
    s = Setup()
    s.submit(request("bad"), request("good"))
    s.begin()
    out = s.do(Sampled, [-1, 7], failed={0: InternalError("all logits are -inf")})
    assert ends(out) == {"bad": InternalError}
    assert [request_id for one in out if isinstance(one, Emit) for request_id, *_ in one.tokens] == ["good"]


def sharing(request_id, n_shared, *own):
    return Request(request_id=request_id, prompt=(*range(n_shared), *own), max_tokens=5)


def placed(instructions):
    return [one for one in instructions if isinstance(one, Assign | Copy)]


def test_prompts_that_begin_alike_wait_for_the_first_and_are_copied_then():
    sizes = {"n_ctx_slot": 256, "n_cells": 1024, "token_budget": 80, "prefill_chunk": 80}
    s = Setup(n_slots=4, min_prefix=4, copies=True, **sizes)
    s.submit(sharing("a", 100, 1, 2), sharing("b", 100, 3, 4), sharing("c", 100, 5, 6))
    s.submit(sharing("d", 15, 7, 8))  # shares too little to wait for
    _, out = s.begin()
    assert placed(out) == [Assign(0, "a"), Assign(1, "d")]
    assert s.scheduler.slots.by_slot[1].request_id == "d"
    s.do(Sampled, [])
    s.do(TickEnded)
    while not placed(out := s.tick()):
        assert s.status("b") is s.status("c") is Status.QUEUED
    first, second = (one for one in out if isinstance(one, Copy))
    assert first == Copy(0, 2, 100)
    assert second[1:] == (3, 100)  # from either
    assert s.scheduler.sequence("b").n_cached == s.scheduler.sequence("c").n_cached == 100


def test_who_waits_for_a_prompt_that_ends_takes_its_place():
    s = Setup(n_slots=3, n_ctx_slot=256, n_cells=768, token_budget=8, min_prefix=4, copies=True)
    s.submit(sharing("a", 100, 1), sharing("b", 100, 2), sharing("c", 100, 3))
    s.tick()
    s.do(Cancelled, "a")
    s.tick()
    assert (s.status("b"), s.status("c")) == (Status.RUNNING, Status.QUEUED)


@pytest.mark.parametrize(("shares", "n_at_once"), [(True, 4), (False, 2)])
def test_shared_cells_leave_room_for_others(shares, n_at_once):
    s = Setup(n_slots=4, n_ctx_slot=256, n_cells=256, min_prefix=4, copies=True, shares=shares)
    s.submit(*(sharing(name, 100, i, i) for i, name in enumerate("abcd")))
    slots, most = s.scheduler.slots, 0
    while s.scheduler.n_open:
        s.tick(token=50)
        most = max(most, len(slots.running))
        if shares and len(slots.running) == 4:
            assert slots.n_used() <= 256 < slots.n_cells_running
    assert (most, s.scheduler.counts.n_preempted) == (n_at_once, 0)


@pytest.mark.parametrize("changes", [{"copies": False}, {"min_prefix": 0}, {"min_prefix": 101}])
def test_nobody_waits_for_what_cannot_be_copied(changes):
    base = {"n_ctx_slot": 256, "n_cells": 768, "min_prefix": 4, "copies": True}
    s = Setup(n_slots=3, **(base | changes))
    s.submit(sharing("a", 100, 1), sharing("b", 100, 2))
    s.tick()
    assert (s.status("a"), s.status("b")) == (Status.RUNNING, Status.RUNNING)


def test_a_burst_gets_its_slots_over_several_ticks_and_the_door_knows_of_the_free_ones():
    s = Setup(n_slots=80, n_cells=80 * 32, token_budget=400, prefill_chunk=4)
    s.submit(*(request(f"r{i}", max_tokens=9) for i in range(90)))
    for n_running in (MAX_PLACED, 2 * MAX_PLACED, 80):
        s.tick()
        assert (len(s.scheduler.slots.running), s.scheduler.head_waits) == (n_running, n_running == 80)


@pytest.mark.parametrize(
    ("event", "args", "complaint"),
    [
        (Sampled, ([],), "no pass is under way"),
        (Refused, (CacheFullError("full"), None), "no pass is under way"),
        (Emitted, ([],), "nothing was to be emitted"),
    ],
)
def test_what_cannot_be_is_an_error(event, args, complaint):
    with pytest.raises(InvariantError, match=complaint):
        Setup().do(event, *args)


def test_ends_decided_before_an_error_are_told_with_the_next_answer():
    s = Setup()
    s.submit(request("late", timeout_s=1.0), request("a"))
    s.now_s += 5
    s.scheduler.slots.n_cells_running = 5  # the books no longer balance
    with pytest.raises(InvariantError, match="miscounted"):
        s.do(TickBegun)
    out = s.do(Failed, InternalError("broken"))
    assert ends(out) == {"late": DeadlineExceededError, "a": InternalError}
    assert not [one for one in out if isinstance(one, Compute)]


def test_whom_an_error_kept_from_ending_ends_with_the_next_answer():
    s = Setup()
    s.submit(request("a"), request("b"), request("waits"))
    s.tick()
    s.scheduler.slots.by_slot[0] = None  # the books no longer balance
    with pytest.raises(InvariantError, match="does not hold slot 0"):
        s.do(Cancelled, "a")
    out = s.do(Failed, InternalError("broken"))
    assert ends(out) == dict.fromkeys(["a", "b", "waits"], InternalError)
    assert s.scheduler.counts.left.n == s.scheduler.counts.n_ended == 3


def test_a_broken_invariant_tells_its_story():
    s = Setup()
    s.submit(request("a", max_tokens=3), request("b", n_prompt=6, max_tokens=3))
    s.tick()
    plan, _ = s.begin()
    s.scheduler.slots.n_cells_running += 1
    with pytest.raises(InvariantError) as caught:
        s.do(Sampled, [7] * len(plan.rows))
    (note,) = caught.value.__notes__
    assert "Submitted(a, 4 + 3" in note
    assert "TickBegun" in note.splitlines()[-2]
    assert "Compute(streams 0, chunks 1:4+2)" in note.splitlines()[-2]


def test_a_story_has_the_length_of_what_a_request_says():
    words = describe(Filled(1, array("i", [271, 828]), "salt"))
    assert words == "Filled(slot_id=1, tokens=2, salt='salt', states=0)"
