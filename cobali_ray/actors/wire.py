"""One message per tick per ingress over ZeroMQ: encode, push, pull, demultiplex. Knows no Ray.

An address is where one ingress listens: an `ipc://` socket, reachable on this machine only and by this
user only (its directory is private).
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import structlog
import zmq
import zmq.asyncio

from cobali_ray import errors
from cobali_ray.core.events import Delta, End, Event, RequestStats, TokenLogprob
from cobali_ray.errors import CobaliError, InternalError

_log = structlog.get_logger(__name__)

MAX_BACKLOG = 512
"""Messages (ticks) that may wait for one ingress before its requests are cancelled."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


def encode(events: Iterable[Event]) -> bytes:
    """Encode events as arrays: a Delta has a text in second place, an End a list."""
    return _pack([_flat_end(e) if isinstance(e, End) else e for e in events])


def _flat_end(end: End) -> tuple[Any, ...]:
    error = None if end.error is None else (type(end.error).__name__, end.error.args)
    return (end.request_id, (end.finish_reason, error, end.stats))


def decode(data: bytes) -> list[Event]:
    """Decode what `encode` made."""
    return [_event(item) for item in _unpack(data)]


def _event(item: list[Any]) -> Event:
    request_id, second = item[0], item[1]
    if isinstance(second, str):
        logprobs = tuple(
            TokenLogprob(token, piece, logprob, tuple((t, p, lp) for t, p, lp in top))
            for token, piece, logprob, top in item[3]
        )
        return Delta(request_id, second, item[2], logprobs)
    reason, error, stats = second
    return End(request_id, reason, None if error is None else _error(*error), RequestStats(*stats))


def _error(name: str, args: list[Any]) -> CobaliError:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, CobaliError):
        with contextlib.suppress(TypeError):
            return kind(*args)
    return InternalError(name, *args)


class Pusher:
    """The engine's side: one PUSH socket per ingress. Used by the tick thread only."""

    def __init__(self, on_lost: Callable[[set[str]], None]) -> None:
        """`on_lost` gets the ids of requests whose ingress reads no longer."""
        self._context = zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._on_lost = on_lost

    def send(self, batch: list[tuple[str, Event]]) -> None:
        """Send one tick's events, each to its address; never blocks."""
        addresses = {address for address, _ in batch}
        if len(addresses) == 1:
            self._push(addresses.pop(), [event for _, event in batch])
            return
        for address in addresses:
            self._push(address, [event for to, event in batch if to == address])

    def _push(self, address: str, events: list[Event]) -> None:
        socket = self._sockets.get(address)
        if socket is None:
            socket = self._sockets[address] = self._context.socket(zmq.PUSH)
            socket.sndhwm = MAX_BACKLOG
            socket.linger = 0
            socket.connect(address)
        try:
            socket.send(encode(events), zmq.NOBLOCK, copy=True)
        except zmq.Again:
            _log.warning("ingress_not_reading", address=address, n_events=len(events))
            self._on_lost({event.request_id for event in events if not isinstance(event, End)})

    def close(self) -> None:
        """Close all sockets, dropping what was not sent."""
        self._context.destroy(linger=0)


class EventStream:
    """What arrived for one request and was not yet taken."""

    __slots__ = ("_arrived", "_pending")

    def __init__(self) -> None:
        self._pending: list[Event] = []
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        """Add an event; called on the loop that reads."""
        self._pending.append(event)
        self._arrived.set()

    async def take(self) -> list[Event]:
        """Wait for something and return everything pending."""
        await self._arrived.wait()
        self._arrived.clear()
        pending, self._pending = self._pending, []
        return pending


class Puller:
    """The ingress's side: one PULL socket, demultiplexed to one stream per request."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cobali-")  # private to this user: mode 0700
        self.address = f"ipc://{Path(self._folder.name) / 'events'}"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.rcvhwm = MAX_BACKLOG
        self._socket.bind(self.address)
        self._streams: dict[str, EventStream] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._read())

    def open(self, request_id: str) -> EventStream:
        """Make the stream of a request that is about to be submitted."""
        stream = self._streams[request_id] = EventStream()
        return stream

    def drop(self, request_id: str) -> None:
        """Forget a request; what still arrives for it is ignored."""
        self._streams.pop(request_id, None)

    async def _read(self) -> None:
        while True:
            data = await self._socket.recv()
            try:
                events = decode(data)
            except (msgspec.DecodeError, TypeError, ValueError, IndexError):
                _log.exception("undecodable_message", n_bytes=len(data))
                continue
            for event in events:
                stream = self._streams.get(event.request_id)
                if stream is not None:
                    stream.put(event)

    def close(self) -> None:
        """Stop reading and remove the socket."""
        if self._task is not None:
            self._task.cancel()
        self._socket.close(linger=0)
        self._context.term()
        self._folder.cleanup()
