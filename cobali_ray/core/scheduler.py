"""Scheduler: which requests wait, run and end, and what the next pass computes. Pure: no clock, no thread.

    events                                                      instructions
    Submitted, Ready, Cancelled,            handle(event)       Truncate, Copy, Save, Restore, Forget,
    Paused, Resumed, TickBegun, Embedded,  ──────────────►      SaveState, RestoreState, ForgetStates,
    Refused, Sampled, Emitted, TickEnded,                       LoadBlocks, Hold, StoreBlocks, StoreState,
    Failed, Moved, StatesMoved, Unrestored,                     Assign, Swap, Embed, Compute, Emit, Finish,
    Filled, Emptied, BlocksListed,                              BackUp, Clear
    BlocksWritten, BlocksLoaded, EngineStopping

It owns the whole state of scheduling: the queues, what slots, host memory and the disk hold, the deadlines,
the pass under way, the pacing. The engine carries out the instructions in order and decides nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import islice
from math import inf
from typing import Any, TypeVar

from cobali_ray.core import messages
from cobali_ray.core.cache.placement import Placement
from cobali_ray.core.cache.states import cuts_of, sparse_step
from cobali_ray.core.cost.ticktime import EnginePace
from cobali_ray.core.plan.goodput import Speculation
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.plan.plan import Plan
from cobali_ray.core.planner import Planner, Select, select_decoding
from cobali_ray.core.queue.admission import DrainRate, displaced
from cobali_ray.core.queue.counts import NO_TEXTS, Counts
from cobali_ray.core.queue.fair import OUTPUT_COST, Accounts, yields
from cobali_ray.core.queue.programs import Programs
from cobali_ray.core.queue.text_passes import EmbeddingJob, TextPasses
from cobali_ray.core.queue.waiting import MAX_PARKED, WaitingQueue
from cobali_ray.core.request.embedding import EmbeddingKind, EmbeddingRequest
from cobali_ray.core.request.events import End, FinishReason, RequestStats
from cobali_ray.core.request.lifecycle import Status, StatusChange
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import MAX_PRIORITY, Request
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.core.story import Story
from cobali_ray.core.tiers import Tiers
from cobali_ray.errors import (
    BackendError,
    CobaliError,
    DeadlineExceededError,
    InternalError,
    InvariantError,
    RequestCancelledError,
)

_T = TypeVar("_T", Sequence, EmbeddingJob)
MAX_PLACED = 32
"""Requests that get slots in one tick. Placing one takes up to some 10 microseconds a slot, and streams wait;
a tick computes few prompts anyway."""
_STAY_STEP = 0.1
_STATE_MOVES = 4.0
"""Times that moving a state takes which computing again must, for it to be saved: it is moved twice if it is
of use at all, and the pass that ends where it lies is one more."""
CHECK_EVERY = 4000
"""In production, `check` runs once in so many events."""


def _ends(sequence: Sequence, event: messages.Sampled, row: int) -> bool:
    """Return whether a sampled token ends an answer."""
    return event.tokens[row] in sequence.end_tokens or row in event.complete


class Scheduler:
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
        self.limits, self._end_tokens = limits, end_tokens
        self.pacer = pacer or Pacer(None)
        self.story = story or Story()
        self.story.begin(
            limits=limits,
            end_tokens=end_tokens,
            pacer=self.pacer,
            speculation=speculation,
            embedding=embedding,
        )
        self._check_every, self._n_events = check_every, 0
        self._out: list[messages.Instruction] = []
        self._instruct = self._out.append
        self.tiers = Tiers(limits, self._instruct, self._compute_s)
        self.slots = self.tiers.slots
        self.planner = Planner(self.slots, limits, self.pacer, select, speculation)
        self.queue: WaitingQueue[Sequence] = WaitingQueue()
        """Requests that wait for a slot."""
        self.texts = None if embedding is None else TextPasses(embedding)
        """Requests whose texts wait to be embedded."""
        self.accounts, self.programs = Accounts(), Programs()
        self._open: dict[str, Sequence | EmbeddingJob] = {}
        self._expires_s = inf
        """When the deadline of an open request passes at the earliest; it may have ended since."""
        self.counts = Counts()
        self._pass: Plan | None = None
        self._emit: messages.Emit | None = None
        """Tokens whose text has not been sent yet."""
        self._releasing: list[tuple[Sequence, bool]] = []
        """Requests that ended while the pass computes for them, and whether their cells may be kept."""
        self._began_s = 0.0
        self._shared = False
        """Whether texts have used what the streams can spare in this tick."""
        self.drain_rate = DrainRate()
        self.stay_s = 0.0
        """How many seconds a request keeps its slot, as a moving mean."""
        self.head_waits = False
        """Whether the head of the queue did not fit in the last tick: then a free slot takes no request."""
        self.paused = False
        """Whether no request gets a slot, and running ones are parked."""
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
            messages.EngineStopping: self.tiers.flush,
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
        waits = not self.paused and (self.queue.has_ready or self.n_embedding)
        return bool(self.slots.running or self._emit or waits)

    @property
    def n_embedding(self) -> int:
        """Open requests for vectors."""
        return 0 if self.texts is None else len(self.texts.queue)

    @property
    def n_free_slots(self) -> int:
        """Slots that a new request could get in the next tick."""
        return 0 if self.head_waits or self.paused else self.slots.n_idle

    @property
    def n_open(self) -> int:
        return len(self._open)

    @property
    def next_deadline_s(self) -> float | None:
        """When an idle engine must tick: for a deadline, a request that waits for the disk, or a backup."""
        times = (self._expires_s, self.tiers.disk.soonest(), self.tiers.backup_due_s)
        soonest_s = min([at_s for at_s in times if at_s is not None])
        return None if soonest_s == inf else soonest_s

    @property
    def drain_rps(self) -> float:
        """Requests that leave the queue per second; 0: too little is known.

        The rate of the last seconds says little of requests that keep their slots for minutes and end
        together, and at first none has waited; so it is at least what `stay_s` implies.
        """
        seen = self.drain_rate.rps
        return max(seen, self.limits.n_slots / self.stay_s) if self.stay_s else seen

    def prefill_s(self, request: Request) -> float:
        """Return the seconds that the rest of a prompt takes; 0: too little is known. For any thread."""
        if not self.pacer.model.knows_prefill:
            return 0.0
        if request.n_prompt_logprobs is not None:
            return self._compute_s(0, request.n_prompt) + self.pacer.model.out_s * request.n_prompt
        tokens = array("i", request.common_prompt)
        return self._compute_s(self.tiers.n_held(tokens, len(tokens) - 2, request.salt), request.n_prompt)

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

    def sequence(self, request_id: str) -> Sequence:
        """Return the sequence of an open request; KeyError for a request for vectors."""
        if not isinstance(sequence := self._open[request_id], Sequence):
            raise KeyError(request_id)
        return sequence

    # -- requests come and go -------------------------------------------------------------------------

    def _submitted(self, event: messages.Submitted) -> None:
        request, arrived_s = event.request, event.now_s if event.arrived_s is None else event.arrived_s
        if request.request_id in self._open:
            raise InvariantError(f"request id {request.request_id} is in use")
        if isinstance(request, EmbeddingRequest):
            self._submitted_texts(request, arrived_s, event.now_s)
            return
        sequence = Sequence(
            request,
            arrived_s=arrived_s,
            ready=event.ready,
            end_tokens=self._end_tokens,
            account=self.accounts.enter(request),
        )
        self._open[request.request_id] = sequence
        sequence.since_s = self.programs.enter(request, arrived_s)
        self.tiers.look_on_disk(sequence, event.now_s)
        if request.sent_tokens:  # its client waits in the middle of an answer
            self.queue.push_front(sequence, event.now_s)
        else:
            self.queue.push(sequence, event.now_s)
        self._expires_s = min(self._expires_s, sequence.deadline_s)
        if self.accounts.several:
            self._displace(sequence, self.queue, self.n_free_slots, self.drain_rps, event.now_s)

    def _submitted_texts(self, request: EmbeddingRequest, arrived_s: float, now_s: float) -> None:
        if self.texts is None:
            raise InvariantError("this model does not embed")
        job = EmbeddingJob(request, self.accounts.open(request), arrived_s)
        self._open[request.request_id] = job
        self.texts.queue.push(job, now_s)
        self._expires_s = min(self._expires_s, job.deadline_s)
        if (queue := self.texts.queue).n_lines > 1:
            wait_s = self.texts.wait_s
            self._displace(job, queue, 0, len(queue) / wait_s if wait_s else 0.0, now_s)

    def _displace(self, admitted: _T, queue: WaitingQueue[_T], n_free: int, rps: float, now_s: float) -> None:
        """Keep a queue within its bounds if the door admitted a request to a full one; see `displaced`."""
        while out := displaced(queue, admitted, n_free, self.limits, rps):
            self._end(out[0], now_s, out[1])

    def _ready(self, event: messages.Ready) -> None:
        if isinstance(sequence := self._open.get(event.request_id), Sequence):
            sequence.note_ready()

    def _cancelled(self, event: messages.Cancelled) -> None:
        if open_request := self._open.get(event.request_id):
            self._end(open_request, event.now_s, RequestCancelledError())

    def _pause(self, event: messages.Paused) -> None:
        self.paused = True
        self.drain_rate.note(0, event.now_s, waiting=False)  # the pause says nothing of how fast they leave

    def _resume(self, event: messages.Resumed) -> None:
        del event
        self.paused = False

    def _failed(self, event: messages.Failed) -> None:
        if event.request_id is not None:
            if open_request := self._open.get(event.request_id):
                self._end(open_request, event.now_s, event.error)
            return
        self._out[:] = [instruction for instruction in self._out if isinstance(instruction, messages.Finish)]
        for open_request in self._open.values():  # the books may be what is broken: they are not used
            if isinstance(open_request, Sequence):
                open_request.leave_slot(event.now_s, open_request.n_computed)
            open_request.status = Status.ENDED
            self._tell_end(open_request, event.now_s, event.error)
        self._open.clear()
        self.queue, self.accounts, self._expires_s = WaitingQueue(), Accounts(), inf
        if self.texts is not None:
            self.texts.clear()
        self.tiers.clear()
        self.slots = self.tiers.slots
        self.planner.use(self.slots)
        self._pass = self._emit = None
        self._releasing.clear()
        self.head_waits = False
        self._instruct(messages.Clear())

    def _end(
        self, open_request: Sequence | EmbeddingJob, now_s: float, why: FinishReason | CobaliError
    ) -> None:
        if isinstance(open_request, Sequence):
            self._leave(open_request, now_s, why)
            self.accounts.leave(open_request)
        else:
            if self.texts is not None:
                self.texts.remove(open_request)
            open_request.change(StatusChange.END)
            self.accounts.close(open_request.account)
        del self._open[open_request.request_id]  # last: if anything above raises, its end is still to be sent
        self._tell_end(open_request, now_s, why)

    def _leave(self, sequence: Sequence, now_s: float, why: FinishReason | CobaliError) -> None:
        """Take an ending request out of the queue or its slot."""
        status = sequence.status
        if status.waiting:
            self.queue.remove(sequence)
            self.head_waits = self.head_waits and len(self.queue) > 0
        # What went wrong inside may have left cells that nobody should begin with.
        clean = not isinstance(why, InternalError)
        if status is Status.RUNNING and self._pass is not None and self._pass.computes(sequence.slot_id):
            self._releasing.append((sequence, clean))
            sequence.change(StatusChange.END_IN_FLIGHT)
        else:
            if status is Status.RUNNING:
                self._release(sequence, now_s, sequence.n_computed, keep=clean)
            sequence.change(StatusChange.END)

    def _tell_end(
        self, open_request: Sequence | EmbeddingJob, now_s: float, why: FinishReason | CobaliError
    ) -> None:
        self.counts.n_ended += 1
        reason, error = (why, None) if isinstance(why, str) else (None, why)
        stop = None
        if isinstance(open_request, EmbeddingJob):
            self.counts.texts_left.add(open_request.line, 1, open_request.n_tokens)
        else:
            if open_request.assigned_s is None:
                self.counts.left.add(open_request.line, 1, open_request.n_prompt)
            stop = open_request.stop if reason == "stop" else None
        self._instruct(
            messages.Finish(
                open_request.request.reply_to,
                End(open_request.request_id, reason, error, open_request.stats(now_s), stop),
            )
        )

    def _release(self, sequence: Sequence, now_s: float, n_computed: int, *, keep: bool) -> None:
        slot_id = sequence.slot_id
        keep = keep and self.limits.min_prefix > 0 and sequence.salt is not None
        n_keep = self._n_left(sequence, n_computed) if keep else 0
        self.slots.release(sequence, n_computed=n_computed, n_keep=n_keep)
        self.tiers.backups.ended(slot_id, now_s)
        sequence.leave_slot(now_s, n_computed)
        stay_s = now_s - sequence.stays[-1].since_s
        self.stay_s += (_STAY_STEP if self.stay_s else 1.0) * (stay_s - self.stay_s)
        self.planner.changed()
        if not n_keep or n_keep < n_computed:
            self._instruct(messages.Truncate(slot_id, n_keep))
        if n_keep and sequence.ending is not None and sequence.request.program is not None:
            until_s = self.programs.answered(sequence.request, self._compute_s(0, n_keep), now_s)
            self.slots.keep(slot_id, sequence, until_s)

    def _n_left(self, sequence: Sequence, n_computed: int) -> int:
        """Return how many of a slot's tokens other requests can reuse, 0 if it cannot be cut to that."""
        n = min(n_computed, sequence.request.n_plain or n_computed)
        return 0 if n < n_computed and self.limits.state_bytes else n

    # -- a tick begins --------------------------------------------------------------------------------

    def _tick_begun(self, event: messages.TickBegun) -> None:
        if self._pass is not None or (self.texts is not None and self.texts.under_way):
            raise InvariantError("a tick began before the last pass was over")
        self._began_s = now_s = event.now_s
        self.counts.texts = NO_TEXTS
        self.tiers.begin_tick(now_s)
        self.slots.now_s = now_s
        if now_s >= self._expires_s:
            self._expire(now_s)
        if self.paused:
            for running in self.slots.running[::-1]:  # so that the oldest is first in line again
                self._park(running, now_s)
            self.tiers.back_up(now_s, idle=True)
            return
        self._shared = self.texts is not None and self._embed(self.texts, now_s)
        if not self._shared:
            self._go_on(now_s)

    def _expire(self, now_s: float) -> None:
        """End the open requests whose deadline has passed."""
        for open_request in list(self._open.values()):
            if open_request.deadline_s <= now_s and open_request.status is not Status.FINISHED:
                self._end(open_request, now_s, DeadlineExceededError(open_request.request.timeout_s or 0.0))
        later_s = [
            open_request.deadline_s for open_request in self._open.values() if open_request.deadline_s > now_s
        ]
        self._expires_s = min(later_s, default=inf)

    def _embed(self, texts: TextPasses, now_s: float) -> bool:
        """Embed texts in the time that streams can spare, if it is their turn; return whether it is."""
        if not texts.queue:
            return False
        left, others_wait = texts.waiting
        beside = left and any(running.priority != MAX_PRIORITY for running in self.slots.running)
        turn = beside and self.planner.leftovers.texts_turn()
        if beside and not (turn or others_wait):
            return False
        prompts_wait = self.n_prefilling > 0 or self.queue.has_ready
        if not texts.takes_turn(prompts_wait=prompts_wait and not turn):
            return False
        spare_s = inf
        if streams := self.planner.streams:
            decode_s = self.pacer.model.decode_s(len(streams), self.slots.n_cells_running)
            spare_s = self.pacer.most_s(decode_s) - decode_s
        pieces = texts.begin(spare_s, now_s, lambda job: not beside or (job.priority == MAX_PRIORITY) == turn)
        if not pieces:
            return False
        requests = dict.fromkeys([piece.request for piece in pieces])
        begun = tuple([request for request in requests if self._open[request.request_id].assigned_s == now_s])
        self._instruct(messages.Embed(pieces, begun))
        return True

    def _embedded(self, event: messages.Embedded) -> None:
        if self.texts is None or not self.texts.under_way:
            raise InvariantError("no texts are under way")
        pieces, now_s = self.texts.under_way, event.now_s
        self.counts.texts = self.texts.end(now_s - self._began_s)
        for request_id, error in event.failed.items():
            if open_request := self._open.get(request_id):
                self._end(open_request, now_s, error)
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
            if self.limits.n_states:
                sequence.cuts = self._cuts(sequence, place)
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

    def _cuts(self, sequence: Sequence, place: Placement) -> tuple[int, ...]:
        """Return at which tokens a prompt's state is to be saved for later prompts that begin alike."""
        if sequence.salt is None:
            return ()
        cuts = cuts_of(
            start=place.n_keep,
            end=sequence.n_reusable,
            turns=sequence.request.turns,
            fork=place.n_alike,
            least=self.limits.state_step,
            step=sparse_step(self.limits.n_states, self.limits.n_ctx_slot),
            pays=self._state_pays,
        )
        rows = sequence.request.rows
        return tuple([n for n in cuts if not any(part.start < n <= part.end + 1 for part in rows)])

    def _state_pays(self, start: int, end: int) -> bool:
        """Return whether computing these tokens takes clearly longer than saving and restoring a state."""
        compute_s = self._compute_s(start, end)
        return not compute_s or compute_s >= _STATE_MOVES * self.tiers.states.seconds

    def _compute_s(self, start: int, end: int) -> float:
        """Return the seconds that these tokens of a prompt take; 0: too little is known."""
        model = self.pacer.model
        return model.chunk_s(start, end - start) if model.knows_prefill and end > start else 0.0

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

    def _preempt_youngest(self, now_s: float, error: CobaliError) -> None:
        """Preempt the youngest sequence for its cells; the only one ends with `error`."""
        victim = self.slots.youngest()
        if victim is None:
            self._end(self.slots.running[0], now_s, error)
            return
        if victim is not self.slots.running[-1]:
            victim.n_parked = min(victim.n_parked + 1, MAX_PARKED)
        self._preempt(victim, now_s)

    def _preempt(self, victim: Sequence, now_s: float) -> None:
        """Put a sequence back to the head of its line; host memory keeps what is computed."""
        n = self._n_left(victim, victim.n_computed)
        self.tiers.save(victim.slot_id, victim.tokens, n, victim.salt)
        self._release(victim, now_s, victim.n_computed, keep=False)
        self._queue_again(victim, now_s)

    def _park(self, running: Sequence, now_s: float) -> None:
        """Do the same when no other request wants the slot, which keeps what is computed."""
        self._release(running, now_s, running.n_computed, keep=True)
        self._queue_again(running, now_s)

    def _queue_again(self, sequence: Sequence, now_s: float) -> None:
        sequence.change(StatusChange.PREEMPT)
        self.queue.push_front(sequence, now_s)
        sequence.n_preempted += 1
        self.counts.n_preempted += 1
        self.counts.n_preempted_class[sequence.priority] += 1

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

    def _finish(self, sequence: Sequence, now_s: float, reason: FinishReason) -> None:
        """Free the slot of a sequence whose last token was sampled; its end is sent with its text."""
        sequence.ending = reason
        self._release(sequence, now_s, len(sequence.tokens) - 1, keep=True)
        sequence.change(StatusChange.FINISH)

    def _let_go(self, now_s: float, *, computed: bool = False) -> None:
        """Free the slots of requests that ended during the pass that is over."""
        for sequence, keep in self._releasing:
            n_computed = sequence.n_computed + int(computed and sequence.decoding)
            self._release(sequence, now_s, n_computed, keep=keep)
            sequence.change(StatusChange.RELEASE)
        self._releasing.clear()

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
        problems = [*self.slots.problems(), *self.tiers.host.problems(), *self.tiers.states.problems()]
        problems += self.planner.problems()
        sequences = [s for s in self._open.values() if isinstance(s, Sequence)]
        if self.texts is not None:
            problems += self.texts.problems([j for j in self._open.values() if isinstance(j, EmbeddingJob)])
        waiting = [s.request_id for s in sequences if s.status.waiting]
        if sorted(waiting) != sorted(s.request_id for s in self.queue):
            problems.append("the queue and the waiting requests differ")
        in_slots = {s.request_id for s in self.slots.running if s.status is Status.RUNNING}
        if in_slots != {s.request_id for s in sequences if s.status is Status.RUNNING}:
            problems.append("the running requests and those in slots differ")
        if [s for s in self._open.values() if s.status.ended]:
            problems.append("an ended request is open")
        unsent = {s.request_id for s in sequences if s.status is Status.FINISHED}
        if unsent - {request_id for request_id, *_ in (self._emit.tokens if self._emit else ())}:
            problems.append("a finished request has no text left to tell")
        releasing = {s.request_id for s in self.slots.running if s.status is Status.RELEASING}
        if releasing != {s.request_id for s, _ in self._releasing} or (releasing and self._pass is None):
            problems.append("a request is releasing its slot and no pass computes for it")
        if problems:
            raise InvariantError("; ".join(problems))
