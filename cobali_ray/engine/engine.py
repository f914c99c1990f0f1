"""Engine: carries the scheduler's instructions out on a backend. One thread calls everything here."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import TypeAlias

import structlog

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.grammar import Grammars, Matcher
from cobali_ray.backend.pieces import Pieces
from cobali_ray.backend.port import Backend, Cells
from cobali_ray.backend.sampling import BROKEN, RowSampler, Sampled, TokenLogprobs
from cobali_ray.core import instructions as told
from cobali_ray.core.cache import CacheView, view_of
from cobali_ray.core.clock import Clock
from cobali_ray.core.embedding import EmbeddingRequest
from cobali_ray.core.events import Computing, Word
from cobali_ray.core.goodput import Speculation
from cobali_ray.core.lifecycle import Status
from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.pace import Pacer
from cobali_ray.core.placement import Held
from cobali_ray.core.plan import Plan
from cobali_ray.core.reasoning import Reasoning
from cobali_ray.core.request import Request
from cobali_ray.core.route import load_of
from cobali_ray.core.scheduler import CHECK_EVERY, Scheduler, Select, select_decoding
from cobali_ray.core.sequence import Sequence
from cobali_ray.core.slots import Slots
from cobali_ray.core.spans import TickSpans
from cobali_ray.core.stats import LoadView, Pass, TickStats
from cobali_ray.engine.disk import Disk
from cobali_ray.engine.embedding import Embedding
from cobali_ray.engine.emit import Emitter
from cobali_ray.engine.host import HostMemory
from cobali_ray.engine.images import ImageReader, RowsOf
from cobali_ray.engine.record import Recorder, TickTimes
from cobali_ray.engine.scored import prompts_in
from cobali_ray.errors import (
    AdapterGoneError,
    BackendError,
    BadRequestError,
    CacheFullError,
    CobaliError,
    InternalError,
    InvalidParameterError,
    RefusedError,
    SlotBusyError,
    SlotFaultError,
    SlotFileError,
    SlotFilesOffError,
)

Sink: TypeAlias = Callable[[list[tuple[str, Word]]], None]
"""Takes one tick's events with the address each one goes to."""
_NO_DRAFT = array("i")
_log = structlog.get_logger(__name__)


class Engine:
    """Requests in, events out, one `tick` at a time; what happens is the scheduler's to say.

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
    ) -> None:
        self.backend, self._clock, self._sink, self._entropy = backend, clock, sink, entropy
        self.scheduler = Scheduler(
            limits,
            end_tokens=backend.end_tokens,
            pacer=pacer,
            select=select,
            speculation=speculation if backend.verifies else None,
            check_every=check_every,
        )
        words = backend.words
        self._pieces = pieces = Pieces(
            backend.piece, lambda token: words.detokenize([token], special=True), backend.end_tokens
        )
        self.grammars = Grammars(
            n_vocab=backend.n_vocab,
            pieces=pieces,
            tokenize=lambda text: words.tokenize(text, add_special=False, parse_special=False),
        )
        self._emitter = Emitter(pieces)
        self._host = HostMemory(backend, clock)
        self._disk = disk
        self.images = ImageReader(backend.projector, limits)
        self._rows: dict[str, RowsOf] = {}
        """Of the images of open requests."""
        self._batch = TickBatch(backend.n_batch)
        self._compute: Plan | None = None
        """What is to be computed next."""
        self._emit: tuple[told.Emit, dict[int, TokenLogprobs]] | None = None
        """Tokens to emit, and the logprobs of those rows that asked for them."""
        self._out: list[tuple[str, Word]] = []
        self._recorder = Recorder()
        self._told_unmet = False
        self.embedding: Embedding | None = None
        """What embeds texts, where the model does."""
        if backend.embedder is not None:
            self.embedding = Embedding(
                backend.embedder,
                clock,
                lambda to, event: self._out.append((to, event)),
                partial(self._say, computing=True),
            )

    # -- asked from outside, between ticks ------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a tick would do anything."""
        return self.scheduler.has_work or bool(self._out) or self.n_embedding > 0

    @property
    def n_embedding(self) -> int:
        """Open requests for vectors."""
        return 0 if self.embedding is None else len(self.embedding.queue)

    @property
    def patience_s(self) -> float | None:
        """How long without work until a deadline must be looked at; None for ever."""
        deadline_s = self.scheduler.next_deadline_s
        return None if deadline_s is None else max(deadline_s - self._clock.now(), 0.0)

    @property
    def limits(self) -> EngineLimits:
        """The bounds it keeps."""
        return self.scheduler.limits

    @property
    def slots(self) -> Slots:
        """The books, to look at."""
        return self.scheduler.slots

    def now(self) -> float:
        """Return the time on its clock."""
        return self._clock.now()

    def start_disk(self, wake: Callable[[], None]) -> None:
        """Have files read and written in threads; `wake` is called by these when `hear` should be."""
        if self._disk is not None:
            self._disk.start(wake)

    def hear(self) -> None:
        """Take in what was read and written."""
        if self._disk is not None:
            for event, cells in self._disk.news():
                self._host.receive(cells)
                self._tell(event)

    def part(self) -> None:
        """Have what slots hold written to disk, as far as there is time; then nothing is read or written."""
        if self._disk is not None:
            self._disk.part()
            self._tell(told.Parting(self._clock.now()))
            self._disk.close()

    def close(self) -> None:
        """Free the backend."""
        self.backend.close()

    def submit(self, request: Request, *, ready: bool = True, arrived_s: float | None = None) -> Sequence:
        """Let a request in. Whatever happens, it ends with one End.

        The sequence is returned for those who look on. `ready=False`: its grammar is compiled elsewhere, its
        images are encoded, and `ready` is called with what came of it; until then it waits and stops nobody.
        `arrived_s`: when it came, if that was before now.
        """
        if self._disk is not None:
            self._disk.open()
            self.hear()
        now_s, row = self._clock.now(), None
        problem: CobaliError | None = None
        try:
            self.require_adapter(request)
            row = RowSampler(
                request.sampling,
                request.text_tokens if request.rows else request.prompt,
                end_tokens=self.backend.end_tokens,
                n_vocab=self.backend.n_vocab,
                entropy=self._entropy,
            )
            row.needs_rows = request.n_prompt_logprobs is not None
            if (budget := request.reasoning_budget) is not None:
                row.reasoning = Reasoning(budget, partial(self._pieces.of, shown=request.shown_tokens))
            if request.replays:
                row.replay(request.said)
            else:
                row.resume(request.said)
            if ready:
                row.matcher = self.matcher(request)
        except (BadRequestError, RefusedError) as error:
            problem = error
        except Exception as error:  # whatever it is, the others go on
            problem = InternalError(repr(error))
        self._tell(told.Submitted(request, now_s, row, ready, arrived_s))
        sequence = self.scheduler.sequence(request.request_id)
        if request.said and not request.replays:
            self._emitter.resume(sequence)
        if problem is not None:
            self._tell(told.Failed(problem, now_s, request.request_id))
        self.hear()
        return sequence

    def require_adapter(self, request: Request) -> None:
        """Raise AdapterGoneError where nothing can be computed under a request's adapter."""
        if request.adapter and request.adapter not in {one.key for one in self.backend.adapters}:
            raise AdapterGoneError

    def matcher(self, request: Request) -> Matcher | None:
        """Return where a request's answer stands in its grammar, if it has one. Any thread may call it."""
        if request.grammar is None:
            return None
        said = () if request.replays else request.said
        return self.grammars.matcher(request.grammar, request.shown_tokens, said)

    def ready(
        self, sequence: Sequence, found: Matcher | CobaliError | None, rows: RowsOf | None = None
    ) -> None:
        """Let a request go on with its compiled grammar and its images' rows, or end it for want of them."""
        if sequence.status is not Status.NOT_READY:  # it has ended meanwhile
            return
        now_s = self._clock.now()
        if isinstance(found, CobaliError):
            self._tell(told.Failed(found, now_s, sequence.request_id))
            return
        sequence.row.matcher = found
        if rows:
            self._rows[sequence.request_id] = rows
        self._tell(told.Ready(sequence.request_id, now_s))
        self._say([sequence.request], computing=False)

    def embed(self, request: EmbeddingRequest, arrived_s: float | None = None) -> None:
        """Let a request for vectors in, which ends with one End; `arrived_s` as in `submit`."""
        if self.embedding is None:
            raise InternalError("this model does not embed")
        self.embedding.submit(request, arrived_s)

    def cancel(self, request_id: str) -> None:
        """End a request wherever it stands; unknown and ended ones are none of our business."""
        if self.embedding is not None:
            self.embedding.cancel(request_id)
        self._tell(told.Cancelled(request_id, self._clock.now()))

    def fail_all(self, error: CobaliError) -> None:
        """End every open request with `error` and start over with an empty cache."""
        self._compute = self._emit = None
        if self.embedding is not None:
            self.embedding.fail_all(error)
        try:
            self._tell(told.Failed(error, self._clock.now()))
        finally:
            self._flush()

    def load(self) -> LoadView:
        """Say how busy it is."""
        view = load_of(self.scheduler)
        if self.embedding is None:
            return view
        queue = self.embedding.queue
        return view._replace(embed_s=queue.wait_s, token_s=view.token_s or queue.token_s)

    # -- the cache, looked at and moved from outside --------------------------------------------------

    def cache_view(self) -> CacheView:
        """Return what is held."""
        view, disk = view_of(self.scheduler), self._disk
        if disk is None:
            return view
        return replace(view, disk_trouble=disk.trouble, disk_paused_s=disk.paused_s)

    def take_out(self, slot_id: int) -> tuple[Held, Cells]:
        """Return what an idle slot holds, and a copy of its cells."""
        held = self._idle_slot(slot_id)
        if not held.n_tokens:
            raise InvalidParameterError("id_slot", f": slot {slot_id} holds nothing")
        if min(held.tokens[: held.n_tokens]) < 0:  # nothing says which projector made them
            raise InvalidParameterError("id_slot", f": slot {slot_id} holds an image, which cannot be saved")
        if not self.limits.cell_bytes:
            raise SlotFilesOffError
        (cells,) = self.backend.save(slot_id, [(0, held.n_tokens)])
        return held, cells

    def put_in(self, slot_id: int, tokens: array[int], salt: str, cells: Cells) -> None:
        """Have an idle slot hold these tokens with these cells, in place of what it held."""
        self._idle_slot(slot_id)
        n, limits = len(tokens), self.limits
        if not limits.cell_bytes:
            raise SlotFilesOffError
        if n > limits.n_ctx_slot or not 0 <= min(tokens) <= max(tokens) < self.backend.n_vocab:
            raise SlotFileError(f"its {n} tokens are not for a slot of {limits.n_ctx_slot}")
        if n + self.slots.n_used_running() > limits.n_cells:
            raise SlotBusyError(slot_id, f"there is no room for {n} tokens beside the running requests")
        self._tell(told.Filled(slot_id, tokens, salt))
        try:
            self.backend.restore(slot_id, [cells], n)
        except BackendError as error:
            self._tell(told.Emptied(slot_id))
            raise SlotFileError(f"the cache does not take it: {error}") from error

    def erase(self, slot_id: int) -> int:
        """Have an idle slot hold nothing; return how many tokens it held."""
        held = self._idle_slot(slot_id)
        self._tell(told.Emptied(slot_id))
        return held.n_tokens

    def _idle_slot(self, slot_id: int) -> Held:
        if not 0 <= slot_id < self.limits.n_slots:
            raise InvalidParameterError("id_slot", f": there is no slot {slot_id}")
        if self.slots.by_slot[slot_id] is not None:
            raise SlotBusyError(slot_id, "a request is in it")
        return self.slots.held(slot_id)

    # -- one round ------------------------------------------------------------------------------------

    def tick(self) -> TickStats | None:
        """Do one round. None means that nothing was computed."""
        begun_s = self._clock.now()
        embedded = self._embed()
        times = TickTimes(self._clock.now())
        self._tell(told.TickBegun(times.started, embedded is not None))
        times.planned = self._clock.now()
        while (plan := self._compute) is not None and not self._forward(plan):
            times.planned = self._clock.now()
        if plan is None:
            self._publish()
            return embedded and self._recorder.record_pass(self.scheduler, begun_s, embedded)
        spans = self._spans(plan)
        if self.backend.overlaps:
            times.publish_s = self._publish()
        self.backend.wait()
        times.computed = self._clock.now()
        sampled = self._sample(plan)
        times.sampled = self._clock.now()
        event = told.Sampled(sampled.tokens, sampled.failed, times.sampled, sampled.complete, sampled.n_each)
        self._tell(event, sampled.logprobs)
        if not self.backend.overlaps:
            times.publish_s = self._publish()
        ended_s = self._clock.now()
        self._tell(told.TickEnded(ended_s))
        if self.scheduler.unmet_s and not self._told_unmet:
            self._told_unmet = True
            _log.warning(
                "itl_target_unmet",
                setting="itl_target_ms",
                decode_ms=round(1000 * self.scheduler.unmet_s, 1),
                detail="the streams' own tokens take longer; until they do not, gaps are as with auto",
            )
        return self._recorder.record(
            self.scheduler,
            times,
            ended_s=ended_s,
            plan=plan,
            spans=spans,
            n_reused=self.backend.n_reused(),
            embedded=embedded or self._no_pass(),
        )

    def _no_pass(self) -> Pass:
        return Pass(0, 0, 0.0, 0 if self.embedding is None else self.embedding.queue.n_texts, 0)

    def _embed(self) -> Pass | None:
        """Embed some texts, if it is their turn; tokens that wait for their text do so a little longer."""
        if self.embedding is None:
            return None
        scheduler = self.scheduler
        others_wait = scheduler.n_prefilling > 0 or scheduler.queue.has_ready
        if not self.embedding.queue.takes_turn(others_wait=others_wait):
            return None
        embedded = self.embedding.step(scheduler.spare_s())
        self._flush()
        return embedded

    def _tell(self, event: told.Event, logprobs: dict[int, TokenLogprobs] | None = None) -> None:
        """Tell the scheduler what happened and do what it says. What is told to clients cannot fail."""
        instructions = self.scheduler.handle(event)
        begun: list[Request] = []
        for one in instructions:
            if isinstance(one, told.Finish):
                self._out.append((one.reply_to, one.end))
                self._rows.pop(one.end.request_id, None)
            elif isinstance(one, told.Emit):
                self._emit = (one, logprobs or {})
            elif isinstance(one, told.Compute):
                self._compute = one.plan
            elif isinstance(one, told.Assign) and (sequence := self.slots.by_slot[one.slot_id]) is not None:
                begun.append(sequence.request)
        if begun:  # before anything is copied or computed for them
            self._say(begun, computing=True)
        host = self._host
        for one in instructions:
            if isinstance(one, told.Truncate):
                host.truncate(one)
            elif isinstance(one, told.Copy):
                host.copy(one)
            elif isinstance(one, told.Swap):
                host.swap(one)
            elif isinstance(one, told.Save):
                host.save(one)
            elif isinstance(one, told.Restore):
                host.restore(one)
            elif isinstance(one, told.Forget):
                host.forget(one)
            elif isinstance(one, told.Hold):
                host.hold(one)
            elif isinstance(one, told.Store) and self._disk is not None:
                self._disk.store(host.beginning(one))
            elif isinstance(one, told.Load) and self._disk is not None:
                self._disk.load(one)
            elif isinstance(one, told.Assign):
                self.backend.expect(one.slot_id, one.row)
            elif isinstance(one, told.Clear):
                host.clear()
        if (moved := host.moved()) is not None:
            self._tell(moved)

    def _forward(self, plan: Plan) -> bool:
        """Hand the plan's tokens over. False: nothing was computed, and the scheduler was told why."""
        self._compute = None
        if (unrestored := self._host.unrestored()) is not None:
            self._tell(unrestored)
            return False
        if plan.spans is None:
            self._batch.fill_streams([s.slot_id for s in plan.streams], [s.tokens for s in plan.streams])
        else:
            known = [s.tokens for s in plan.sequences]
            if plan.drafts:
                known = [s.tokens + plan.drafts.get(s.slot_id, _NO_DRAFT) for s in plan.sequences]
            self._batch.fill(tuple(plan.spans), known)
            if plan.chunks and self._rows:
                self._fill_images(plan)
        self.backend.use(plan.adapter)
        try:
            self.backend.forward(self._batch)
        except SlotFaultError as fault:
            self._tell(told.Refused(fault, fault.slot_id, self._clock.now()))
        except CacheFullError as full:
            self._tell(told.Refused(full, None, self._clock.now()))
        else:
            return True
        return False

    def _fill_images(self, plan: Plan) -> None:
        """Have spans computed from the rows of images that stand there."""
        for number, (span, sequence) in enumerate(zip(plan.spans or (), plan.sequences, strict=True)):
            for one in sequence.request.rows:
                if one.start <= span.start < one.end:
                    rows = self._rows[sequence.request_id][one.digest, one.part]
                    start = span.start - one.start
                    self._batch.embed(number, rows.part(start, start + span.length))

    def _sample(self, plan: Plan) -> Sampled:
        rows, asked = [s.row for s in plan.rows], prompts_in(plan)
        if plan.drafts:
            return self.backend.sample(rows, [plan.drafts.get(s.slot_id, ()) for s in plan.rows])
        if not asked:
            return self.backend.sample(rows) if rows else Sampled([], {}, {})
        sampled = self.backend.sample(rows, prompts=[of_prompt for _, of_prompt in asked])
        for (sequence, _), scored in zip(asked, sampled.scored, strict=True):
            if sequence.status is not Status.RUNNING:
                continue
            if scored is None:
                self._tell(told.Failed(InternalError(BROKEN), self._clock.now(), sequence.request_id))
                continue
            to = sequence.request.reply_to
            self._out += [(to, delta) for delta in self._emitter.prompt(sequence, scored)]
        return sampled

    def _spans(self, plan: Plan) -> TickSpans:
        """Return who computes what, for those who look on."""
        if plan.spans is None:
            n = self._batch.n_tokens
            return TickSpans(slot_ids=self._batch.slot[:n].copy(), starts=self._batch.position[:n].copy())
        return TickSpans(tuple(plan.spans), frozenset([chunk.slot_id for chunk in plan.chunks]))

    # -- what clients are told ------------------------------------------------------------------------

    def _publish(self) -> float:
        """Turn sampled tokens into deltas and hand all events over. Returns seconds."""
        started = self._clock.now()
        if self._emit is not None:
            (fresh,), logprobs = self._emit
            self._emit = None
            stopped, emit, out = [], self._emitter.emit, self._out
            ended, releasing = Status.ENDED, Status.RELEASING
            at_end = None
            following = chain([one[0] for one in islice(fresh, 1, None)], (None,))
            for (sequence, token, row), then in zip(fresh, following, strict=True):
                if sequence.status is ended or sequence.status is releasing:
                    continue
                if sequence is at_end:
                    sequence.n_unsaid += 1
                    continue
                logprob = logprobs.get(row) if logprobs else None
                delta, hit = emit(sequence, token, logprob, more=then is sequence)
                if delta is not None:
                    out.append((sequence.request.reply_to, delta))
                if hit:
                    stopped.append(sequence.request_id)
                    at_end = sequence
            self._tell(told.Emitted(stopped, started))
        self._flush()
        return self._clock.now() - started

    def _say(self, requests: Seq[Request | EmbeddingRequest], *, computing: bool) -> None:
        """Say at once whether something is computed for requests; offline nobody asks."""
        said = [(r.reply_to, Computing(r.request_id, computing)) for r in requests if r.reply_to]
        if said:
            self._out += said
            self._flush()

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            self._sink(out)
