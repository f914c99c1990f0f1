"""Engine: carries the scheduler's instructions out on a backend. One thread calls everything here."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TypeAlias

import structlog

from cobali_ray.backend.grammar import Matcher
from cobali_ray.backend.port import Backend
from cobali_ray.backend.sampling import BROKEN, SampleResult, TokenLogprobs
from cobali_ray.core import messages
from cobali_ray.core.cache.slots import Slots
from cobali_ray.core.clock import Clock
from cobali_ray.core.dispatch.route import load_of
from cobali_ray.core.plan.goodput import Speculation
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.plan.plan import Plan
from cobali_ray.core.planner import Select, select_decoding
from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.core.request.events import Computing, EngineEvent
from cobali_ray.core.request.lifecycle import Status
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.core.scheduler import CHECK_EVERY, Scheduler
from cobali_ray.core.story import Story
from cobali_ray.core.views.cache import CacheView, view_of
from cobali_ray.core.views.progress import Place, ProgressReports
from cobali_ray.core.views.stats import LoadView, Reuse, TickStats, reuse_of
from cobali_ray.engine.batches import Batches
from cobali_ray.engine.disk import Disk
from cobali_ray.engine.embedding import embed
from cobali_ray.engine.emit import Emitter
from cobali_ray.engine.host import HostMemory
from cobali_ray.engine.idle_slots import IdleSlots
from cobali_ray.engine.images import ImageReader, RowsOf
from cobali_ray.engine.record import PhaseTimes, TickRecorder
from cobali_ray.engine.samplers import Samplers
from cobali_ray.errors import (
    BadRequestError,
    CacheFullError,
    CobaliError,
    InternalError,
    RefusedError,
    SlotFaultError,
)

Sink: TypeAlias = Callable[[list[tuple[str, EngineEvent]]], None]
"""Takes one tick's events with the address each one goes to."""
_log = structlog.get_logger(__name__)


class Engine:
    """Requests in, events out, one `tick` at a time; the scheduler decides.

    On a backend that computes inside `forward` (a CPU) a tick's tokens are emitted at its end. On one that
    returns early (a GPU) they are emitted while the next pass computes, which hides most of the host's work
    behind the device (asynchronous batching, as far as a host-side API allows).
    """

    def __init__(
        self,
        backend: Backend,
        limits: EngineLimits,
        clock: Clock,
        sink: Sink,
        *,
        pacer: Pacer | None = None,
        select: Select = select_decoding,
        speculation: Speculation | None = None,
        entropy: Callable[[], int] = lambda: secrets.randbits(64),
        check_every: int = CHECK_EVERY,
        disk: Disk | None = None,
        story: Story | None = None,
    ) -> None:
        self.backend, self._clock, self._sink = backend, clock, sink
        self.scheduler = Scheduler(
            limits,
            end_tokens=backend.end_tokens,
            pacer=pacer,
            select=select,
            speculation=speculation if backend.max_draft else None,
            embedding=None if backend.embedder is None else backend.embedder.kind,
            check_every=check_every,
            story=story,
        )
        self.samplers = Samplers(backend, limits.n_slots, entropy)
        self.images = ImageReader(backend.projector, limits)
        self._emitter = Emitter(self.samplers.pieces, self.scheduler.life)
        self._host, self._disk = HostMemory(backend, clock, disk), disk
        self.idle_slots = IdleSlots(self.scheduler, backend, self._host, self._tell)
        self._batches = Batches(self.scheduler, backend.n_batch)
        self._embed: messages.Embed | None = None
        self._compute: Plan | None = None
        """What is to be computed next, texts before tokens."""
        self._emit: tuple[messages.Emit, dict[int, TokenLogprobs]] | None = None
        """Tokens to emit, and the logprobs of those rows that asked for them."""
        self._out: list[tuple[str, EngineEvent]] = []
        self._recorder, self._progress = TickRecorder(), ProgressReports()
        self._warned_unmet = False

    # -- queries, between ticks -----------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._out)

    @property
    def patience_s(self) -> float | None:
        """How long an idle engine may wait before it must tick; None: for ever."""
        deadline_s = self.scheduler.next_deadline_s
        return None if deadline_s is None else max(deadline_s - self._clock.now(), 0.0)

    @property
    def limits(self) -> EngineLimits:
        return self.scheduler.limits

    @property
    def slots(self) -> Slots:
        return self.scheduler.slots

    @property
    def reuse(self) -> Reuse:
        """How prompts reuse what was computed for others."""
        drafts = self.scheduler.planner.speculation is not None
        return reuse_of(self.limits, disk=self._disk is not None, drafts=drafts)

    def now(self) -> float:
        return self._clock.now()

    def start_disk(self, wake: Callable[[], None]) -> None:
        """Begin to read and write files in threads, which call `wake` when they have events."""
        if self._disk is not None:
            self._disk.start(wake)

    def take_disk_events(self) -> None:
        """Pass the events of the disk's threads to the scheduler."""
        if self._disk is not None:
            for event, cells in self._disk.events():
                self._host.receive(cells)
                self._tell(event)

    def flush(self) -> None:
        """Write what slots hold to disk, as far as there is time, and close the disk."""
        if self._disk is not None:
            self._disk.flush()
            self._tell(messages.EngineStopping(self._clock.now()))
            self._disk.close()

    def close(self) -> None:
        self.backend.close()

    def submit(self, request: Request, *, ready: bool = True, arrived_s: float | None = None) -> Sequence:
        """Submit a request, which ends with one End whatever happens; return its sequence, for telemetry.

        `ready=False`: its grammar is compiled or its images are encoded elsewhere, and `ready` is called with
        the results; until then it waits and holds up no other. `arrived_s`: when it came, if before now.
        """
        try:
            if self._disk is not None:
                self._disk.open()
                self.take_disk_events()
        finally:  # an error here ends all open requests, and this shall be one of them
            sequence = self._enter(request, ready, arrived_s)
        self.take_disk_events()
        return sequence

    def _enter(self, request: Request, ready: bool, arrived_s: float | None) -> Sequence:
        now_s = self._clock.now()
        problem: CobaliError | None = None
        try:
            self.samplers.open(request, ready=ready)
        except (BadRequestError, RefusedError) as error:
            problem = error
        except Exception as error:  # whatever it is, the others go on
            problem = InternalError(repr(error))
        self._tell(messages.Submitted(request, now_s, ready, arrived_s))
        sequence = self.scheduler.sequence(request.request_id)
        self._emitter.open(request)
        if request.progress:
            self._progress.add(sequence)
        if problem is not None:
            self._tell(messages.Failed(problem, now_s, request.request_id))
        return sequence

    def ready(
        self, sequence: Sequence, result: Matcher | CobaliError | None, rows: RowsOf | None = None
    ) -> None:
        """Continue a request with its compiled grammar and its images' rows, or end it with an error."""
        if sequence.status is not Status.NOT_READY:  # it has ended meanwhile
            return
        now_s = self._clock.now()
        if isinstance(result, CobaliError):
            self._tell(messages.Failed(result, now_s, sequence.request_id))
            return
        self.samplers.of(sequence.request_id).matcher = result
        if rows:
            self._batches.rows[sequence.request_id] = rows
        self._tell(messages.Ready(sequence.request_id, now_s))
        self._say([sequence.request], computing=False)

    def embed(self, request: EmbeddingRequest, arrived_s: float | None = None) -> None:
        """Submit a request for vectors, which ends with one End; `arrived_s` as in `submit`."""
        self._tell(messages.Submitted(request, self._clock.now(), arrived_s=arrived_s))

    def cancel(self, request_id: str) -> None:
        """Cancel a request in any state; one that has ended is ignored."""
        self._tell(messages.Cancelled(request_id, self._clock.now()))

    def pause(self) -> int:
        """Compute nothing from now on; return how many requests the next tick parks."""
        self._tell(messages.Paused(self._clock.now()))
        return len(self.slots.running)

    def resume(self) -> int:
        """Go on; return how many requests wait for that."""
        self._tell(messages.Resumed(self._clock.now()))
        return self.scheduler.n_open

    def fail_all(self, error: CobaliError) -> None:
        """End every open request with `error` and start over with an empty cache."""
        self._embed = self._compute = self._emit = None
        try:
            self._tell(messages.Failed(error, self._clock.now()))
        finally:
            self._send_out()

    def load_view(self) -> LoadView:
        return load_of(self.scheduler)

    def places(self) -> dict[str, Place]:
        """Return the place in the queue of each waiting request."""
        return self._progress.places(self.scheduler)

    def cache_view(self) -> CacheView:
        if (disk := self._disk) is None:
            return view_of(self.scheduler)
        return view_of(self.scheduler, disk.trouble, disk.paused_s)

    # -- one round ------------------------------------------------------------------------------------

    def tick(self) -> TickStats | None:
        """Do one round. None means that nothing was computed."""
        begun_s = self._clock.now()
        self._tell(messages.TickBegun(begun_s))
        times = PhaseTimes(begun_s if self._embed is None else self._embed_texts(self._embed))
        times.planned = self._clock.now()
        while (plan := self._compute) is not None:
            plan = self._guessed(plan)
            if self._forward(plan):
                break
            times.planned = self._clock.now()
        if plan is None:
            self._publish()
            if not self.scheduler.counts.texts.n_tokens:
                return None
            return self._recorder.record_texts(self.scheduler, begun_s, self.backend.n_reused())
        if self.backend.overlaps:
            times.publish_s = self._publish()
        self.backend.wait()
        times.computed = self._clock.now()
        sampled = self._sample(plan)
        times.sampled = self._clock.now()
        event = messages.Sampled(
            sampled.tokens, sampled.failed, times.sampled, sampled.complete, sampled.n_each
        )
        self._tell(event, sampled.logprobs)
        if not self.backend.overlaps:
            times.publish_s = self._publish()
        ended_s = self._clock.now()
        self._tell(messages.TickEnded(ended_s))
        if self.scheduler.pacer.unmet_s and not self._warned_unmet:
            self._warned_unmet = True
            _log.warning(
                "itl_target_unmet",
                setting="itl_target_ms",
                decode_ms=round(1000 * self.scheduler.pacer.unmet_s, 1),
                detail="the streams' own tokens take longer; until they do not, gaps are as with auto",
            )
        return self._recorder.record(
            self.scheduler, times, ended_s=ended_s, plan=plan, n_reused=self.backend.n_reused()
        )

    def _embed_texts(self, instruction: messages.Embed) -> float:
        """Embed texts and send their vectors; return when that was done."""
        self._embed = None
        if (embedder := self.backend.embedder) is None:
            raise InternalError("this model does not embed")
        vectors, failed = embed(embedder, instruction.pieces)
        self._out += vectors
        embedded_s = self._clock.now()
        self._tell(messages.Embedded(failed, embedded_s))
        self._send_out()
        return embedded_s

    def _tell(self, event: messages.Event, logprobs: dict[int, TokenLogprobs] | None = None) -> None:
        """Pass an event to the scheduler and carry out its instructions. Those for clients cannot fail."""
        instructions = self.scheduler.handle(event)
        begun: list[Request | EmbeddingRequest] = []
        for instruction in instructions:
            if isinstance(instruction, messages.Finish):
                self._out.append((instruction.reply_to, instruction.end))
                request_id = instruction.end.request_id
                self._batches.rows.pop(request_id, None)
                self.samplers.close(request_id)
                self._emitter.close(request_id)
                self._progress.ended(request_id, instruction.end.stats, well=instruction.end.error is None)
            elif isinstance(instruction, messages.Emit):
                self._emit = (instruction, logprobs or {})
            elif isinstance(instruction, messages.Compute):
                self._compute = instruction.plan
            elif isinstance(instruction, messages.Embed):
                self._embed = instruction
                begun += instruction.begun
            elif isinstance(instruction, messages.Assign):
                self.samplers.assign(instruction.request_id, instruction.slot_id)
                if (sequence := self.slots.by_slot[instruction.slot_id]) is not None:
                    begun.append(sequence.request)
        if begun:  # before anything is copied or computed for them
            self._say(begun, computing=True)
        self._host.carry_out(instructions)
        for moved in self._host.moved():
            self._tell(moved)

    def _guessed(self, plan: Plan) -> Plan:
        """Return the plan with the head's guesses, if it has any."""
        if not plan.by_head:
            return plan
        ends = [(slot_id, self.slots.tokens(slot_id)[-1], len(draft)) for slot_id, draft in plan.drafts]
        guesses = self.backend.guess(ends)
        drafts = [(slot_id, tuple(guess)) for (slot_id, *_), guess in zip(ends, guesses, strict=True)]
        return plan._replace(drafts=tuple(drafts), by_head=False)

    def _forward(self, plan: Plan) -> bool:
        """Begin to compute the plan. False: nothing was computed, and the scheduler has the reason."""
        self._compute = None
        if (unrestored := self._host.unrestored()) is not None:
            self._tell(unrestored)
            return False
        batch = self._batches.filled(plan)
        self.backend.use(plan.adapter)
        try:
            self.backend.forward(batch)
        except SlotFaultError as fault:
            self._tell(messages.Refused(fault, fault.slot_id, self._clock.now()))
        except CacheFullError as full:
            self._tell(messages.Refused(full, None, self._clock.now()))
        else:
            return True
        return False

    def _sample(self, plan: Plan) -> SampleResult:
        rows = self.samplers.in_slots(plan.rows)
        prompts = self._batches.prompts(plan)
        if plan.drafts:
            return self.backend.sample(rows, [plan.draft(slot_id) for slot_id in plan.rows])
        if not prompts:
            return self.backend.sample(rows) if rows else SampleResult([], {}, {})
        sampled = self.backend.sample(rows, prompts=[prompt_rows for _, prompt_rows in prompts])
        for (sequence, _), scored in zip(prompts, sampled.scored, strict=True):
            if sequence.status is not Status.RUNNING:
                continue
            if scored is None:
                self._tell(messages.Failed(InternalError(BROKEN), self._clock.now(), sequence.request_id))
                continue
            to = sequence.request.reply_to
            deltas = self._emitter.prompt(sequence.request, sequence.tokens, sequence.n_scored, scored)
            self._out += [(to, delta) for delta in deltas]
        return sampled

    # -- events for clients ---------------------------------------------------------------------------

    def _publish(self) -> float:
        """Turn sampled tokens into deltas and send all events. Returns seconds."""
        started = self._clock.now()
        if self._progress:
            self._out += self._progress.reports(self.scheduler, started)
        if self._emit is not None:
            (emit, logprobs), self._emit = self._emit, None
            deltas, stopped = self._emitter.emit(emit, logprobs)
            self._out += deltas
            self._tell(messages.Emitted(stopped, started))
        self._send_out()
        return self._clock.now() - started

    def _say(self, requests: Seq[Request | EmbeddingRequest], *, computing: bool) -> None:
        """Send at once whether something is computed for requests; offline there is no address."""
        events = [(r.reply_to, Computing(r.request_id, computing)) for r in requests if r.reply_to]
        if events:
            self._out += events
            self._send_out()

    def _send_out(self) -> None:
        if self._out:
            out, self._out = self._out, []
            self._sink(out)
