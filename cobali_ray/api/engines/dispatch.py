"""Carries out the dispatcher's instructions: streams, timers, calls. All of it runs on one event loop."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import replace
from typing import Any, Final

import structlog

from cobali_ray.api.engines.apart import begin_apart
from cobali_ray.api.engines.client import EngineClient
from cobali_ray.core.dispatch.dispatcher import Dispatcher
from cobali_ray.core.dispatch.messages import (
    AnswerLoad,
    AnyRequest,
    Cancel,
    Deliver,
    EngineLoaded,
    EngineUnloaded,
    Event,
    Fail,
    Instruction,
    LoadEngine,
    LoadRequested,
    Log,
    RequestArrived,
    RequestLeft,
    Returned,
    Send,
    Survey,
    Surveyed,
    UnloadEngine,
    Wake,
    WakeDue,
)
from cobali_ray.core.dispatch.models import ModelPlan
from cobali_ray.core.request.events import End
from cobali_ray.core.request.events import Event as ClientEvent
from cobali_ray.core.views.stats import EngineState
from cobali_ray.errors import CobaliError, InternalError, RequestCancelledError

_log = structlog.get_logger(__name__)

MAX_PENDING: Final = 4096
"""Events that may wait for the reader of one request before that is cancelled."""
MAX_AT_ONCE: Final = 32
"""Events that a reader takes before others get their turn; with logprobs each may cost 0.1 ms."""


class EventStream(AsyncIterator[list[ClientEvent]]):
    """Events of one client's requests that it has not read yet, as lists, until all requests have ended.

    Where more than MAX_PENDING a request wait, nobody reads any longer: it fails, and the requests end.
    """

    def __init__(self, request_ids: Iterable[str], leave: Callable[[str], None]) -> None:
        """`leave` is called with each request that has not ended when its reader goes."""
        self._open, self._leave = dict.fromkeys(request_ids), leave
        self._n_most = MAX_PENDING * len(self._open)
        self._pending: list[ClientEvent] = []
        self._more = False
        """Whether the last list left some."""
        self._arrived = asyncio.Event()
        self._failure: CobaliError | None = None
        self.context = copy_context()
        """That of the client's request, in which its engines are called."""

    def put(self, event: ClientEvent) -> None:
        """Add an event; the last of a request is its End."""
        if self._failure is not None:
            return
        self._pending.append(event)
        if isinstance(event, End):
            self._open.pop(event.request_id, None)
        if len(self._pending) > self._n_most:
            self._pending.clear()
            self.fail(RequestCancelledError())
            self._leave_all()
        self._arrived.set()

    def fail(self, error: CobaliError, request_id: str = "") -> None:
        """Have the reader get this error behind what is pending."""
        self._open.pop(request_id, None)
        self._failure = self._failure or error
        self._arrived.set()

    def _leave_all(self) -> None:
        while self._open:
            self._leave(self._open.popitem()[0])

    async def __anext__(self) -> list[ClientEvent]:
        """Return what is pending, at most MAX_AT_ONCE; wait for it. Raises what the requests failed with."""
        if self._more:
            await asyncio.sleep(0)
        while not self._pending:
            if self._failure is not None:
                raise self._failure
            if not self._open:
                raise StopAsyncIteration
            self._arrived.clear()
            try:
                await self._arrived.wait()
            except asyncio.CancelledError:  # its reader has left
                self._leave_all()
                raise
        events, self._pending = self._pending[:MAX_AT_ONCE], self._pending[MAX_AT_ONCE:]
        self._more = bool(self._pending)
        return events

    async def aclose(self) -> None:
        """Read no more: requests that have not ended are cancelled."""
        self._leave_all()


class Dispatch:
    """Tells the Dispatcher of one process what happens, and carries out what it answers."""

    def __init__(
        self, plans: Sequence[ModelPlan], engines: Mapping[str, EngineClient], now: Callable[[], float]
    ) -> None:
        """`now` is the machine's monotonic clock."""
        self.state = Dispatcher(plans)
        self._engines, self._now = engines, now
        self._inbox: deque[Event] = deque()
        self._busy = False
        self._streams: dict[str, EventStream] = {}
        self._tickets: dict[str, asyncio.Future[None]] = {}
        for engine_id, engine in engines.items():
            engine.connect(self.handle, self.state.engines[engine_id])

    def ask(self, model: str, requests: Sequence[AnyRequest]) -> EventStream:
        """Begin requests of one client; closing the stream cancels them."""
        stream = EventStream([request.request_id for request in requests], self._leave)
        self._streams |= dict.fromkeys([request.request_id for request in requests], stream)
        for request in requests:
            self.handle(RequestArrived(request, model))
        return stream

    def _leave(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
        self.handle(RequestLeft(request_id))

    async def load(self, model: str, n_engines: int) -> None:
        """Wait until so many engines of a model are loaded. Raises why they cannot be, and QueueFullError."""
        ticket = f"load-{uuid.uuid4().hex}"
        self._tickets[ticket] = answer = asyncio.get_running_loop().create_future()
        self.handle(LoadRequested(ticket, model, n_engines))
        try:
            await answer
        finally:
            if self._tickets.pop(ticket, None) is not None:
                self.handle(RequestLeft(ticket))

    async def unload(self, engine_id: str) -> None:
        """Have an engine give its memory back. Raises ModelBusyError while requests are open."""
        await self._engines[engine_id].unload()
        self.handle(EngineUnloaded(engine_id))

    def handle(self, event: Event) -> None:
        """Take an event, and do what follows from it before anything else."""
        self._inbox.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._inbox:
                for instruction in self.state.handle(self._inbox.popleft(), self._now()):
                    self._carry_out(instruction)
        finally:
            self._busy = False

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Deliver(request_id, event):
                ends = isinstance(event, End)
                stream = self._streams.pop(request_id, None) if ends else self._streams.get(request_id)
                if stream is not None:
                    stream.put(event)
            case Send(engine_id, client_id, request):
                context = stream.context if (stream := self._streams.get(client_id)) else Context()
                try:
                    context.copy().run(self._engines[engine_id].send, request)
                except Exception as error:  # whatever it is, other requests go on
                    self._inbox.append(Returned(engine_id, request.request_id, InternalError(repr(error))))
            case Cancel(engine_id, request_id):
                self._engines[engine_id].cancel(request_id)
            case Fail(request_id, error):
                if (stream := self._streams.pop(request_id, None)) is not None:
                    stream.fail(error, request_id)
            case LoadEngine(engine_id):
                begin_apart(self._load(engine_id))
            case UnloadEngine(engine_id):
                begin_apart(self._unload(engine_id))
            case Survey():
                begin_apart(self._survey())
            case AnswerLoad(ticket, error):
                if (answer := self._tickets.pop(ticket, None)) is not None and not answer.done():
                    answer.set_exception(error) if error is not None else answer.set_result(None)
            case Wake(at_s):
                loop = asyncio.get_running_loop()
                loop.call_later(at_s - self._now(), self.handle, WakeDue(at_s), context=Context())
            case Log(level, event, fields):
                getattr(_log, level)(event, **fields)
            case _:
                Context().run(self._engines[instruction.engine_id].follow, instruction)

    async def _load(self, engine_id: str) -> None:
        self.handle(EngineLoaded(engine_id, await _error_of(self._engines[engine_id].load())))

    async def _unload(self, engine_id: str) -> None:
        self.handle(EngineUnloaded(engine_id, await _error_of(self._engines[engine_id].unload())))

    async def _survey(self) -> None:
        self.handle(Surveyed(await self.states(self._engines)))

    async def states(self, engine_ids: Iterable[str]) -> list[EngineState]:
        """Ask engines how they are."""
        ids = list(engine_ids)
        states = await asyncio.gather(*(self._engines[id_].state() for id_ in ids))
        return [
            state if state.engine_id else replace(state, engine_id=id_)
            for id_, state in zip(ids, states, strict=True)
        ]


async def _error_of(work: Coroutine[Any, Any, None]) -> CobaliError | None:
    """Do it, and return what went wrong, whatever that is: the next load must have its turn."""
    try:
        await work
    except CobaliError as error:
        return error
    except Exception as error:
        return InternalError(repr(error))
    return None
