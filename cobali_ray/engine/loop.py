"""EngineLoop: the one thread that owns the engine, and its mailbox.

Nothing inside the engine takes a lock. The mailbox is a queue of functions that the tick thread calls;
without work, the thread blocks on it. Four things are read across threads: the door's counters (the event
loop alone counts the requests that entered, the tick thread alone those that left); in the same way, what a
connection to an ingress has deferred and caught up with; the collector, whose version number is odd during a
write, so that readers retry; and `state()`, which looks at when the current tick began and so reports a
hanging tick correctly.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any, Protocol, TypeAlias, TypeVar

import structlog

from cobali_ray.backend.grammar import Matcher
from cobali_ray.backend.threads import give_way
from cobali_ray.core.clock import Clock
from cobali_ray.core.queue.admission import AdmittedCounts, admit, admit_texts, check_request
from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.core.request.events import End, EngineEvent
from cobali_ray.core.request.media import Image
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.core.views.stats import EngineState, EngineStatus, TickStats
from cobali_ray.engine.engine import Engine, Sink
from cobali_ray.engine.record import waiting
from cobali_ray.engine.turns import TurnThreads
from cobali_ray.errors import (
    BadRequestError,
    CobaliError,
    DrainingError,
    EngineDiedError,
    InternalError,
    InvariantError,
    LoadingError,
    RefusedError,
    UnloadedError,
    WrongTaskError,
)

_log = structlog.get_logger(__name__)

_MAX_FAILURES = 3
_N_COMPILERS = 4
"""Threads that compile grammars, each for another tenant, so that costly ones hold up no other tenant."""
_N_READERS = 2
"""Threads that count the rows of images."""
_T = TypeVar("_T")


class Observer(Protocol):
    """The telemetry collector. Called by the tick thread only."""

    def on_submit(self, sequence: Sequence) -> None: ...
    def on_embed(self, request: EmbeddingRequest) -> None: ...
    def on_tick(self, stats: TickStats) -> None: ...
    def on_end(self, end: End) -> None: ...
    def on_refusal(self, reason: str) -> None: ...
    def on_idle(self, n_cells: int, n_queued: int, n_queued_tokens: int, n_texts_queued: int) -> None: ...


Build: TypeAlias = Callable[[Sink], tuple[Engine, Observer]]
"""Opens the engine (loading the model) and the observer. Called in the tick thread."""


class EngineLoop:
    """Runs `Engine.tick` while there is work and sleeps on its mailbox while there is none.

    Others reach the engine only by its mail: with `submit` from one other thread, with `cancel`, `ask`,
    `act`, `look` and `stop` from any. The door counts without a lock: requests that entered are counted by
    the caller of `submit`, those that left by the tick thread. The sink is called by the tick thread and must
    not raise. After a failure the thread goes on answering its mail, with an error, until `stop`: a request
    that enters before the failure shows gets an end event too.
    """

    def __init__(
        self,
        build: Build,
        clock: Clock,
        sink: Sink,
        *,
        stall_timeout_s: float = 60.0,
        max_predicted_ttft_s: float | None = None,
    ) -> None:
        self._build, self._clock, self._sink = build, clock, sink
        self._stall_timeout_s, self._max_predicted_ttft_s = stall_timeout_s, max_predicted_ttft_s
        self._mailbox: queue.SimpleQueue[Callable[[Engine], None] | None] = queue.SimpleQueue()
        self._engine: Engine | None = None
        self._observer: Observer | None = None
        self._opened = threading.Event()
        self._draining = self._is_over = False
        """Whether new requests are refused; whether mail that comes now may never be read."""
        self._last_word: CobaliError = DrainingError()
        """The error of requests that are open when it stops."""
        self.failure: Exception | None = None
        """What killed the loop, if anything did."""
        self._n_failures = 0
        self._entered = AdmittedCounts()
        self._busy_since_s: float | None = None
        """When the tick under way began; None while idle."""
        self._compilers = TurnThreads(_N_COMPILERS, "grammar")
        self._readers = ThreadPoolExecutor(_N_READERS, thread_name_prefix="read", initializer=give_way)
        self._encoder = TurnThreads(1, "images")
        self._thread = threading.Thread(target=self._run, name="tick", daemon=True)

    # -- from outside -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, which builds the engine (loading the model) and then ticks."""
        self._thread.start()

    def wait_open(self) -> None:
        """Block until the engine is built. Raises what building it raised."""
        self._opened.wait()
        if self.failure is not None:
            raise self.failure

    def submit(self, request: Request | EmbeddingRequest) -> None:
        """Admit a request, or raise RefusedError or BadRequestError at once."""
        try:
            if isinstance(request, EmbeddingRequest):
                self._check_texts(request)
            else:
                request = self._check_door(request)
        except (RefusedError, BadRequestError) as refusal:
            reason = refusal.reason
            if self._engine is not None:
                self._mailbox.put(lambda _: self._watch(lambda observer: observer.on_refusal(reason)))
            raise
        self._entered.note(request)
        arrived_s = self._clock.now()  # the thread takes it after the tick under way
        if not self._post(Future(), lambda engine: self._enter(engine, request, arrived_s)):
            raise UnloadedError

    def expand(self, request: Request) -> Future[Request]:
        """Count the rows of a request's images, in a thread; the result may raise BadRequestError.

        Raises LoadingError without an engine, and DrainingError.
        """
        engine = self._engine
        if engine is None or self.failure is not None:
            raise LoadingError
        try:
            return self._readers.submit(self._expanded, engine, request)
        except RuntimeError:  # the loop has ended
            raise DrainingError from None

    def _expanded(self, engine: Engine, request: Request) -> Request:
        if self._draining:  # it would not be admitted
            raise DrainingError
        return engine.images.expand(request)

    def _enter(self, engine: Engine, request: Request | EmbeddingRequest, arrived_s: float) -> None:
        """Submit an admitted request to the engine, and prepare what it lacks. Called by the tick thread."""
        if isinstance(request, EmbeddingRequest):
            engine.embed(request, arrived_s)
            self._watch(methodcaller("on_embed", request))
            return
        # What remembers requests for a while shall not keep files.
        images, request = request.images, replace(request, images=()) if request.images else request
        ready = request.grammar is None and not request.rows
        sequence = engine.submit(request, ready=ready, arrived_s=arrived_s)
        self._watch(lambda observer: observer.on_submit(sequence))
        if request.grammar is not None:
            self._compilers.submit(request.tenant, partial(self._compile, engine, sequence, images))
        elif request.rows:
            self._encoder.submit(request.tenant, partial(self._encode, engine, sequence, images, None))

    def _compile(self, engine: Engine, sequence: Sequence, images: Seq[Image]) -> None:
        """Compile a request's grammar, in a thread; then encode its images, or mail the result."""
        if sequence.status.ended:
            return
        request = sequence.request
        result = _tried(lambda: engine.samplers.matcher(request))
        if request.rows and not isinstance(result, CobaliError):
            self._encoder.submit(request.tenant, partial(self._encode, engine, sequence, images, result))
        else:
            self._mailbox.put(lambda engine: engine.ready(sequence, result, None))

    def _encode(
        self, engine: Engine, sequence: Sequence, images: Seq[Image], matcher: Matcher | None
    ) -> None:
        """Encode a request's images, in a thread, and mail the result."""
        if sequence.status.ended:
            return
        rows = _tried(lambda: engine.images.encode(sequence.request, images))
        if isinstance(rows, CobaliError):
            error = rows
            self._mailbox.put(lambda engine: engine.ready(sequence, error, None))
        else:
            self._mailbox.put(lambda engine: engine.ready(sequence, matcher, rows))

    def _open_engine(self) -> Engine:
        """Return the engine, if it takes requests."""
        if self._draining:
            raise DrainingError
        if self._engine is None or self.failure is not None:
            raise LoadingError
        return self._engine

    def _check_door(self, request: Request) -> Request:
        engine = self._open_engine()
        if not engine.backend.generates:
            raise WrongTaskError("", "generates no text")
        request = check_request(request, engine.limits, engine.backend.n_vocab)
        engine.samplers.require_adapter(request)
        if not request.attempt:  # else it was let in before
            most_s, scheduler = self._max_predicted_ttft_s, engine.scheduler
            prefill_s = 0.0 if most_s is None else scheduler.prefill_s(request)
            admit(request, self._entered.occupancy(scheduler, prefill_s), engine.limits, max_ttft_s=most_s)
        return request

    def _check_texts(self, request: EmbeddingRequest) -> None:
        engine = self._open_engine()
        scheduler = engine.scheduler
        if engine.backend.embedder is None:
            raise WrongTaskError("", "does not embed")
        request.check(scheduler.texts.kind, engine.backend.n_vocab)
        if not request.attempt:  # else it was let in before
            occupancy = self._entered.occupancy_of_texts(scheduler)
            admit_texts(request, occupancy, engine.limits, scheduler.texts.wait_s)

    def cancel(self, request_id: str) -> None:
        """End a request if it is still open; its slot is free at the next tick."""
        self._mailbox.put(lambda engine: engine.cancel(request_id))

    def look(self, look: Callable[[], None]) -> None:
        """Have the tick thread call the observer, between two ticks."""
        self._mailbox.put(lambda _: self._watch(lambda _: look()))

    def ask(self, question: Callable[[Engine], _T]) -> Future[_T]:
        """Have the tick thread compute something that changes nothing, between two ticks.

        What it raises is raised by the result, and fails nothing else; UnloadedError after the loop's end.
        """
        return self._between_ticks(question, changes=False)

    def act(self, action: Callable[[Engine], _T]) -> Future[_T]:
        """Have the tick thread change something between two ticks.

        Errors are raised by the result; those that are no fault of the caller's end every open request, too.
        """
        return self._between_ticks(action, changes=True)

    def _between_ticks(self, do: Callable[[Engine], _T], *, changes: bool) -> Future[_T]:
        answer: Future[_T] = Future()

        def tell(engine: Engine) -> None:
            try:
                answer.set_result(do(engine))
            except Exception as error:
                answer.set_exception(error)
                if changes and (not isinstance(error, CobaliError) or isinstance(error, InvariantError)):
                    raise
                if not isinstance(error, CobaliError):
                    _complain("question_failed")

        if not self._post(answer, tell):
            answer = Future()
            answer.set_exception(UnloadedError())
        return answer

    def _post(self, answer: Future[Any], act: Callable[[Engine], None]) -> bool:
        """Mail what is to be done, unless `answer` is cancelled; return whether it will be read."""

        def mail(engine: Engine) -> None:
            if answer.set_running_or_notify_cancel():
                act(engine)

        self._mailbox.put(mail)
        return not (self._is_over and answer.cancel())

    def drain(self) -> None:
        """Refuse new requests from now on; those inside go on."""
        self._draining = True

    def stop(self, *, timeout_s: float = 10.0, last_word: CobaliError | None = None) -> None:
        """End every open request, free the model and join the thread.

        With DrainingError if the engine was drained, as the server stops; else with `last_word` or
        EngineDiedError, as it is stopped alone, and its requests go on with whoever takes its place.
        """
        if not self._draining:
            self._last_word = last_word or EngineDiedError()
        self._draining = True
        self._mailbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def state(self) -> EngineState:
        """Return the engine's state; correct also while a tick hangs."""
        engine = self._engine
        if engine is None or self.failure is not None:
            return EngineState(status=EngineStatus.LOADING, detail=str(self.failure or "loading the model"))
        busy_since = self._busy_since_s
        age = 0.0 if busy_since is None else self._clock.now() - busy_since
        status = EngineStatus.READY
        if self._draining:
            status = EngineStatus.DRAINING
        if age > self._stall_timeout_s:
            status = EngineStatus.STALLED
        return EngineState(
            status=status,
            n_running=len(engine.slots.running),
            n_queued=max(self._entered.requests.n - engine.scheduler.counts.left.n, 0),
            n_slots=engine.limits.n_slots,
            last_tick_age_s=age,
            paused=engine.scheduler.paused,
            detail=f"no tick finished for {age:.0f} s" if status is EngineStatus.STALLED else "",
        )

    # -- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            engine, observer = self._build(self._publish)
        except Exception as error:
            self.failure = error
            _complain("engine_failed_to_start")
            self._opened.set()
            return
        self._engine, self._observer = engine, observer
        engine.start_disk(lambda: self._mailbox.put(Engine.take_disk_events))
        self._opened.set()
        self._compilers.submit("", engine.samplers.grammars.warm)
        while self.failure is None and self._read_mail(engine):
            self._busy_since_s = self._clock.now()
            if (stats := self._guard(engine, Engine.tick)) is not None:
                self._n_failures = 0
                self._watch(methodcaller("on_tick", stats))
        self._end_all(engine)

    def _read_mail(self, engine: Engine) -> bool:
        """Handle all mail; block only if there is no work. False: stop, or the engine failed."""
        mailbox = self._mailbox
        while self.failure is None:
            if engine.has_work:
                if mailbox.empty():
                    return True
                mail = mailbox.get()
            else:
                self._busy_since_s = None
                self._watch(lambda it: it.on_idle(engine.slots.n_used_idle(), **waiting(engine.scheduler)))
                try:
                    mail = mailbox.get(timeout=engine.patience_s)
                except queue.Empty:  # a deadline has passed
                    return True
                finally:
                    self._busy_since_s = self._clock.now()
            if mail is None:
                return False
            self._guard(engine, mail)
        return False

    def _guard(self, engine: Engine, act: Callable[[Engine], _T]) -> _T | None:
        """Catch any error: it ends every open request, and the third in a row ends the engine."""
        try:
            return act(engine)
        except Exception as error:
            _complain("tick_failed")
            self._n_failures += 1
            self._fail_all(engine, error)
            if self._n_failures >= _MAX_FAILURES:
                self.failure = error
            return None

    def _fail_all(self, engine: Engine, error: Exception) -> None:
        """End every open request; an engine that cannot even do that has failed for good."""
        try:
            engine.fail_all(error if isinstance(error, CobaliError) else InternalError(repr(error)))
        except Exception as worse:
            _complain("fail_all_failed")
            self.failure = worse

    def _watch(self, look: Callable[[Observer], None]) -> None:
        """Call the observer; one that fails is dropped, because telemetry never steers."""
        if self._observer is None:
            return
        try:
            look(self._observer)
        except Exception:
            _complain("observer_dropped")
            self._observer = None

    def _end_all(self, engine: Engine) -> None:
        """End what is open and what still arrives until `stop` was called; then free the model."""
        self._draining = True
        stopped = self.failure is None
        if stopped:
            self._guard(engine, Engine.flush)
        while True:
            self._busy_since_s = None
            if engine.has_work or engine.scheduler.n_open:
                self._fail_all(engine, self.failure or self._last_word)
            self._is_over = stopped  # before the last look
            if stopped and self._mailbox.empty():
                break
            mail = self._mailbox.get()
            if mail is None:
                stopped = True
            else:
                self._guard(engine, mail)
        self._compilers.shutdown()  # they may still read the vocabulary
        self._readers.shutdown()  # they use the projector; what waits for one ends
        self._encoder.shutdown()
        engine.close()

    def _publish(self, batch: list[tuple[str, EngineEvent]]) -> None:
        for _, event in batch:
            if isinstance(event, End):
                self._watch(methodcaller("on_end", event))
        self._sink(batch)


def _tried(work: Callable[[], _T]) -> _T | CobaliError:
    """Return what work gives, or why it failed: the thread goes on with others, and its request must end."""
    try:
        return work()
    except CobaliError as error:
        return error
    except Exception as error:
        _complain("not_prepared")
        return InternalError(repr(error))


def _complain(event: str) -> None:
    """Log the exception at hand; a log that cannot be written must not end the tick thread."""
    with suppress(OSError, ValueError):
        _log.exception(event)
