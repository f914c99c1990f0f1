"""ServeEngineClient: the API's EngineClient over a Serve handle and the wire."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import structlog

from cobali_ray.actors.continuation import Offer, continued
from cobali_ray.actors.link import EngineLink
from cobali_ray.actors.outcome import outcome
from cobali_ray.actors.wire import EventStream, Puller
from cobali_ray.backend.port import Words
from cobali_ray.backend.scripted import ByteVocab
from cobali_ray.core.cache import CacheView, SlotMove
from cobali_ray.core.events import End, Event
from cobali_ray.core.request import Request
from cobali_ray.core.stats import Attendance, EngineState, EngineStatus, ModelCard, TickFeed
from cobali_ray.errors import (
    CobaliError,
    ConfigError,
    DrainingError,
    EngineDiedError,
    EventsLostError,
    InternalError,
    LoadingError,
    RequestCancelledError,
)
from cobali_ray.telemetry.exposition import render
from cobali_ray.telemetry.names import ONLY_ENGINE, HttpTime

_log = structlog.get_logger(__name__)

CONNECT_RETRY_S = 0.5
STALL_TIMEOUT_S = 60.0
END_GRACE_S = 5.0
"""How long the end event may lag behind the return of the control call."""


def load_words(path: Path | None, chat_template: str | None) -> Words:
    """Load only the vocabulary of the engine's model file; None is the scripted model."""
    if path is None:
        return ByteVocab(chat_template)
    from cobali_ray.backend.vocab import Vocab

    words = Vocab.load(path, chat_template)
    _ = words.form  # found out now, so that no request waits for it
    return words


def kill(pid: int) -> None:
    """End a process at once, if it is there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class ServeEngineClient:
    """One per ingress process. `engine` is the Serve handle of an EngineServer."""

    def __init__(
        self,
        engine: Any,
        engine_id: str = ONLY_ENGINE,
        *,
        replays: bool = False,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        end_grace_s: float = END_GRACE_S,
        kill: Callable[[int], None] = kill,
    ) -> None:
        """`replays`: what was said before an engine died is computed again token by token."""
        self._engine, self._engine_id, self._end_grace_s = engine, engine_id, end_grace_s
        self._replays, self._kill, self._draining = replays, kill, False
        self._log = _log.bind(engine_id=engine_id)
        self._calls: set[asyncio.Future[Any]] = set()
        self._speaking: set[asyncio.Future[Any]] = set()
        """Those of them of which something was heard."""
        self._puller = Puller()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="client")
        self._card: ModelCard | None = None
        self._words: Words | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._trouble = ""
        self._link = EngineLink(
            engine,
            engine_id,
            time.monotonic,
            stall_timeout_s=stall_timeout_s,
            give_up=self._give_up,
            succeed=self._leave,
        )

    def start(self) -> None:
        """Begin to look for the engine, on the running event loop."""
        self._puller.start()
        self._connecting = asyncio.get_running_loop().create_task(self._connect())
        self._connecting.add_done_callback(self._connected)

    async def _connect(self) -> None:
        """Ask the engine what it serves until it answers; then load the vocabulary."""
        while self._card is None:
            try:
                found = await outcome(self._engine.describe.remote())
            except InternalError as error:
                self._log.warning("engine_not_there", error=repr(error.__cause__))
                await asyncio.sleep(CONNECT_RETRY_S)
                continue
            if found["node_id"] != self._node_id():
                raise ConfigError(
                    "n_ingress", "engine and ingress are on different nodes, but tokens travel by Unix socket"
                )
            loop = asyncio.get_running_loop()
            self._words = await loop.run_in_executor(
                self._pool, load_words, found["path"], found["chat_template"]
            )
            self._card = found["card"]
            self._link.start()
            self._log.info("ingress_ready", model=self._card.model_id)

    def _connected(self, connecting: asyncio.Task[None]) -> None:
        """Remember why there will be no engine, for whoever asks /ready."""
        if not connecting.cancelled() and (error := connecting.exception()) is not None:
            self._trouble = str(error)
            self._log.error("ingress_cannot_serve", error=repr(error))

    @staticmethod
    def _node_id() -> str:
        return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""

    @property
    def card(self) -> ModelCard:
        """What is served."""
        if self._card is None:
            raise LoadingError
        return self._card

    @property
    def words(self) -> Words:
        """The vocabulary of the engine's model."""
        if self._words is None:
            raise LoadingError
        return self._words

    def generate(self, request: Request) -> AsyncGenerator[list[Event], None]:
        """Submit a request and yield its events; closing the generator cancels it.

        If the engine dies, its successor goes on with it.
        """
        return continued(request, self._choose, time.monotonic, replays=self._replays)

    async def _choose(self, request: Request) -> Offer:  # noqa: ARG002 there is one engine
        return Offer((await self._link.find()).model, self._attempt)

    def _give_up(self, engine: Attendance) -> None:
        """End an engine that hangs. Serve would look for 15 s, and Ray ends no process that stands still."""
        for call in self._calls:
            call.cancel()
        self._kill(engine.pid)

    def _leave(self) -> None:
        """Have requests leave an engine that has a successor. Who heard nothing may be with that already."""
        for call in self._speaking:
            call.cancel()

    async def _attempt(self, request: Request) -> AsyncGenerator[list[Event], None]:
        response = self._engine.run.remote(replace(request, reply_to=self._puller.address))
        stream = self._puller.open(request.request_id, on_failure=response.cancel)
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
                    if isinstance(last.error, DrainingError | RequestCancelledError) and not self._draining:
                        # It stops alone, and another takes its place. What came last is drawn again there.
                        raise EngineDiedError  # noqa: TRY301 the link hears of it below
                yield events
        except EngineDiedError:
            self._link.lose(EngineStatus.RESTARTING)
            raise
        finally:
            self._puller.drop(request.request_id)
            self._speaking.discard(call)
            if not ended:  # else the call returns by itself in a moment
                call.cancel()

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
        if self._card is None:
            return self._loading(self._trouble or "waiting for the engine")
        if (away := self._link.away) is not None:
            return away
        try:
            state: EngineState = await self._link.ask(self._engine.state.remote())
        except InternalError:
            return self._link.away or self._loading("no answer")
        return state

    def _loading(self, detail: str) -> EngineState:
        return EngineState(status=EngineStatus.LOADING, detail=detail, engine_id=self._engine_id)

    async def metrics(self) -> str:
        """Fetch the engine's counters and render them here, off the tick thread's interpreter."""
        snapshot, up = None, False
        if self._card is not None and self._link.away is None:
            try:
                snapshot = await self._link.ask(self._engine.snapshot.remote())
                up = True
            except EngineDiedError:
                pass
            except InternalError as error:
                self._log.error("no_snapshot", error=str(error))
                up = True
        presence = self._link.presence._replace(up=up)
        return await asyncio.get_running_loop().run_in_executor(self._pool, render, snapshot, presence)

    async def ticks(self, *, last: int, since: int = 0, before: int | None = None) -> TickFeed:
        """Fetch records of ticks and requests, encoded by the engine's event loop."""
        if self._link.away is not None:
            raise LoadingError
        try:
            feed: TickFeed = await self._link.ask(self._engine.ticks.remote(last, since, before))
        except EngineDiedError:
            raise LoadingError from None
        return feed

    async def cache(self) -> CacheView:
        """Fetch what the engine's slots and its host memory hold."""
        if self._link.away is not None:
            raise LoadingError
        try:
            view: CacheView = await self._link.ask(self._engine.cache.remote())
        except EngineDiedError:
            raise LoadingError from None
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

    async def drain(self, timeout_s: float) -> bool:
        """Let the engine finish what runs and refuse the rest."""
        self._draining = True
        return bool(await self._engine.drain.remote(timeout_s))

    def close(self) -> None:
        """Stop reading."""
        if self._connecting is not None:
            self._connecting.cancel()
        self._link.close()
        self._puller.close()
        self._pool.shutdown(wait=False)


async def _next(stream: EventStream, call: asyncio.Future[Any], end_grace_s: float) -> list[Event]:
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
