"""What holds for every scheduler, whatever it is told and in whatever order (stateful, without a backend)."""

import pickle
from array import array
from collections import Counter
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cobali_ray.core import messages
from cobali_ray.core.cost.runs import run_lengths
from cobali_ray.core.cost.ticktime import TickShape
from cobali_ray.core.plan.goodput import Drafts, Speculation
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.queue.waiting import MAX_PARKED
from cobali_ray.core.request.limits import EngineLimits, Grain
from cobali_ray.core.request.request import MAX_PRIORITY, Program, Request
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.errors import CacheFullError, InternalError, QueueFullError, SlotFaultError

N_CTX = 24
END = 5


class Drafting(Speculation):
    """Guesses whether it pays or not."""

    def choose(self, streams, *, plain_s, most_s, room):
        tokens = {}
        for s in streams:
            n = min(len(s.tokens) % 4, s.n_most - len(s.tokens) - 1, room)
            if n > 0:
                tokens[s.slot_id] = array("i", [7] * n)
                room -= n
        return Drafts(tokens, plain_s)


class Twice(Scheduler):
    """Asks twice what comes next."""

    def _plan(self, now_s):
        first, again = (self.planner.next(now_s, streams_gave=self._shared) for _ in range(2))
        assert first == again, "to ask changes nothing"
        super()._plan(now_s)


class SchedulerMachine(RuleBasedStateMachine):
    """A backend that may refuse, a crowd that comes and goes, and text that may be told late."""

    @initialize(
        n_slots=st.integers(1, 4),
        share=st.sampled_from([1.0, 0.6]),
        chunk=st.integers(1, 12),
        order=st.sampled_from(["shortest", "shortest", "fcfs"]),
        target_s=st.sampled_from(["auto", "auto", None, 0.05]),
        min_prefix=st.sampled_from([0, 1, 4]),
        n_host_cells=st.sampled_from([1000, 20, 0]),
        copies=st.booleans(),
        dense=st.booleans(),
        cut_s=st.sampled_from([1.0, 0.0, None]),
        grain=st.sampled_from([Grain(), Grain(step=4, least=4, beside=1), Grain(pass_cells=100)]),
        mixed=st.booleans(),
        max_queue=st.sampled_from([128, 3]),
        drafts=st.booleans(),
        n_scored_rows=st.sampled_from([256, 2, 5]),
        states=st.sampled_from(["", "", "hybrid", "alone"]),
        n_states=st.sampled_from([50, 2, 1, 0]),
    )
    def open(
        self, n_slots, share, chunk, order, target_s, min_prefix, n_host_cells, copies, dense, cut_s, grain,
        mixed, max_queue, drafts, n_scored_rows, states, n_states,
    ):  # fmt: skip
        self.drafts = drafts = drafts and not states
        self.kind, self.states, self.lost_states = states, {}, []
        self.mixed = mixed  # several tenants and classes, or one of each
        self.limits = EngineLimits(
            n_slots=n_slots,
            n_ctx_slot=N_CTX,
            n_cells=max(int(n_slots * N_CTX * share), N_CTX),
            token_budget=max(chunk, n_slots),
            prefill_chunk=chunk,
            prefill_order=order,
            min_prefix=min_prefix,
            n_host_cells=0 if states == "alone" else n_host_cells,
            host_block=4,
            state_bytes=100 if states else 0,
            n_states=n_states if states else 0,
            state_step=2,
            states_alone=states == "alone",
            copies=copies,
            dense=dense,
            grain=grain,
            max_queue=max_queue,
            n_scored_rows=n_scored_rows,
        )
        self.target_s, self.cut_s = target_s, cut_s
        self.scheduler = self.new_scheduler()
        self.now_s = 0.0
        self.cache = [[] for _ in range(n_slots)]
        self.seq_ids = list(range(n_slots))
        self.host, self.empty, self.moves_fail, self.moves_failed = {}, {}, False, False
        self.plan = self.emit = None
        self.requests, self.sequences, self.ended, self.events, self.told = {}, {}, {}, [], []
        self.all_failed = False

    def new_scheduler(self):
        pacer = Pacer(self.target_s, self.limits.grain)
        for _ in range(20 * self.drafts):  # it knows what a tick takes
            pacer.model.learn(TickShape(1, 10, ()), 0.01)
        if self.cut_s is not None:
            pacer.model.runs_s = lambda rows: self.cut_s * len(rows)
        return Twice(
            self.limits, end_tokens=frozenset({END}), pacer=pacer, check_every=1,
            speculation=Drafting() if self.drafts else None,
        )  # fmt: skip

    def do(self, event):
        self.now_s += 0.01
        out = self.scheduler.handle(event)
        self.events.append(event)
        self.told.append(repr(out))
        n_moved, lost, n_states = 0, [], 0
        for one in out:
            match one:
                case messages.SaveState():
                    n_states += 1
                    assert one.state_id not in self.states
                    assert one.n_tokens == len(self.cache[one.slot_id]) or one.slot_id in self.empty
                    if self.moves_fail or one.slot_id in self.empty:
                        self.lost_states.append(one.state_id)
                    else:
                        self.states[one.state_id] = list(self.cache[one.slot_id])
                case messages.RestoreState() if one.slot_id in self.empty:
                    pass
                case messages.RestoreState():
                    n_states += 1
                    self.go_back(one.slot_id, one.state_id, one.n_keep)
                case messages.ForgetStates():
                    for state_id in one.state_ids:
                        assert (self.states.pop(state_id, None) is not None) or self.moves_failed
                case messages.Truncate():
                    self.empty.pop(one.slot_id, None)
                    assert not self.kind or one.n_keep in {0, len(self.cache[one.slot_id])}
                    assert one.n_keep <= len(self.cache[one.slot_id])
                    del self.cache[one.slot_id][one.n_keep :]
                case messages.Copy() if one.donor_id in self.empty:
                    self.empty[one.slot_id] = ()
                case messages.Copy():
                    assert not self.cache[one.slot_id]
                    assert 0 < one.n_keep <= len(self.cache[one.donor_id])
                    assert not self.kind or one.n_keep == len(self.cache[one.donor_id])
                    self.cache[one.slot_id] = self.cache[one.donor_id][: one.n_keep]
                case messages.Swap():
                    held = [len(self.cache[i]) for i in (one.slot_id, one.other_id) if i not in self.empty]
                    assert sum(held) == one.n_cells or self.empty
                    n_moved += 2 * one.n_cells
                    ids = self.seq_ids
                    ids[one.slot_id], ids[one.other_id] = ids[one.other_id], ids[one.slot_id]
                case messages.Save():
                    n_moved += one.blocks[-1][2]
                    held = self.cache[one.slot_id]
                    for block_id, start, end in one.blocks:
                        assert block_id not in self.host
                        assert start < end <= len(held)
                        if self.moves_fail:
                            lost.append(block_id)
                        else:
                            self.host[block_id] = held[start:end]
                case messages.Restore():
                    n_moved += one.n_keep
                    assert not self.cache[one.slot_id]
                    assert (one.state_id is not None) == bool(self.kind)
                    if self.kind == "alone":
                        self.go_back(one.slot_id, one.state_id, one.n_keep)
                    elif self.moves_fail or not all(block_id in self.host for block_id in one.block_ids):
                        self.empty[one.slot_id] = one.block_ids
                    else:
                        held = [token for block_id in one.block_ids for token in self.host[block_id]]
                        assert 0 < one.n_keep <= len(held)
                        self.cache[one.slot_id] = held[: one.n_keep]
                        if self.kind:
                            self.go_back(one.slot_id, one.state_id, one.n_keep)
                case messages.Forget():
                    for block_id in one.block_ids:
                        assert (self.host.pop(block_id, None) is not None) or self.moves_failed
                case messages.Assign():
                    assert self.plan is None
                case messages.Compute():
                    self.begin(one.plan)
                case messages.Emit():
                    assert self.emit is None
                    self.emit = one
                case messages.Finish():
                    assert one.end.request_id not in self.ended, "every request ends once"
                    self.ended[one.end.request_id] = one.end
                case messages.Clear():
                    self.cache = [[] for _ in self.cache]
                    self.seq_ids.sort()
                    self.host, self.empty, self.states, self.lost_states = {}, {}, {}, []
                    self.plan = self.emit = None
            assert len(self.states) <= self.limits.n_states
            assert sum(map(len, self.cache)) <= self.limits.n_cells
            assert sum(map(len, self.host.values())) <= self.limits.n_host_cells
        if n_moved:
            self.do(messages.Moved(n_moved, 1e-5 * n_moved, lost))
        if n_states:
            lost_states, self.lost_states = self.lost_states, []
            self.do(messages.StatesMoved(n_states, 1e-5 * n_states, lost_states))
        if self.empty and self.plan is not None:
            self.plan, empty, self.empty = None, self.empty, {}
            lost = [block_id for block_ids in empty.values() for block_id in block_ids]
            self.do(messages.Unrestored(list(empty), lost, self.now_s))

    def go_back(self, slot_id, state_id, n_keep):
        """Have a slot stand where a state was saved, which must be one of what the slot holds."""
        saved = self.states.get(state_id)
        if saved is None or self.moves_fail:
            assert self.moves_failed, "only states that there are"
            self.cache[slot_id], self.empty[slot_id] = [], ()
            self.lost_states.append(state_id)
            return
        assert len(saved) == n_keep
        assert self.kind == "alone" or saved == self.cache[slot_id][:n_keep]
        self.cache[slot_id] = list(saved)

    def begin(self, plan):
        """Check a plan against the cache, as a backend would, and what every plan must keep."""
        assert self.plan is None
        slots = self.scheduler.slots
        assert plan.n_tokens <= self.limits.token_budget
        assert sum(map(len, self.cache)) + plan.n_tokens <= self.limits.n_cells
        assert plan == pickle.loads(pickle.dumps(plan)), "a plan is a value"
        hash(plan)
        mine = [s for s in slots.by_slot if s is not None and s.adapter == plan.adapter]
        skipped = [s for s in mine if s.decoding and s.slot_id not in plan.streams]
        others = any(one.priority != MAX_PRIORITY for one in self.requests.values())
        assert not skipped or (others and plan.n_tokens), "beside others, and where they came lately"
        assert {s.priority for s in skipped} <= {MAX_PRIORITY}, "nor those of other classes than the last"
        assert set(plan.streams) <= {s.slot_id for s in mine if s.decoding}
        assert all(slots.by_slot[chunk.slot_id] in mine for chunk in plan.chunks), "nor is one mixed in"
        spans = [(i, len(slots.tokens(i)) - 1, 1) for i in plan.streams] + [c[:3] for c in plan.chunks]
        assert len({slot_id for slot_id, *_ in spans}) == len(spans)
        assert slots.seq_ids == self.seq_ids
        order = [self.seq_ids[span.slot_id] for span in plan.spans]
        if self.limits.grain.step > 1 and plan.streams and plan.chunks:
            heads = [after for before, after in pairwise([-2, *order]) if after != before + 1]
            assert heads == sorted(heads, reverse=True), "in falling runs of neighbours"
            streams = [self.seq_ids[i] for i in plan.streams]
            prompts = [self.seq_ids[chunk.slot_id] for chunk in plan.chunks]
            if max(streams) < min(prompts) or max(prompts) < min(streams):
                assert order != sorted(order), "a prompt that parts no streams is in no run of theirs"
        else:
            assert order == sorted(order) or self.limits.grain.pass_cells, "in order of their ids"
        for slot_id, start, _ in spans:
            sequence = slots.by_slot[slot_id]
            if slot_id in self.empty:
                continue
            said = [(token, sequence.adapter) for token in sequence.tokens[:start]]
            assert self.cache[slot_id] == said, "what is there is what was said, under the same adapter"
        n_rows = 0
        for slot_id, start, length, sample in plan.chunks:
            s = slots.by_slot[slot_id]
            if (first := s.n_unscored) is not None:
                assert start <= first, "whatever is wanted of it is computed"
                assert sample == max(start + length - first, 0)
                n_rows += sample
        assert n_rows <= self.limits.n_scored_rows
        self.plan = plan

    @rule(
        n_prompt=st.integers(1, 16),
        kind=st.integers(0, 2),
        max_tokens=st.integers(0, 8),
        timeout_s=st.sampled_from([None, None, 0.3]),
        ready=st.sampled_from([True, True, False]),
        salt=st.sampled_from(["", "", "other", None]),
        adapter=st.sampled_from(["", "", "a", "b"]),
        tenant=st.sampled_from("abc"),
        priority=st.sampled_from([0, 0, 1, 2, 9, 9]),
        n_said=st.sampled_from([0, 0, 0, 1, 5]),
        n_top=st.sampled_from([None, None, 0, 1]),
        turns=st.lists(st.integers(1, 15), max_size=3),
        program=st.none() | st.builds(Program, st.sampled_from("pqr"), st.just("tools"), st.booleans()),
    )
    def submit(
        self, n_prompt, kind, max_tokens, timeout_s, ready, salt, adapter, tenant, priority, n_said, n_top,
        turns, program,
    ):  # fmt: skip
        request_id = f"r{len(self.requests)}"
        prompt = tuple(10 + i if i < 6 else 100 * kind + i for i in range(n_prompt))
        self.requests[request_id] = one = Request(
            request_id=request_id,
            prompt=prompt,
            max_tokens=max_tokens,
            timeout_s=timeout_s,
            cache_salt=salt,
            adapter=adapter,
            tenant=tenant if self.mixed else "",
            weight=2.0 if self.mixed and tenant == "c" else 1.0,
            priority=priority if self.mixed else 0,
            sent_tokens=(8,) * max(min(n_said, max_tokens - 1), 0),
            n_prompt_logprobs=n_top,
            attempt=int(n_said > 0),
            turns=tuple(sorted(turns)),
            program=program,
        )
        self.do(messages.Submitted(one, self.now_s, ready=ready))
        self.sequences[request_id] = self.scheduler.sequence(request_id)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), event=st.sampled_from([messages.Cancelled, messages.Ready, messages.Failed]))
    def something_happens_to_one(self, data, event):
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        if event is messages.Failed:
            self.do(messages.Failed(InternalError("alone"), self.now_s, request_id))
            return
        if event is messages.Ready and request_id not in self.unready():
            return
        self.do(event(request_id, self.now_s))

    def unready(self):
        return {s.request_id for s in self.scheduler.queue if s.status.name == "NOT_READY"}

    @precondition(lambda self: self.plan is None)
    @rule()
    def tick(self):
        n_preempted = self.scheduler.counts.n_preempted
        self.do(messages.TickBegun(self.now_s))
        slots = self.scheduler.slots
        sequences = zip(self.seq_ids, slots.by_slot, strict=True)
        running = [(seq_id, s) for seq_id, s in sequences if s is not None]
        others = any(s.priority < MAX_PRIORITY for _, s in running)  # beside them the last class waits
        busy = sorted([i for i, s in running if s.priority < MAX_PRIORITY or not others])
        if self.limits.dense and self.cut_s and self.scheduler.counts.n_preempted == n_preempted:
            assert not run_lengths(busy), "where passes are dear, busy ids are neighbours"
        assert self.limits.dense or self.seq_ids == sorted(self.seq_ids)

    @precondition(lambda self: self.plan is not None)
    @rule(data=st.data(), how=st.sampled_from(["sampled"] * 6 + ["full", "fault"]))
    def answer(self, data, how):
        plan = self.plan
        if how == "full":
            self.plan = None
            self.do(messages.Refused(CacheFullError("full"), None, self.now_s))
            return
        if how == "fault":
            slot_id = data.draw(st.sampled_from([*plan.streams, *[chunk.slot_id for chunk in plan.chunks]]))
            self.plan = None
            self.do(messages.Refused(SlotFaultError(slot_id, "at fault"), slot_id, self.now_s))
            return
        if self.emit is not None:
            self.tell_text(data)
        if self.plan is None:  # nothing is left of it
            return
        self.plan = None
        fails = plan.rows and data.draw(st.integers(0, 9)) == 0
        failed = {0: InternalError("nothing to draw")} if fails else {}
        self.computed(
            plan,
            lambda draft: [*draft[: data.draw(st.integers(0, len(draft)))], data.draw(st.integers(3, 9))],
            failed,
        )

    def computed(self, plan, draw, failed):
        """Have the cache hold what was computed, and tell what was drawn, given each row's draft."""
        for slot_id in plan.streams:
            fed = [self.scheduler.slots.tokens(slot_id)[-1], *plan.draft(slot_id)]
            self.cache[slot_id] += [(token, plan.adapter) for token in fed]
        for slot_id, start, length, _ in plan.chunks:
            known = self.scheduler.slots.by_slot[slot_id].tokens
            self.cache[slot_id] += [(token, plan.adapter) for token in known[start : start + length]]
        each = [draw(plan.draft(slot_id)) for slot_id in plan.rows]
        tokens, n_each = [token for one in each for token in one], [len(one) for one in each]
        self.do(messages.Sampled(tokens, failed, self.now_s, n_each=n_each if plan.drafts else None))
        self.do(messages.TickEnded(self.now_s))

    @precondition(lambda self: self.emit is not None)
    @rule(data=st.data())
    def tell_text(self, data):
        going_on = dict.fromkeys([one for one, *_ in self.emit.tokens if one not in self.ended])
        stopped = [messages.Stopped(one, "stop") for one in going_on if data.draw(st.integers(0, 5)) == 0]
        self.emit = None
        self.do(messages.Emitted(stopped, self.now_s))

    @precondition(lambda self: self.plan is None)
    @rule(data=st.data(), n=st.integers(0, N_CTX), salt=st.sampled_from(["", "other"]))
    def a_slot_is_filled_or_emptied_from_outside(self, data, n, salt):
        slots = self.scheduler.slots
        if not slots.n_idle or not self.limits.min_prefix:
            return
        idle = [i for i, s in enumerate(slots.by_slot) if s is None]
        slot_id = data.draw(st.sampled_from(idle))
        if n == 0:
            self.do(messages.Emptied(slot_id))
        elif n + slots.n_cells_running <= self.limits.n_cells and not self.kind:
            tokens = array("i", [10 + i if i < 6 else i for i in range(n)])
            self.do(messages.Filled(slot_id, tokens, salt))
            self.cache[slot_id] = [(token, "") for token in tokens]
        assert slots.held(slot_id).n_tokens == len(self.cache[slot_id])

    @rule(event=st.sampled_from([messages.Paused, messages.Resumed, messages.Resumed]))
    def an_operator_pauses_or_resumes(self, event):
        self.do(event(self.now_s))
        assert self.scheduler.paused == (event is messages.Paused)

    @invariant()
    def nothing_begins_in_a_pause(self):
        if self.scheduler.paused:
            assert self.scheduler.n_free_slots == 0
            last = self.events[-1] if self.events else None
            if isinstance(last, messages.TickBegun):
                assert self.plan is None
                assert not self.scheduler.slots.running, "all who ran are parked"

    @rule(odds=st.integers(0, 9))
    def everything_fails(self, odds):
        if odds == 0:
            self.plan = self.emit = None
            self.all_failed = True
            self.do(messages.Failed(InternalError("fire"), self.now_s))

    @rule(fail=st.sampled_from([False, False, True]))
    def moving_cells_fails_from_now_on(self, fail):
        self.moves_fail = fail
        self.moves_failed = self.moves_failed or fail

    @invariant()
    def nobody_is_passed_by_more_than_its_own_length(self):
        if self.limits.prefill_order == "shortest" and not self.mixed:
            for s in self.scheduler.slots.running:
                assert s.n_passed <= (len(s.tokens) + self.limits.token_budget) * (1 + s.n_preempted)

    @invariant()
    def nobody_loses_its_slot_to_others_more_than_twice(self):
        assert all(s.n_parked <= MAX_PARKED for s in self.scheduler.slots.running)

    @invariant()
    def the_accounts_know_who_is_where(self):
        waiting = Counter(s.account.tenant for s in self.scheduler.queue)
        there = [s for name, s in self.sequences.items() if name not in self.ended]
        assert {(s.priority, s.account.tenant) for s in there} == set(self.scheduler.accounts._lines)
        for s in there:
            account = s.account
            assert account.n_waiting == waiting[account.tenant] <= account.n_open
            assert account.n_open == sum(one.account is account for one in there)

    @invariant()
    def what_was_begun_elsewhere_is_not_displaced(self):
        for name, end in self.ended.items():
            if isinstance(end.error, QueueFullError):
                assert self.mixed
                assert not self.requests[name].attempt
                assert end.stats.queue_s is None, "nor who had a slot"

    def teardown(self):
        if not hasattr(self, "limits"):
            return
        for request_id in self.unready():
            self.do(messages.Ready(request_id, self.now_s))
        self.do(messages.Resumed(self.now_s))
        for _ in range(2000):
            if self.emit is not None:
                self.emit = None
                self.do(messages.Emitted([], self.now_s))
            if self.plan is not None:
                plan, self.plan = self.plan, None
                self.computed(plan, lambda _: [7], {})
            elif self.scheduler.n_open:
                self.do(messages.TickBegun(self.now_s))
            else:
                break
        assert set(self.ended) == set(self.requests), "every request ends"
        assert self.scheduler.counts.left.n == self.scheduler.counts.n_ended == len(self.requests)
        assert self.scheduler.counts.left.n_tokens_of.total() == sum(
            r.n_prompt for r in self.requests.values()
        )
        assert self.scheduler.counts.left.n_of.total() == len(self.requests)
        self.check_charges()
        assert self.scheduler.slots.n_idle == self.limits.n_slots
        again = self.new_scheduler()
        assert [repr(again.handle(event)) for event in self.events] == self.told, "stories repeat"

    def check_charges(self):
        """One tenant is never lifted: its counter is what was computed for it, prompts once, output twice."""
        if self.mixed or self.all_failed:
            return
        served = 0
        for name, s in self.sequences.items():
            stats, one = self.ended[name].stats, self.requests[name]
            served += 0 if stats.queue_s is None else stats.n_prompt - stats.n_cached
            served += 2 * (len(s.tokens) - s.n_prompt - len(one.sent_tokens))
            assert s.account.n_open == s.account.n_waiting == 0
            assert s.account.served == self.sequences["r0"].account.served
        assert not self.sequences or self.sequences["r0"].account.served == served


SchedulerMachine.TestCase.settings = settings(stateful_step_count=40)
TestScheduler = SchedulerMachine.TestCase


@given(
    prompts=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3)), min_size=2, max_size=40),
    n_slots=st.integers(2, 12),
    chunk=st.integers(2, 24),
)
def test_nobody_is_passed_by_more_than_its_own_length_and_one_tick(prompts, n_slots, chunk):
    """Counted here, from the plans alone: tokens of later prompts that were computed before its own."""
    limits = EngineLimits(
        n_slots=n_slots, n_ctx_slot=64, n_cells=64 * n_slots, token_budget=chunk + n_slots,
        prefill_chunk=chunk, prefill_order="shortest", min_prefix=0,
    )  # fmt: skip
    scheduler, passed, waiting = Scheduler(limits, check_every=1), Counter(), list(enumerate(prompts))
    n_ticks = 0
    while waiting or scheduler.n_open:
        while (waiting and waiting[0][1][1] <= n_ticks) or (waiting and not scheduler.n_open):
            number, (n_prompt, _) = waiting.pop(0)
            prompt = tuple(range(n_prompt))
            scheduler.handle(
                messages.Submitted(
                    Request(request_id=str(number), prompt=prompt, max_tokens=1), now_s=float(n_ticks)
                )
            )
            n_ticks = 0
        n_ticks += 1
        out = scheduler.handle(messages.TickBegun(float(n_ticks)))
        plan = out[-1].plan
        by_slot, ahead = scheduler.slots.by_slot, []
        for prompt in [*(by_slot[c.slot_id] for c in plan.chunks), None]:
            others = [prompt] if prompt else [s for s in scheduler.slots.running if s not in ahead]
            for one in others:
                passed[one.request_id] += sum(
                    c.length
                    for c, before in zip(plan.chunks, ahead, strict=False)
                    if int(before.request_id) > int(one.request_id)
                )
            ahead.append(prompt)
        if scheduler.handle(messages.Sampled([7] * len(plan.rows), {}, 0.0)):
            scheduler.handle(messages.Emitted([], 0.0))
        scheduler.handle(messages.TickEnded(1.0))
    for number, (n_prompt, _) in enumerate(prompts):
        assert passed[str(number)] <= n_prompt + limits.token_budget
