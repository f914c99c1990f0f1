"""ServeEngineClient: the API's EngineClient over a Serve handle and the wire."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from cobali_ray.actors.link import EngineLink
from cobali_ray.actors.outcome import outcome
from cobali_ray.actors.processes import kill_if_same
from cobali_ray.actors.where import where_am_i
from cobali_ray.actors.wire import EventStream, Puller
from cobali_ray.backend.port import Words
from cobali_ray.backend.scripted import ByteVocab
from cobali_ray.core.cache import CacheView, SlotMove
from cobali_ray.core.embedding import EmbeddingRequest
from cobali_ray.core.events import End, Word
from cobali_ray.core.request import Request
from cobali_ray.core.stats import Attendance, EngineState, EngineStatus, LoadView, ModelCard, TickFeed
from cobali_ray.errors import (
    CobaliError,
    EngineDiedError,
    EventsLostError,
    InternalError,
    LoadingError,
    RequestCancelledError,
    UnloadedError,
)
from cobali_ray.telemetry.exposition import Counts
from cobali_ray.telemetry.names import ONLY_ENGINE, HttpTime

_log = structlog.get_logger(__name__)

CONNECT_RETRY_S = 0.5
STALL_TIMEOUT_S = 60.0
END_GRACE_S = 5.0
"""How long the end event may lag behind the return of the control call."""
WORD_S = 0.5
"""How long the control call may lag behind an end event that nobody here asked for."""


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
        """Return the words of this state of a model's file."""
        key = (path, chat_template, created_s)
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = load_words(path, chat_template)
            return self._loaded[key]


class ServeEngineClient:
    """One per engine and ingress process. `engine` is the Serve handle of an EngineServer."""

    def __init__(
        self,
        engine: Any,
        engine_id: str = ONLY_ENGINE,
        vocabularies: Vocabularies | None = None,
        *,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        end_grace_s: float = END_GRACE_S,
        kill: Callable[[int, int], None] = kill_if_same,
    ) -> None:
        self._engine, self._engine_id, self._end_grace_s = engine, engine_id, end_grace_s
        self._vocabularies, self._kill = vocabularies or Vocabularies(), kill
        self._log = _log.bind(engine_id=engine_id)
        self._calls: set[asyncio.Future[Any]] = set()
        self._speaking: set[asyncio.Future[Any]] = set()
        """Those of them of which something was heard."""
        self._puller = Puller(**where_am_i())
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="client")
        self._card: ModelCard | None = None
        self._words: Words | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._trouble, self._described_once = "", False
        self._link = EngineLink(
            engine,
            engine_id,
            time.monotonic,
            self._succeeded,
            stall_timeout_s=stall_timeout_s,
            give_up=self._give_up,
            address=self._puller.address,
            admit=self._puller.admit,
        )

    def start(self) -> None:
        """Begin to look for the engine, on the running event loop."""
        self._puller.start()
        self._look()

    def _look(self) -> None:
        """Find out what the engine serves, and what a successor does, which may have other settings."""
        self._trouble = ""
        if self._connecting is not None:
            self._connecting.cancel()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())
        self._connecting.add_done_callback(self._connected)

    async def _connect(self) -> None:
        """Ask the engine what it serves until it answers; then load the vocabulary."""
        while (found := await self._described()) is None:  # noqa: ASYNC110 it is another process
            await asyncio.sleep(CONNECT_RETRY_S)
        self._described_once = True
        self._link.start()
        if (card := found["card"]) is None:
            return
        told = (found["path"], found["chat_template"], card.created_s)
        loop = asyncio.get_running_loop()
        self._words = await loop.run_in_executor(self._pool, self._vocabularies.load, *told)
        self._card = card
        self._log.info("ingress_ready", model=card.model_id)

    async def _described(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = await outcome(self._engine.describe.remote())
        except InternalError as error:
            self._log.warning("engine_not_there", error=repr(error.__cause__))
            return None
        return found

    def _connected(self, connecting: asyncio.Task[None]) -> None:
        """Remember why there will be no engine, for whoever asks /ready."""
        if not connecting.cancelled() and (error := connecting.exception()) is not None:
            self._trouble = str(error)
            self._log.error("ingress_cannot_serve", error=repr(error))

    @property
    def card(self) -> ModelCard:
        """What is served; UnloadedError where nobody has asked for it yet."""
        if self._card is None:
            raise UnloadedError if self._described_once else LoadingError
        return self._card

    @property
    def words(self) -> Words:
        """The vocabulary of the engine's model."""
        if self._words is None:
            raise LoadingError
        return self._words

    @property
    def present(self) -> bool:
        """Whether the engine was there, and its model, when it was last heard of, a moment ago."""
        return self._card is not None and self._link.away is None and self._link.loaded

    @property
    def busy(self) -> tuple[LoadView, float] | None:
        """How busy the engine said it was, and when; None: it has not said."""
        return self._link.busy

    async def find(self) -> str:
        """Wait until the engine is there; return what it answers with. Raises LoadingError after a minute."""
        return (await self._link.find()).model

    def _give_up(self, engine: Attendance) -> None:
        """End an engine that hangs. Serve would look for 15 s, and Ray ends no process that stands still."""
        for call in self._calls:
            call.cancel()
        if not engine.wire_key:  # else it is a process of another machine
            self._kill(engine.pid, engine.began)

    def _succeeded(self, goes_on: bool) -> None:
        """Take note of an engine's successor, which can go on with what was said if it has the same model."""
        if goes_on:
            self._leave()
        self._look()

    def _leave(self) -> None:
        """Have requests leave an engine that has a successor. Who heard nothing may be with that already."""
        for call in self._speaking:
            call.cancel()

    async def attempt(self, request: Request | EmbeddingRequest) -> AsyncGenerator[list[Word], None]:
        """Submit a request and yield its events; closing the generator cancels it.

        Raises EngineDiedError if the engine goes away meanwhile.
        """
        incarnation_id = self._link.incarnation_id
        response = self._engine.run.remote(replace(request, reply_to=self._puller.address))
        stream = self._puller.open(request.request_id, response.cancel, source=self._link.source)
        call = asyncio.ensure_future(outcome(response))
        self._calls.add(call)
        call.add_done_callback(self._forget)
        call.add_done_callback(lambda _: stream.nudge())
        ended = False
        try:
            while not ended:
                events = await _next(stream, call, self._end_grace_s)
                self._speaking.add(call)
                last = events[-1]
                if isinstance(last, End):
                    ended = True
                    if isinstance(last.error, EngineDiedError | RequestCancelledError):
                        # It stops alone, and another takes its place. What came last is drawn again there.
                        await self._tell_broken(call)
                        raise EngineDiedError  # noqa: TRY301 the link hears of it below
                yield events
        except EngineDiedError:
            self._link.end(incarnation_id)
            raise
        finally:
            self._puller.drop(request.request_id)
            self._speaking.discard(call)
            if not ended:  # else the call returns by itself in a moment
                call.cancel()

    async def _tell_broken(self, call: asyncio.Future[Any]) -> None:
        """Raise what a control call broke with, which cancels its request as well: the engine is there."""
        await asyncio.wait({call}, timeout=WORD_S)
        if call.done() and not call.cancelled():
            call.result()

    def _forget(self, call: asyncio.Future[Any]) -> None:
        """Let go of a control call that is over; whoever waited has been told how it ended."""
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()

    def observe(self, name: HttpTime, seconds: float) -> None:
        """Tell the engine, with the next call that keeps in touch with it."""
        self._link.observe(name, seconds)

    async def state(self) -> EngineState:
        """Ask the engine how it is; one that does not answer is loading."""
        if self._trouble or not self._described_once:
            return self._loading(self._trouble or "waiting for the engine")
        if (away := self._link.away) is not None:
            return away
        try:
            state: EngineState = await self._link.ask(self._engine.state.remote())
        except InternalError:
            return self._link.away or self._loading("no answer")
        if state.status is EngineStatus.READY and self._card is None and not self._knows:
            return self._loading("reading the model's vocabulary")
        return state

    @property
    def _knows(self) -> bool:
        """Whether nothing of what the engine said of its model is still to be read."""
        return self._connecting is None or self._connecting.done()

    def _loading(self, detail: str) -> EngineState:
        return EngineState(status=EngineStatus.LOADING, detail=detail, engine_id=self._engine_id)

    async def counts(self) -> Counts:
        """Fetch the engine's counters, to be rendered off the tick thread's interpreter."""
        snapshot, up = None, False
        if self._described_once and self._link.away is None:
            try:
                snapshot = await self._link.ask(self._engine.snapshot.remote())
                up = True
            except EngineDiedError:
                pass
            except InternalError as error:
                self._log.error("no_snapshot", error=str(error))
                up = True
        return Counts(snapshot, self._link.presence._replace(up=up))

    async def ticks(self, *, last: int, since: int = 0, before: int | None = None) -> TickFeed:
        """Fetch records of ticks and requests, encoded by the engine's event loop."""
        if self._link.away is not None:
            raise LoadingError
        try:
            feed: TickFeed | None = await self._link.ask(self._engine.ticks.remote(last, since, before))
        except EngineDiedError:
            raise LoadingError from None
        if feed is None:
            raise UnloadedError
        return feed

    async def cache(self) -> CacheView:
        """Fetch what the engine's slots and its host memory hold."""
        if self._link.away is not None:
            raise LoadingError
        try:
            view: CacheView | None = await self._link.ask(self._engine.cache.remote())
        except EngineDiedError:
            raise LoadingError from None
        if view is None:
            raise UnloadedError
        return view

    async def move_slot(self, action: str, slot_id: int, filename: str) -> SlotMove:
        """Have the engine save, restore or erase a slot, however long that takes."""
        if self._link.away is not None:
            raise LoadingError
        call = self._engine.move_slot.remote(action, slot_id, filename)
        moved: SlotMove | CobaliError = await self._link.ask(call, within_s=None)
        if isinstance(moved, CobaliError):
            raise moved
        return moved

    async def load(self) -> None:
        """Have the engine load its model, however long that takes, and learn what it is."""
        await self._move(self._engine.load.remote())
        await self._connect()
        self._link.note_loaded()

    async def unload(self) -> None:
        """Have the engine give its model's memory back."""
        await self._move(self._engine.unload.remote())

    async def _move(self, response: Any) -> None:
        try:
            refusal: CobaliError | None = await self._link.ask(response, within_s=None)
        except EngineDiedError:
            raise LoadingError from None
        if refusal is not None:
            raise refusal

    async def drain(self, timeout_s: float) -> bool:
        """Let the engine finish what runs and refuse the rest."""
        return bool(await self._engine.drain.remote(timeout_s))

    def close(self) -> None:
        """Stop reading."""
        if self._connecting is not None:
            self._connecting.cancel()
        self._link.close()
        self._puller.close()
        self._pool.shutdown(wait=False)


async def _next(stream: EventStream, call: asyncio.Future[Any], end_grace_s: float) -> list[Word]:
    """Wait for events or for the control call's word that there will be none.

    The two travel apart: the call may be over before the last events arrive, so they get `end_grace_s`.
    """
    if call.done():
        await asyncio.sleep(0)  # there may be much left to take, and others wait for their turn
    else:
        await stream.arrived()
    if events := stream.take():
        return events
    if call.cancelled():  # not by us: the engine's replica was told to stop
        raise EngineDiedError
    refusal = call.result()  # raises EngineDiedError where the engine went away, and nowhere below
    if isinstance(refusal, CobaliError):
        raise refusal
    try:
        async with asyncio.timeout(end_grace_s):
            while not (events := stream.take()):
                await stream.arrived()
    except TimeoutError:
        raise EventsLostError from None
    return events
