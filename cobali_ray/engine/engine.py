"""Engine.tick(): assign, plan, forward, sample, publish. One thread calls everything here."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeAlias

from cobali_ray.backend.port import Backend
from cobali_ray.backend.sampling import RowSampler, Sampled
from cobali_ray.backend.select import HostSelector, Selector
from cobali_ray.core.admission import DrainRate
from cobali_ray.core.clock import Clock
from cobali_ray.core.deadlines import Deadlines
from cobali_ray.core.events import End, Event, FinishReason
from cobali_ray.core.lifecycle import Change, Status
from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.pace import Pacer
from cobali_ray.core.queue import WaitingQueue
from cobali_ray.core.request import Request
from cobali_ray.core.sequence import NO_SLOT, Sequence
from cobali_ray.core.slots import SlotTable
from cobali_ray.core.stats import TickStats
from cobali_ray.engine.emit import Emitter, Fresh
from cobali_ray.engine.layout import Layout, Pass
from cobali_ray.engine.record import Recorder, TickTimes
from cobali_ray.errors import (
    BackendError,
    BadRequestError,
    CacheFullError,
    CobaliError,
    DeadlineExceededError,
    InternalError,
    RequestCancelledError,
    SlotFaultError,
)

Sink: TypeAlias = Callable[[list[tuple[str, Event]]], None]
"""Takes one tick's events with the address each one goes to."""


class Engine:
    """Requests in, events out, one `tick` at a time.

    Order of work: on a backend that computes inside `forward` (a CPU) a tick's tokens are published at
    its end. On one that returns early (a GPU) they are published while the *next* pass computes, and the
    batch after that is laid out in the second input buffer with its decode tokens patched in once they
    are sampled (the carry-over of asynchronous batching, as far as a host-side API allows).
    """

    def __init__(
        self,
        backend: Backend,
        limits: EngineLimits,
        clock: Clock,
        sink: Sink,
        *,
        pacer: Pacer | None = None,
        selector: Selector | None = None,
        entropy: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        self._pacer = pacer or Pacer(None)
        self._backend, self._limits, self._clock, self._sink = backend, limits, clock, sink
        self._entropy = entropy
        self._slots = SlotTable(limits)
        self._layout = Layout(limits, self._pacer, selector or HostSelector(), self._slots, backend.n_batch)
        self._queue = WaitingQueue()
        self._open: dict[str, Sequence] = {}
        self._deadlines = Deadlines()
        self._emitter = Emitter(backend.piece, backend.end_tokens)
        self._fresh: list[Fresh] = []
        self._out: list[tuple[str, Event]] = []
        self._recorder = Recorder()
        self.drain_rate = DrainRate()
        self.n_left_queue = self.n_left_queue_tokens = 0
        """Requests and prompt tokens that ever left the queue for good; only this thread writes."""
        self.head_waits = False
        """Whether the head of the queue found no room at the last look: then a free slot takes nobody."""

    # -- asked from outside, between ticks ------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a tick would do anything."""
        return bool(self._open or self._fresh or self._out)

    @property
    def limits(self) -> EngineLimits:
        """The bounds it keeps."""
        return self._limits

    @property
    def n_vocab(self) -> int:
        """Tokens of the model's vocabulary."""
        return self._backend.n_vocab

    def close(self) -> None:
        """Free the backend."""
        self._backend.close()

    @property
    def n_running(self) -> int:
        """Requests in a slot."""
        return len(self._slots.running)

    @property
    def n_queued(self) -> int:
        """Requests waiting for a slot."""
        return len(self._queue)

    @property
    def slots(self) -> SlotTable:
        """The books, to look at."""
        return self._slots

    def submit(self, request: Request) -> Sequence:
        """Put a request at the end of the queue. Whatever happens, it ends with one End.

        The sequence is returned for those who look on.
        """
        sequence = Sequence(request, arrived_s=self._clock.now())
        if request.request_id in self._open:
            raise InternalError(f"request id {request.request_id} is in use")
        self._open[request.request_id] = sequence
        self._queue.push(sequence)
        try:
            sequence.rng_row = RowSampler(
                request.sampling,
                request.prompt,
                end_tokens=self._backend.end_tokens,
                n_vocab=self._backend.n_vocab,
                entropy=self._entropy,
            )
        except BadRequestError as error:
            self._end(sequence, Change.FAIL, error=error)
        else:
            self._deadlines.add(sequence)
        return sequence

    def cancel(self, request_id: str) -> None:
        """End a request wherever it stands; unknown and ended ones are none of our business."""
        if sequence := self._open.get(request_id):
            self._end(sequence, Change.CANCEL, error=RequestCancelledError())

    def fail_all(self, error: CobaliError) -> None:
        """End every open request with `error` and start over with an empty cache."""
        self._fresh.clear()
        for sequence in list(self._open.values()):
            sequence.n_in_flight, sequence.slot_id = 0, NO_SLOT  # the backend may be what is broken
            self._end(sequence, Change.FAIL, error=error)
        self._slots = SlotTable(self._limits)
        self._layout.start_over(self._slots)
        self._flush()
        self._backend.clear()

    # -- one round ------------------------------------------------------------------------------------

    def tick(self) -> TickStats | None:
        """Do one round. None means that nothing was computed."""
        times = TickTimes(self._clock.now())
        self._expire(times.started)
        self._assign(times.started)
        now = self._next_pass()
        while now.n_tokens:
            shape, spans = self._layout.begin(now), self._layout.spans(now)
            times.planned = self._clock.now()
            if self._forward(now):
                break
            now = self._layout.now()
        else:
            self._publish()
            return None
        if self._backend.overlaps:
            times.publish_s = self._publish()
            self._layout.ahead()
        self._backend.wait()
        times.computed = self._clock.now()
        rows = now.rows()
        sampled = self._backend.sample([s.rng_row for s in rows]) if rows else None
        times.sampled = self._clock.now()
        gaps: list[float] = []
        if sampled is not None:
            self._layout.sampled(now, rows, sampled.tokens)
            gaps = self._apply(rows, sampled, times.sampled)
        if not self._backend.overlaps:
            times.publish_s = self._publish()
        ended_s = self._clock.now()
        return self._recorder.record(
            shape,
            times,
            ended_s=ended_s,
            n_sampled=len(rows),
            gaps=gaps,
            spans=spans,
            slots=self._slots,
            queue=self._queue,
            n_prefilling=len(self._layout.table.prefilling),
            n_cells=self._limits.n_cells,
            n_reused=self._backend.n_reused(),
            predicted_s=self._pacer.learn(shape, ended_s - times.started),
            target_s=self._pacer.target_s,
        )

    def _expire(self, now: float) -> None:
        for sequence in self._deadlines.expired(now):
            error = DeadlineExceededError(sequence.request.timeout_s or 0.0)
            self._end(sequence, Change.FAIL, error=error)

    def _assign(self, now: float) -> None:
        n_assigned = 0
        while (sequence := self._queue.head()) is not None and self._slots.fits(sequence):
            place = self._slots.place(sequence)
            self._backend.keep(place.slot_id, place.n_keep)
            self._backend.expect(place.slot_id, sequence.rng_row)
            self._slots.assign(sequence, place)
            sequence.enter_slot(now)
            self._layout.table.renew(sequence)
            self._queue.remove(sequence)  # together: whoever is WAITING is in the queue, whatever fails above
            sequence.change(Change.ASSIGN)
            if sequence.assigned_s is None:
                sequence.assigned_s, sequence.n_cached = now, place.n_keep
                self._leave_queue(sequence)
                n_assigned += 1
            self._layout.forget_ahead()
        self.head_waits = len(self._queue) > 0
        self.drain_rate.note(n_assigned, now, waiting=self.head_waits)

    def _leave_queue(self, sequence: Sequence) -> None:
        self.n_left_queue += 1
        self.n_left_queue_tokens += sequence.n_prompt

    def _next_pass(self) -> Pass:
        """Lay the next pass out and make room for it."""
        if (ahead := self._layout.take_ahead()) is not None:
            return ahead
        now = self._layout.now()
        if self._fresh and self._slots.n_short(now.n_tokens) > 0:
            self._publish()  # nobody is preempted with text still to be said
            now = self._layout.now()
        while now.n_tokens and self._slots.n_short(now.n_tokens) > 0:
            if not self._drop_idle():
                victim = self._slots.youngest()
                if victim is None:
                    self._end(self._slots.running[0], Change.FAIL, error=InternalError("no room when alone"))
                else:
                    self._preempt(victim)
                now = self._layout.now()
        return now

    def _drop_idle(self) -> bool:
        slot_id = self._slots.drop_idle()
        if slot_id is None:
            return False
        self._backend.keep(slot_id, 0)
        return True

    def _preempt(self, victim: Sequence) -> None:
        """Send a running sequence back to the head of the queue; it is computed again later."""
        self._release(victim, n_keep=0)
        victim.change(Change.PREEMPT)
        self._queue.push_front(victim)
        victim.n_preempted += 1
        self._recorder.n_preempted += 1

    def _forward(self, now: Pass) -> bool:
        """Hand the batch over. False: nothing was computed; whoever was at fault is in no batch any more."""
        try:
            self._backend.forward(now.batch)
        except SlotFaultError as fault:
            culprit = self._slots.by_slot[fault.slot_id]
            if culprit is None:
                raise
            self._end(culprit, Change.FAIL, error=InternalError(str(fault)))
            return False
        except CacheFullError as full:
            # Our own count said it fits: believe the cache, give back what can be given back.
            self._publish()  # nobody is preempted with text still to be said
            while self._drop_idle():
                pass
            victim = self._slots.youngest()
            if victim is None:
                self._end(self._slots.running[0], Change.FAIL, error=BackendError(str(full)))
            else:
                self._preempt(victim)
            return False
        self._layout.computed(now)
        return True

    def _apply(self, rows: list[Sequence], sampled: Sampled, now: float) -> list[float]:
        """Append the sampled tokens; decide who ends by end token or length. Returns ITL samples."""
        gaps: list[float] = []
        end_tokens, fresh = self._backend.end_tokens, self._fresh
        failed, logprobs, running = sampled.failed, sampled.logprobs, Status.RUNNING
        for row, (sequence, token) in enumerate(zip(rows, sampled.tokens, strict=True)):
            sequence.n_in_flight = 0
            if sequence.status is not running:  # a stop string ended it while this token was computed
                self._release(sequence)
                continue
            if row in failed:
                self._end(sequence, Change.FAIL, error=InternalError(failed[row]))
                continue
            tokens = sequence.tokens
            tokens.append(token)
            if sequence.last_token_s is None:
                sequence.first_token_s = now
            else:
                gaps.append(now - sequence.last_token_s)
            sequence.last_token_s = now
            if token in end_tokens:
                sequence.ending = "stop"
                self._layout.forget_ahead()
            elif len(tokens) >= sequence.n_most:
                sequence.ending = "length"
            if sequence.ending:
                self._release(sequence)
            fresh.append((sequence, token, logprobs.get(row)))
        return gaps

    # -- ends and events ------------------------------------------------------------------------------

    def _release(self, sequence: Sequence, *, n_keep: int | None = None) -> None:
        if sequence.slot_id == NO_SLOT:
            return
        if n_keep is None:
            n_keep = sequence.n_computed if self._limits.min_prefix else 0
        sequence.leave_slot(self._clock.now())
        slot_id = self._slots.release(sequence, n_keep=n_keep)
        self._layout.table.clear(slot_id)
        if not n_keep:
            self._backend.keep(slot_id, 0)

    def _end(
        self,
        sequence: Sequence,
        change: Change,
        *,
        reason: FinishReason | None = None,
        error: CobaliError | None = None,
    ) -> None:
        if sequence.status is Status.WAITING:
            self._queue.remove(sequence)
            self.head_waits = self.head_waits and len(self._queue) > 0
            if sequence.assigned_s is None:
                self._leave_queue(sequence)
        sequence.change(change)
        self._layout.forget_ahead()
        if not sequence.n_in_flight:
            # What went wrong inside may have left cells that nobody should begin with.
            self._release(sequence, n_keep=0 if isinstance(error, InternalError) else None)
        elif sequence.slot_id != NO_SLOT:
            self._layout.table.stop(sequence.slot_id)
        del self._open[sequence.request_id]
        self._recorder.n_ended += 1
        stats = sequence.stats(self._clock.now())
        self._out.append((sequence.request.reply_to, End(sequence.request_id, reason, error, stats)))

    def _publish(self) -> float:
        """Turn fresh tokens into deltas and hand all events over. Returns seconds."""
        started = self._clock.now()
        running, emit, out = Status.RUNNING, self._emitter.emit, self._out
        for sequence, token, logprobs in self._fresh:
            if sequence.status is not running:
                continue
            delta, reason = emit(sequence, token, logprobs)
            if delta is not None:
                out.append((sequence.request.reply_to, delta))
            if reason is not None:
                self._end(sequence, Change.STOP, reason=reason)
        self._fresh.clear()
        self._flush()
        return self._clock.now() - started

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            self._sink(out)
