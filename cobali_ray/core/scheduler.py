"""Scheduler: which requests wait, run and end, and what the next pass computes. Pure: no clock, no thread.

    events of messages.py  ───  handle(event)  ───►  instructions

It owns the whole state of scheduling: the queues, what slots, host memory and the disk hold, the deadlines,
the pass under way, the pacing. The engine carries out the instructions in order and decides nothing. What
becomes of a request outside of passes is in books.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import islice
from math import inf
from typing import Any

from cobali_ray.core import messages
from cobali_ray.core.books import RequestBooks
from cobali_ray.core.cost.ticktime import EnginePace
from cobali_ray.core.plan.goodput import Speculation
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.plan.plan import Plan
from cobali_ray.core.planner import Select, select_decoding
from cobali_ray.core.queue.counts import TextPass
from cobali_ray.core.queue.fair import OUTPUT_COST, yields
from cobali_ray.core.queue.text_passes import EmbeddingJob
from cobali_ray.core.queue.waiting import MAX_PARKED
from cobali_ray.core.request.embedding import EmbeddingKind
from cobali_ray.core.request.events import RequestStats
from cobali_ray.core.request.lifecycle import Status, StatusChange
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import MAX_PRIORITY, Request
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.core.story import Story
from cobali_ray.errors import BackendError, InternalError, InvariantError, RequestCancelledError

MAX_PLACED = 32
"""Requests that get slots in one tick. Placing one takes up to some 10 microseconds a slot, and streams wait;
a tick computes few prompts anyway."""
CHECK_EVERY = 4000
"""In production, `check` runs once in so many events."""


def _ends(sequence: Sequence, event: messages.Sampled, row: int) -> bool:
    """Return whether a sampled token ends an answer."""
    return event.tokens[row] in sequence.end_tokens or row in event.complete


class Scheduler(RequestBooks):
    """The state of one engine. `handle` is called by one thread; the counters may be read by others."""

    def __init__(
        self,
        limits: EngineLimits,
        *,
        end_tokens: frozenset[int] = frozenset(),
        pacer: Pacer | None = None,
        select: Select = select_decoding,
        speculation: Speculation | None = None,
        embedding: EmbeddingKind | None = None,
        check_every: int = CHECK_EVERY,
        story: Story | None = None,
    ) -> None:
        pacer = pacer or Pacer(None)
        self.story = story or Story()
        self.story.begin(
            limits=limits, end_tokens=end_tokens, pacer=pacer, speculation=speculation, embedding=embedding
        )
        super().__init__(limits, end_tokens, pacer, select, speculation, embedding)
        self._check_every, self._n_events = check_every, 0
        self._emit: messages.Emit | None = None
        """Tokens whose text has not been sent yet."""
        self._began_s = 0.0
        self._shared = False
        """Whether texts have used what the streams can spare in this tick."""
        self._handlers: dict[type, Callable[[Any], None]] = {
            messages.Submitted: self._submitted,
            messages.Ready: self._ready,
            messages.Cancelled: self._cancelled,
            messages.Paused: self._pause,
            messages.Resumed: self._resume,
            messages.TickBegun: self._tick_begun,
            messages.Embedded: self._embedded,
            messages.Refused: self._refused,
            messages.Sampled: self._sampled,
            messages.Emitted: self._emitted,
            messages.Moved: self.tiers.moved,
            messages.StatesMoved: self.tiers.states_moved,
            messages.Unrestored: self._unrestored,
            messages.Filled: self.tiers.fill,
            messages.Emptied: self.tiers.empty,
            messages.BlocksListed: lambda event: self.tiers.disk.listed(*event),
            messages.BlocksWritten: lambda event: self.tiers.disk.written(*event),
            messages.BlocksLoaded: self.tiers.loaded,
            messages.EngineStopping: lambda _: self.tiers.flush(),
            messages.TickEnded: self._tick_ended,
            messages.Failed: self._failed,
        }

    def handle(self, event: messages.Event) -> list[messages.Instruction]:
        """Handle one event; return the instructions, in order.

        Raises InvariantError for an event that cannot be, or if the books do not balance; its notes have the
        story. Only a Failed for all requests is handled then; its instructions include ends decided before.
        """
        try:
            self._handlers[type(event)](event)
            self._n_events += 1
            if self._n_events % self._check_every == 0:
                self.check()
        except Exception as error:  # whatever it is, its notes say how it came to that
            self.story.add(event, [*self._out])
            error.add_note(self.story.text())
            raise
        out = [*self._out]
        self._out.clear()
        self.story.add(event, out)
        return out

    # -- queries --------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a tick would do anything; requests that are not ready do not count."""
        waits = not self.paused and (self.queue.has_ready or self.texts.queue)
        return bool(self.slots.running or self._emit or waits)

    @property
    def next_deadline_s(self) -> float | None:
        """When an idle engine must tick: for a deadline, a request that waits for the disk, or a backup."""
        times = (self._expires_s, self.tiers.disk.soonest(), self.tiers.backup_due_s)
        soonest_s = min([at_s for at_s in times if at_s is not None])
        return None if soonest_s == inf else soonest_s

    def prefill_s(self, request: Request) -> float:
        """Return the seconds that the rest of a prompt takes; 0: too little is known. For any thread."""
        model = self.pacer.model
        if not model.knows_prefill:
            return 0.0
        if request.n_prompt_logprobs is not None:
            return model.prefill_s(0, request.n_prompt) + model.out_s * request.n_prompt
        tokens = array("i", request.common_prompt)
        return model.prefill_s(self.tiers.n_held(tokens, len(tokens) - 2, request.salt), request.n_prompt)

    @property
    def n_prefilling(self) -> int:
        """Sequences in a slot that have more to compute than the token sampled last."""
        return len(self.planner.prompts)

    def pace(self) -> EnginePace | None:
        """Return how fast prompts and running streams are computed; see `Pacer.pace`."""
        streams = self.planner.streams
        return self.pacer.pace(len(streams), sum([s.n_computed for s in streams]), self.limits)

    def life(self, request_id: str) -> RequestStats:
        """Return an open request's stats, up to its last token."""
        sequence = self.sequence(request_id)
        return sequence.stats(sequence.arrived_s if sequence.last_token_s is None else sequence.last_token_s)

    # -- what happens between ticks -------------------------------------------------------------------

    def _ready(self, event: messages.Ready) -> None:
        if isinstance(sequence := self._open.get(event.request_id), Sequence):
            sequence.note_ready()

    def _cancelled(self, event: messages.Cancelled) -> None:
        self._end_open(event.request_id, event.now_s, RequestCancelledError())

    def _pause(self, event: messages.Paused) -> None:
        self.paused = True
        self.drain_rate.note(0, event.now_s, waiting=False)  # the pause says nothing of how fast they leave

    def _resume(self, _: messages.Resumed) -> None:
        self.paused = False

    def _failed(self, event: messages.Failed) -> None:
        if event.request_id is not None:
            self._end_open(event.request_id, event.now_s, event.error)
            return
        self._out[:] = [instruction for instruction in self._out if isinstance(instruction, messages.Finish)]
        self._end_all(event.now_s, event.error)
        self._emit = None
        self._instruct(messages.Clear())

    # -- a tick begins --------------------------------------------------------------------------------

    def _tick_begun(self, event: messages.TickBegun) -> None:
        if self._pass is not None or self.texts.under_way:
            raise InvariantError("a tick began before the last pass was over")
        self._began_s = now_s = event.now_s
        self.counts.texts = TextPass()
        self.tiers.begin_tick(now_s)
        self.slots.now_s = now_s
        if now_s >= self._expires_s:
            self._expire(now_s)
        if self.paused:
            for running in self.slots.running[::-1]:  # so that the oldest is first in line again
                self._queue_again(running, now_s, keep=True)
            self.tiers.back_up(now_s, idle=True)
            return
        self._shared = self._embed(now_s)
        if not self._shared:
            self._go_on(now_s)

    def _embed(self, now_s: float) -> bool:
        """Embed texts in the time that streams can spare, if it is their turn; return whether it is."""
        if not self.texts.queue:
            return False
        left, others_wait = self.texts.waiting
        beside = left and any(running.priority != MAX_PRIORITY for running in self.slots.running)
        turn = beside and self.planner.leftovers.texts_turn()
        if beside and not (turn or others_wait):
            return False
        prompts_wait = self.n_prefilling > 0 or self.queue.has_ready
        if not self.texts.takes_turn(prompts_wait=prompts_wait and not turn):
            return False
        pieces, begun = self.texts.begin(
            self.planner.spare_s(), now_s, lambda job: not beside or (job.priority == MAX_PRIORITY) == turn
        )
        if pieces:
            self._instruct(messages.Embed(pieces, begun))
        return bool(pieces)

    def _embedded(self, event: messages.Embedded) -> None:
        if not self.texts.under_way:
            raise InvariantError("no texts are under way")
        pieces, now_s = self.texts.under_way, event.now_s
        self.counts.texts = self.texts.end(now_s - self._began_s)
        for request_id, error in event.failed.items():
            self._end_open(request_id, now_s, error)
        for piece in pieces:
            if isinstance(job := self._open.get(piece.request.request_id), EmbeddingJob):
                self.texts.computed(piece, job)
                self.counts.texts_left.add(job.line, 0, len(piece.tokens))
                if not job.n_texts:
                    self._end(job, now_s, "stop")
        self._began_s = now_s
        self._go_on(now_s)

    def _go_on(self, now_s: float) -> None:
        """Begin the part of a tick that computes tokens."""
        self._assign(now_s)
        if self.tiers.close_gaps(self.pacer.model.runs_s):
            self.planner.changed()
        self._plan(now_s)
        self.tiers.back_up(now_s, idle=not self.has_work)

    def _assign(self, now_s: float) -> None:
        n_assigned = 0
        for _ in range(MAX_PLACED):
            sequence = self._next(now_s)
            if sequence is not None and not self.slots.fits(sequence):
                self.head_waits = True
                if (sequence := self._claim(now_s)) is None:
                    break
            if sequence is None or (place := self.tiers.place(sequence)) is None:
                self.head_waits = sequence is not None
                break
            self._instruct(messages.Assign(place.slot_id, sequence.request_id))
            self.slots.assign(sequence, place)
            sequence.cuts = self.tiers.cuts(sequence, place)
            if self.queue.turn(sequence, now_s):
                sequence.n_parked = MAX_PARKED  # after so long a wait it keeps its slot
            self.queue.remove(sequence)
            sequence.change(StatusChange.ASSIGN)
            sequence.enter_slot(now_s)
            if sequence.assigned_s is None:
                sequence.assigned_s, sequence.n_cached = now_s, min(place.n_keep, sequence.n_prompt)
                sequence.account.charge(sequence.n_prompt - sequence.n_cached)
                if not (place.from_host and sequence.cached_from == "disk"):
                    sequence.cached_from = place.tier
                self.counts.left.add(sequence.line, 1, sequence.n_prompt)
                n_assigned += 1
            self.planner.changed()
        else:
            self.head_waits = False  # all requests that were looked at did fit
        self.drain_rate.note(n_assigned, now_s, waiting=self.head_waits)

    def _next(self, now_s: float) -> Sequence | None:
        """Return the request for the next slot: the first in the queue that should not wait.

        Two kinds should: programs that began later than one for which a slot is kept, and prompts whose
        beginning is being computed for another and can be copied then. That is no later than computing both,
        which would share the ticks; a prompt that yields to this one would be later, and does not count.
        """
        ready = self.queue.ready(now_s)
        if not self.slots.n_idle:
            return next(ready, None)
        ready = (s for s in islice(ready, MAX_PLACED) if not self.slots.keeps_out(s))
        return next((s for s in ready if not self.tiers.n_coming(s)), None)

    def _claim(self, now_s: float) -> Sequence | None:
        """Preempt others for a request if its class or its tenant's share allows it; return the request.

        It is the next one by class alone: a long wait entitles to a free slot, not to another's.
        """
        if not self.accounts.several:
            return None
        claimant = next(self.queue.ready(), None)
        if claimant is None or not any(yields(s.rank, claimant.rank) for s in self.slots.running):
            return None
        for victim in self.slots.victims(claimant, self.accounts.weights(claimant.priority)):
            victim.n_parked += 1
            self._preempt(victim, now_s)
            if self.slots.fits(claimant):
                return claimant
        return None

    def _plan(self, now_s: float) -> None:
        """Decide what is computed next, if anything, and make room for it."""
        next_pass = self.planner.next(now_s, streams_gave=self._shared)
        while next_pass.plan.n_tokens and (n := self.slots.n_short(next_pass.plan.n_tokens)) > 0:
            if not self.tiers.drop_idle(n):
                self._preempt_youngest(now_s, InternalError("no room when alone"))
            next_pass = self.planner.next(now_s, streams_gave=self._shared)
        if next_pass.plan.n_tokens:
            self._pass, self.counts.shape = next_pass.plan, next_pass.shape
            self.counts.n_adapter_changes += self.planner.begin(next_pass, now_s)
            self._instruct(messages.Compute(next_pass.plan))

    # -- the pass is over -----------------------------------------------------------------------------

    def _take_pass(self) -> Plan:
        plan, self._pass = self._pass, None
        if plan is None:
            raise InvariantError("no pass is under way")
        return plan

    def _refused(self, event: messages.Refused) -> None:
        self._take_pass()
        culprit = None if event.slot_id is None else self.slots.by_slot[event.slot_id]
        self._let_go(event.now_s)
        if event.slot_id is None:
            # Our own count is wrong: believe the cache, and free all idle prefixes.
            while self.tiers.drop_idle():
                pass
            if self.slots.running:
                self._preempt_youngest(event.now_s, BackendError(str(event.error)))
        elif culprit is None:
            raise InvariantError(f"slot {event.slot_id} is at fault and idle: {event.error}")
        elif not culprit.status.ended:
            self._end(culprit, event.now_s, InternalError(str(event.error)))
        self._plan(event.now_s)

    def _unrestored(self, event: messages.Unrestored) -> None:
        self._take_pass()
        self.tiers.unrestored(event)
        self.planner.changed()  # what is before an adapter is invoked has to be computed, too
        self._plan(event.now_s)

    def _sampled(self, event: messages.Sampled) -> None:
        if self._emit is not None:
            raise InvariantError("tokens were sampled before those of the last pass were emitted")
        now_s = event.now_s
        rows = self.slots.at(self._pass.rows) if self._pass is not None else []
        if event.n_each is not None:
            rows = [s for s, n in zip(rows, event.n_each, strict=True) for _ in range(n)]
        for row, problem in event.failed.items():
            if self._pass is not None and (failed := rows[row]).status is Status.RUNNING:
                self._end(failed, now_s, problem)
        plan = self._take_pass()  # ended requests keep their slots, and so their rows, until `_let_go`
        self.slots.n_cells_running += plan.n_tokens
        self.counts.n_drafted = self.counts.n_accepted = 0
        if plan.drafts and event.n_each is not None:
            self._judge(plan, self.slots.at(plan.rows), event)
        if plan.chunks:
            self.planner.passed(plan)
            self._prefilled(plan)
        running = Status.RUNNING
        fresh: list[messages.Drawn] = []
        last: Sequence | None = None
        gaps: list[float] = []
        ttfts: list[float] = []
        for row, (sequence, token) in enumerate(zip(rows, event.tokens, strict=True)):
            if sequence.status is not running:
                continue
            tokens = sequence.tokens
            if len(tokens) >= sequence.n_most:  # only its prompt was to be computed
                sequence.first_token_s = now_s
                ttfts.append(now_s - sequence.arrived_s)
                self._end(sequence, now_s, "length")
                continue
            tokens.append(token)
            sequence.account.charge(OUTPUT_COST)
            if not sequence.decoding:
                sequence.decoding = True
                self.planner.changed()
            if sequence.last_token_s is None:
                sequence.first_token_s = now_s
                if not sequence.request.sent_tokens:  # else its first one came elsewhere
                    ttfts.append(now_s - sequence.arrived_s)
                self.planner.leftovers.spoke(sequence, now_s)
            elif last is not sequence:
                gaps.append(now_s - sequence.last_token_s)
            sequence.last_token_s, last = now_s, sequence
            if _ends(sequence, event, row):
                self._finish(sequence, now_s, "stop")
            elif len(tokens) >= sequence.n_most:
                self._finish(sequence, now_s, "length")
            fresh.append((sequence.request_id, token, row, sequence.ending))
        self.counts.gaps, self.counts.ttfts = gaps, ttfts
        self._let_go(now_s, computed=True)
        if fresh:
            self._emit = messages.Emit(tuple(fresh))
            self._instruct(self._emit)

    def _judge(self, plan: Plan, rows: Seq[Sequence], event: messages.Sampled) -> None:
        """Cut the cells of rejected draft tokens, and of those after the end of an answer."""
        end = 0
        for sequence, n in zip(rows, event.n_each or (), strict=True):
            start, end = end, end + n
            n_draft = len(plan.draft(sequence.slot_id))
            ends = (at for at in range(start, end) if _ends(sequence, event, at))
            n_kept = next(ends, end - 1) + 1 - start
            if sequence.status is not Status.RUNNING:  # it ended meanwhile, or failed
                n_kept = 1  # it keeps its own token, and no draft
            if n_draft >= n_kept:
                self.slots.n_cells_running -= n_draft + 1 - n_kept
                self._instruct(messages.Truncate(sequence.slot_id, sequence.n_computed + n_kept))
            if n_draft:
                self.counts.n_drafted += n_draft
                self.counts.n_accepted += n_kept - 1

    def _prefilled(self, plan: Plan) -> None:
        for slot_id, start, length, _ in plan.chunks:
            end = start + length
            if (sequence := self.slots.by_slot[slot_id]) is not None:
                if start < sequence.request.n_plain <= end:
                    self.planner.changed()
                sequence.n_prefilled += length
                sequence.n_scored = max(sequence.n_scored, min(end + 1, sequence.n_prompt))
                if end in sequence.cuts and sequence.status is Status.RUNNING:
                    self.tiers.keep_state(slot_id, sequence.tokens, end, sequence.salt)

    def _emitted(self, event: messages.Emitted) -> None:
        emit, self._emit = self._emit, None
        if emit is None:
            raise InvariantError("nothing was to be emitted")
        for request_id, stop, n_dropped in event.stopped:
            if not isinstance(sequence := self._open.get(request_id), Sequence):
                continue
            sequence.ending, sequence.stop, sequence.n_dropped = "stop", stop, n_dropped
            if sequence.status is not Status.FINISHED:
                self._end(sequence, event.now_s, "stop")
        for request_id, _, _, ending in emit.tokens:
            if ending and isinstance(sequence := self._open.get(request_id), Sequence):
                self._end(sequence, event.now_s, sequence.ending or ending)

    def _tick_ended(self, event: messages.TickEnded) -> None:
        seconds = event.now_s - self._began_s - self.tiers.moves.spent_s
        speculation = self.planner.speculation
        expected_s = 0.0 if speculation is None else speculation.learn(seconds)
        if self.counts.n_drafted:
            self.counts.predicted_s = expected_s
        else:
            self.counts.predicted_s = self.pacer.learn(self.counts.shape, seconds)

    # -- the books ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Prove that the books balance. Raises InvariantError."""
        problems = self.problems()
        emitting = {request_id for request_id, *_ in (self._emit.tokens if self._emit else ())}
        if [s for s in self._open.values() if s.status is Status.FINISHED and s.request_id not in emitting]:
            problems.append("a finished request has no text left to tell")
        if problems:
            raise InvariantError("; ".join(problems))
