"""The books of requests: which are open, where each of them is, and how it ends. Pure.

A request waits, or its slot is its own, or it is over. It ends with one Finish, whatever happens to it, and
gives its slot back once: at once, or when the pass that computes for it is over.
"""

from __future__ import annotations

from math import inf
from typing import TypeVar

from cobali_ray.core import messages
from cobali_ray.core.plan.goodput import Speculation
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.plan.plan import Plan
from cobali_ray.core.planner import Planner, Select
from cobali_ray.core.queue.admission import DrainRate, displaced
from cobali_ray.core.queue.counts import Counts
from cobali_ray.core.queue.fair import Accounts
from cobali_ray.core.queue.programs import Programs
from cobali_ray.core.queue.text_passes import EmbeddingJob, TextPasses
from cobali_ray.core.queue.waiting import MAX_PARKED, WaitingQueue
from cobali_ray.core.request.embedding import NO_EMBEDDINGS, EmbeddingKind, EmbeddingRequest
from cobali_ray.core.request.events import End, FinishReason
from cobali_ray.core.request.lifecycle import Status, StatusChange
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.core.tiers import Tiers
from cobali_ray.errors import CobaliError, DeadlineExceededError, InternalError, InvariantError

_T = TypeVar("_T", Sequence, EmbeddingJob)
_STAY_STEP = 0.1


class RequestBooks:
    """The requests of one engine. What follows from a change of theirs is in `_out`."""

    def __init__(
        self,
        limits: EngineLimits,
        end_tokens: frozenset[int],
        pacer: Pacer,
        select: Select,
        speculation: Speculation | None,
        embedding: EmbeddingKind | None,
    ) -> None:
        self.limits, self.pacer, self._end_tokens = limits, pacer, end_tokens
        self._out: list[messages.Instruction] = []
        self._instruct = self._out.append
        self.tiers = Tiers(limits, self._instruct, pacer.model.prefill_s)
        self.slots = self.tiers.slots
        self.planner = Planner(self.slots, limits, pacer, select, speculation)
        self.queue: WaitingQueue[Sequence] = WaitingQueue()
        """Requests that wait for a slot."""
        self.texts = TextPasses(embedding or NO_EMBEDDINGS)
        """Requests whose texts wait to be embedded."""
        self.accounts, self.programs = Accounts(), Programs()
        self._open: dict[str, Sequence | EmbeddingJob] = {}
        self._expires_s = inf
        """When the deadline of an open request passes at the earliest; it may have ended since."""
        self.counts = Counts()
        self._pass: Plan | None = None
        self._releasing: list[tuple[Sequence, bool]] = []
        """Requests that ended while the pass computes for them, and whether their cells may be kept."""
        self.drain_rate = DrainRate()
        self.stay_s = 0.0
        """How many seconds a request keeps its slot, as a moving mean."""
        self.head_waits = False
        """Whether the head of the queue did not fit in the last tick: then a free slot takes no request."""
        self.paused = False
        """Whether no request gets a slot, and running ones are parked."""

    @property
    def n_open(self) -> int:
        return len(self._open)

    @property
    def n_free_slots(self) -> int:
        """Slots that a new request could get in the next tick."""
        return 0 if self.head_waits or self.paused else self.slots.n_idle

    @property
    def drain_rps(self) -> float:
        """Requests that leave the queue per second; 0: too little is known.

        The rate of the last seconds says little of requests that keep their slots for minutes and end
        together, and at first none has waited; so it is at least what `stay_s` implies.
        """
        seen = self.drain_rate.rps
        return max(seen, self.limits.n_slots / self.stay_s) if self.stay_s else seen

    def sequence(self, request_id: str) -> Sequence:
        """Return the sequence of an open request; KeyError for a request for vectors."""
        if not isinstance(sequence := self._open[request_id], Sequence):
            raise KeyError(request_id)
        return sequence

    # -- they come ------------------------------------------------------------------------------------

    def _submitted(self, event: messages.Submitted) -> None:
        request, now_s = event.request, event.now_s
        arrived_s = now_s if event.arrived_s is None else event.arrived_s
        if request.request_id in self._open:
            raise InvariantError(f"request id {request.request_id} is in use")
        if isinstance(request, EmbeddingRequest):
            job = EmbeddingJob(request, self.accounts.open(request), arrived_s)
            self._enter(job)
            self.texts.queue.push(job, now_s)
            if (queue := self.texts.queue).n_lines > 1:
                wait_s = self.texts.wait_s
                self._displace(job, queue, 0, len(queue) / wait_s if wait_s else 0.0, now_s)
            return
        account = self.accounts.enter(request)
        sequence = Sequence(
            request, arrived_s=arrived_s, ready=event.ready, end_tokens=self._end_tokens, account=account
        )
        self._enter(sequence)
        sequence.since_s = self.programs.enter(request, arrived_s)
        self.tiers.look_on_disk(sequence, now_s)
        if request.sent_tokens:  # its client waits in the middle of an answer
            self.queue.push_front(sequence, now_s)
        else:
            self.queue.push(sequence, now_s)
        if self.accounts.several:
            self._displace(sequence, self.queue, self.n_free_slots, self.drain_rps, now_s)

    def _enter(self, open_request: Sequence | EmbeddingJob) -> None:
        self._open[open_request.request_id] = open_request
        self._expires_s = min(self._expires_s, open_request.deadline_s)

    def _displace(self, admitted: _T, queue: WaitingQueue[_T], n_free: int, rps: float, now_s: float) -> None:
        """Keep a queue within its bounds if the door admitted a request to a full one; see `displaced`."""
        while out := displaced(queue, admitted, n_free, self.limits, rps):
            self._end(out[0], now_s, out[1])

    # -- they end -------------------------------------------------------------------------------------

    def _end_open(self, request_id: str, now_s: float, error: CobaliError) -> None:
        """End a request with an error, if it is open."""
        if open_request := self._open.get(request_id):
            self._end(open_request, now_s, error)

    def _end(
        self, open_request: Sequence | EmbeddingJob, now_s: float, why: FinishReason | CobaliError
    ) -> None:
        if isinstance(open_request, Sequence):
            self._leave(open_request, now_s, why)
            self.accounts.leave(open_request)
        else:
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
        if isinstance(open_request, EmbeddingJob):
            self.counts.texts_left.add(open_request.line, 1, open_request.n_tokens)
        elif open_request.assigned_s is None:
            self.counts.left.add(open_request.line, 1, open_request.n_prompt)
        reason, error = (why, None) if isinstance(why, str) else (None, why)
        end = End(open_request.request_id, reason, error, open_request.stats(now_s), open_request.stop)
        self._instruct(messages.Finish(open_request.request.reply_to, end))

    def _expire(self, now_s: float) -> None:
        """End the open requests whose deadline has passed."""
        for open_request in list(self._open.values()):
            if open_request.deadline_s <= now_s and open_request.status is not Status.FINISHED:
                self._end(open_request, now_s, DeadlineExceededError(open_request.request.timeout_s or 0.0))
        later_s = [one.deadline_s for one in self._open.values() if one.deadline_s > now_s]
        self._expires_s = min(later_s, default=inf)

    def _end_all(self, now_s: float, error: CobaliError) -> None:
        """End every open request; the books may be what is broken, and are not used but begun anew."""
        for open_request in self._open.values():
            if isinstance(open_request, Sequence):
                open_request.leave_slot(now_s, open_request.n_computed)
            open_request.status = Status.ENDED
            self._tell_end(open_request, now_s, error)
        self._open.clear()
        self.queue, self.accounts, self._expires_s = WaitingQueue(), Accounts(), inf
        self.texts.clear()
        self.tiers.clear()
        self.slots = self.tiers.slots
        self.planner.use(self.slots)
        self._pass = None
        self._releasing.clear()
        self.head_waits = False

    # -- they give their slots back -------------------------------------------------------------------

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
            again_s = self.pacer.model.prefill_s(0, n_keep)
            self.slots.keep(slot_id, sequence, self.programs.answered(sequence.request, again_s, now_s))

    def _n_left(self, sequence: Sequence, n_computed: int) -> int:
        """Return how many of a slot's tokens other requests can reuse, 0 if it cannot be cut to that."""
        n = min(n_computed, sequence.request.n_plain or n_computed)
        return 0 if n < n_computed and self.limits.state_bytes else n

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
        self._queue_again(victim, now_s, keep=False)

    def _queue_again(self, sequence: Sequence, now_s: float, *, keep: bool) -> None:
        """Take its slot and put it to the head of its line; with `keep` the slot keeps what is computed."""
        self._release(sequence, now_s, sequence.n_computed, keep=keep)
        sequence.change(StatusChange.PREEMPT)
        self.queue.push_front(sequence, now_s)
        sequence.n_preempted += 1
        self.counts.n_preempted += 1
        self.counts.n_preempted_class[sequence.priority] += 1

    # -- proof ----------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Return what does not balance."""
        problems = [*self.slots.problems(), *self.tiers.host.problems(), *self.tiers.states.problems()]
        sequences = [s for s in self._open.values() if isinstance(s, Sequence)]
        problems += self.planner.problems()
        problems += self.texts.problems([j for j in self._open.values() if isinstance(j, EmbeddingJob)])
        waiting = [s.request_id for s in sequences if s.status.waiting]
        if sorted(waiting) != sorted(s.request_id for s in self.queue):
            problems.append("the queue and the waiting requests differ")
        in_slots = {s.request_id for s in self.slots.running if s.status is Status.RUNNING}
        if in_slots != {s.request_id for s in sequences if s.status is Status.RUNNING}:
            problems.append("the running requests and those in slots differ")
        if [s for s in self._open.values() if s.status.ended]:
            problems.append("an ended request is open")
        releasing = {s.request_id for s in self.slots.running if s.status is Status.RELEASING}
        if releasing != {s.request_id for s, _ in self._releasing} or (releasing and self._pass is None):
            problems.append("a request is releasing its slot and no pass computes for it")
        return problems
