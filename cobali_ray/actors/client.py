"""ServeEngineClient: the API's EngineClient over a Serve handle and the wire."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import structlog
from prometheus_client.samples import Exemplar

from cobali_ray.actors.link import SILENT_S, EngineLink, outcome
from cobali_ray.actors.processes import kill_if_same
from cobali_ray.actors.where import where_am_i
from cobali_ray.actors.wire import Puller
from cobali_ray.backend.port import Words
from cobali_ray.backend.scripted import ByteVocab
from cobali_ray.core.dispatch.engines import EngineRecord
from cobali_ray.core.dispatch.messages import (
    AnyRequest,
    Describe,
    Described,
    Event,
    HangUp,
    Kill,
    Reattend,
    Returned,
    ToEngine,
    Unheard,
)
from cobali_ray.core.views.cache import CacheView, SlotMove
from cobali_ray.core.views.progress import RequestView
from cobali_ray.core.views.stats import EngineState, EngineStatus, ModelCard, TickFeed
from cobali_ray.errors import (
    CobaliError,
    EngineDiedError,
    InternalError,
    LoadingError,
    UnloadedError,
)
from cobali_ray.telemetry.exposition import EngineMetrics, Presence
from cobali_ray.telemetry.names import ONLY_ENGINE, HttpAnswer, HttpTime

_log = structlog.get_logger(__name__)

CONNECT_RETRY_S = 0.5
WHY_S = 1.0
"""How often Serve is asked why an engine does not start, and how long a client's answer waits for that."""


def load_words(path: Path | None, chat_template: str | None) -> Words:
    """Load only the vocabulary of the engine's model file; None is the scripted model."""
    if path is None:
        return ByteVocab(chat_template)
    from cobali_ray.backend.vocab import Vocab

    words = Vocab.load(path, chat_template)
    _ = words.form  # found out now, so that no request waits for it
    return words


class Vocabularies:
    """Loads each vocabulary once, for all engines of one model. Called by threads."""

    def __init__(self) -> None:
        self._lock, self._loaded = threading.Lock(), dict[tuple[Any, ...], Words]()

    def load(self, path: Path | None, chat_template: str | None, created_s: int) -> Words:
        """Return the vocabulary of a model's file as of this time."""
        key = (path, chat_template, created_s)
        with self._lock:
            if key not in self._loaded:
                for old in [old for old in self._loaded if old[0] == path and old[2] != created_s]:
                    del self._loaded[old]  # the file was replaced
                self._loaded[key] = load_words(path, chat_template)
            return self._loaded[key]


class ServeEngineClient:
    """One per engine and ingress process; `EngineClient` says what its methods promise.

    `engine` is the Serve handle of an EngineServer.
    """

    def __init__(
        self,
        engine: Any,
        engine_id: str = ONLY_ENGINE,
        vocabularies: Vocabularies | None = None,
        *,
        kill: Callable[[int, int], None] = kill_if_same,
        why: Callable[[], str] = str,
    ) -> None:
        """`why` returns, in a thread, why the engine could not be started; "" if unknown."""
        self._why, self._why_asked_s = why, 0.0
        self._asking: asyncio.Future[str] | None = None
        self._engine, self._engine_id = engine, engine_id
        self._vocabularies, self._kill = vocabularies or Vocabularies(), kill
        self._log = _log.bind(engine_id=engine_id)
        self._calls: dict[str, asyncio.Future[Any]] = {}
        """The open control calls by request."""
        self._questions: set[asyncio.Future[Any]] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="client")
        self._card: ModelCard | None = None
        self._words: Words | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._trouble, self._described_once = "", False

    def connect(self, on_event: Callable[[Event], None], record: EngineRecord) -> None:
        self._on_event, self._record = on_event, record
        self._puller = Puller(self._engine_id, on_event, **where_am_i())
        self._link = EngineLink(
            self._engine, record, on_event, address=self._puller.address, admit=self._puller.admit
        )

    def start(self) -> None:
        """Begin to look for the engine, on the running event loop."""
        self._puller.start()
        self._look()

    def _look(self) -> None:
        """Ask what the engine serves, also after a restart, when its settings may be others."""
        self._trouble = ""
        if self._connecting is not None:
            self._connecting.cancel()
        self._connecting = asyncio.get_running_loop().create_task(self._describe())
        self._connecting.add_done_callback(self._connected)

    async def _describe(self) -> None:
        """Ask the engine what it serves until it answers; then load the vocabulary."""
        while (description := await self._described()) is None:  # noqa: ASYNC110 it is another process
            await asyncio.sleep(CONNECT_RETRY_S)
        self._described_once = True
        self._link.start()
        if (card := description["card"]) is None:
            return
        source = (description["path"], description["chat_template"], card.created_s)
        loop = asyncio.get_running_loop()
        self._words = await loop.run_in_executor(self._pool, self._vocabularies.load, *source)
        self._card = card
        self._on_event(Described(self._engine_id, description["model"]))
        self._log.info("ingress_ready", model=card.model_id)

    async def _described(self) -> dict[str, Any] | None:
        try:
            description: dict[str, Any] = await outcome(self._engine.describe.remote())
        except InternalError as error:
            self._log.warning("engine_not_there", error=repr(error.__cause__))
            return None
        return description

    def _connected(self, connecting: asyncio.Task[None]) -> None:
        """Remember why there will be no engine, for /ready."""
        if not connecting.cancelled() and (error := connecting.exception()) is not None:
            self._trouble = str(error)
            self._log.error("ingress_cannot_serve", error=repr(error))

    @property
    def card(self) -> ModelCard:
        """What is served. Also raises UnloadedError, before the model is loaded."""
        if self._card is None:
            raise UnloadedError if self._described_once else LoadingError
        return self._card

    @property
    def words(self) -> Words:
        if self._words is None:
            raise LoadingError
        return self._words

    # -- for the dispatcher

    def send(self, request: AnyRequest) -> None:
        response = self._engine.run.remote(replace(request, reply_to=self._puller.address))
        call = self._calls[request.request_id] = outcome(response)
        call.add_done_callback(partial(self._returned, request.request_id))
        attendance = self._record.attendance
        if attendance is not None and self._puller.silent(attendance.wire_key):
            self._on_event(Unheard(self._engine_id, (attendance.wire_key,)))

    def _returned(self, request_id: str, call: asyncio.Future[Any]) -> None:
        cancelled_here = self._calls.pop(request_id, None) is None
        error = EngineDiedError() if call.cancelled() else call.exception() or call.result()
        if cancelled_here:
            return
        if error is not None and not isinstance(error, CobaliError):
            error = InternalError(repr(error))
        self._on_event(Returned(self._engine_id, request_id, error))

    def cancel(self, request_id: str) -> None:
        if (call := self._calls.pop(request_id, None)) is not None:
            call.cancel()

    def follow(self, instruction: ToEngine) -> None:
        match instruction:
            case Kill(_, pid, began):
                self._kill(pid, began)
            case Reattend():
                self._link.ask_again()
            case HangUp():
                for question in self._questions:
                    question.cancel()
            case Describe():
                self._look()

    def observe(self, name: HttpTime, waited: Exemplar) -> None:
        self._link.observe(name, waited)

    def count(self, answer: HttpAnswer) -> None:
        self._link.count(answer)

    # -- calls

    async def _ask(self, method: Any, *args: Any, within_s: float | None = SILENT_S) -> Any:
        """Call the engine. Raises EngineDiedError while it is away, and after `within_s`."""
        if self._away is not None:
            raise EngineDiedError
        question = outcome(method.remote(*args))
        self._questions.add(question)
        try:
            await asyncio.wait({question}, timeout=within_s)
            if not question.done() or question.cancelled():
                raise EngineDiedError
            return question.result()
        finally:
            self._questions.discard(question)
            question.cancel()

    @property
    def _away(self) -> EngineState | None:
        return self._record.away(time.monotonic())

    async def state(self) -> EngineState:
        if self._trouble or not self._described_once:
            return await self._explained(self._loading(self._trouble or "waiting for the engine"))
        try:
            state: EngineState = await self._ask(self._engine.state)
        except InternalError:
            return await self._explained(self._away or self._loading("no answer"))
        reading = self._connecting is not None and not self._connecting.done()
        if state.status is EngineStatus.READY and self._card is None and reading:
            return self._loading("reading the model's vocabulary")
        return state

    async def _explained(self, state: EngineState) -> EngineState:
        """Add to the state why the engine could not be started, such as a device that is lost."""
        now_s = time.monotonic()
        if self._asking is None or (self._asking.done() and now_s - self._why_asked_s >= WHY_S):
            self._why_asked_s, self._asking = now_s, asyncio.ensure_future(asyncio.to_thread(self._why))
        asking = self._asking
        await asyncio.wait({asking}, timeout=WHY_S)
        # It fails while Serve's controller is away, too.
        why = asking.result() if asking.done() and asking.exception() is None else ""
        return replace(state, detail=f"{state.detail}: {why}") if why else state

    def _loading(self, detail: str) -> EngineState:
        return EngineState(status=EngineStatus.LOADING, detail=detail, engine_id=self._engine_id)

    async def counts(self) -> EngineMetrics:
        snapshot, up, answers = None, False, dict[HttpAnswer, int]()
        if self._described_once:
            try:
                answers = await self._ask(self._engine.http_answers)
                snapshot, up = await self._ask(self._engine.snapshot), True
            except EngineDiedError:
                pass
            except InternalError as error:
                self._log.error("no_snapshot", error=str(error))
                up = True
        record = self._record
        n_restarts = 0 if record.attendance is None else record.attendance.n_restarts
        away_s = record.away_s(time.monotonic()) or 0.0
        return EngineMetrics(snapshot, Presence(self._engine_id, up, away_s, n_restarts), answers)

    async def _have(self, method: Any, *args: Any, within_s: float | None = None) -> Any:
        """Call the engine, by default without a time limit.

        Raises LoadingError if it is away, and the error that it returns.
        """
        try:
            result = await self._ask(method, *args, within_s=within_s)
        except EngineDiedError:
            raise LoadingError from None
        if isinstance(result, CobaliError):
            raise result
        return result

    async def ticks(self, *, last: int, since: int = 0, before: int | None = None) -> TickFeed:
        args = last, since, before
        return cast("TickFeed", await self._have(self._engine.ticks, *args, within_s=SILENT_S))

    async def cache(self) -> CacheView:
        return cast("CacheView", await self._have(self._engine.cache, within_s=SILENT_S))

    async def find(self, name: str, tenant: str) -> list[RequestView]:
        try:
            requests: list[RequestView] = await self._ask(self._engine.find, name, tenant)
        except EngineDiedError:
            return []
        return requests

    async def move_slot(self, action: str, slot_id: int, filename: str) -> SlotMove:
        return cast("SlotMove", await self._have(self._engine.move_slot, action, slot_id, filename))

    async def pause(self) -> int:
        return cast("int", await self._have(self._engine.pause))

    async def release(self) -> int:
        return cast("int", await self._have(self._engine.release))

    async def resume(self) -> int:
        return cast("int", await self._have(self._engine.resume))

    async def load(self) -> None:
        await self._have(self._engine.load)
        await self._describe()

    async def unload(self) -> None:
        await self._have(self._engine.unload)

    async def drain(self, timeout_s: float) -> bool:
        """Let the engine finish what runs and refuse the rest."""
        return bool(await self._engine.drain.remote(timeout_s))

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        self._link.close()
        self._puller.close()
        self._pool.shutdown(wait=False)
