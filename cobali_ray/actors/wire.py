"""One message per tick per ingress over ZeroMQ: encode, push, pull, demultiplex. Knows no Ray.

An address is where one ingress listens: an `ipc://` socket, reachable on this machine only and by this
user only (its directory is private).
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import structlog
import zmq
import zmq.asyncio

from cobali_ray import errors
from cobali_ray.core.events import Delta, End, Event, RequestStats, TokenLogprob
from cobali_ray.errors import CobaliError, InternalError, RequestCancelledError

_log = structlog.get_logger(__name__)

MAX_BACKLOG = 512
"""Messages (ticks) that may wait for one ingress before its requests are cancelled."""
MOST_AT_ONCE = 32
"""Events that a reader takes before others get their turn; with logprobs each may cost 0.1 ms."""
MAX_PENDING = 4096
"""Events that may wait for one reader before its request is cancelled."""
FORGET_S = 600.0
"""How long a socket may go unused before it makes room for a new one."""
LAST_WORDS_MS = 200
"""How long closing waits for what was said last to leave."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


def encode(events: Iterable[Event]) -> bytes:
    """Encode events as arrays: a Delta has a text in second place, an End a list."""
    return _pack([_flat_end(e) if isinstance(e, End) else e for e in events])


def _flat_end(end: End) -> tuple[Any, ...]:
    error = None if end.error is None else (type(end.error).__name__, end.error.args)
    return (end.request_id, (end.finish_reason, error, end.stats))


def decode(data: bytes) -> list[Event]:
    """Decode what `encode` made. Anything else: DecodeError, TypeError, ValueError or LookupError."""
    return [_event(item) for item in _unpack(data)]


def _event(item: list[Any]) -> Event:
    request_id, second = item[0], item[1]
    if not isinstance(request_id, str):
        raise TypeError(f"a request id is a string, not {type(request_id).__name__}")
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

    def __init__(
        self, on_lost: Callable[[set[str]], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        """`on_lost` gets the ids of requests whose events did not get out: nobody reads their address."""
        self._context = zmq.Context()
        self._sender: threading.Thread | None = None
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._sent_s: dict[str, float] = {}
        self._on_lost, self._now = on_lost, now

    @property
    def n_readers(self) -> int:
        """Addresses that were sent to of late."""
        return len(self._sockets)

    def send(self, batch: list[tuple[str, Event]]) -> None:
        """Send one tick's events, each to its address; never blocks."""
        self._sender = threading.current_thread()
        addresses = {address for address, _ in batch}
        if len(addresses) == 1:
            self._push(addresses.pop(), [event for _, event in batch])
            return
        for address in addresses:
            self._push(address, [event for to, event in batch if to == address])

    def _push(self, address: str, events: list[Event]) -> None:
        try:
            self._socket(address).send(encode(events), zmq.NOBLOCK, copy=True)
            self._sent_s[address] = self._now()
        except zmq.ZMQError as error:  # Again: its backlog is full; anything else: no such address
            _log.warning("ingress_not_reading", address=address, n_events=len(events), error=str(error))
            self._on_lost({event.request_id for event in events if not isinstance(event, End)})

    def _socket(self, address: str) -> zmq.Socket[bytes]:
        socket = self._sockets.get(address)
        if socket is None:
            self._forget_silent()
            socket = self._context.socket(zmq.PUSH)
            socket.sndhwm = MAX_BACKLOG
            try:
                socket.connect(address)
            except zmq.ZMQError:
                socket.close(linger=0)
                raise
            self._sockets[address] = socket
        return socket

    def _forget_silent(self) -> None:
        """Close sockets that were long not used: an ingress that was restarted has another address.

        Whoever lives there all the same gets a new socket with the next event.
        """
        long_ago = self._now() - FORGET_S
        for address in [a for a in self._sockets if self._sent_s.get(a, 0.0) < long_ago]:
            self._sockets.pop(address).close(linger=0)
            self._sent_s.pop(address, None)

    def close(self) -> None:
        """Close all sockets, giving last words a moment to get out.

        A socket belongs to the thread that uses it: another one closes it only once that has ended. One that
        hangs keeps them, and the process, which is about to end, takes them along.
        """
        if self._sender in {None, threading.current_thread()} or not self._sender.is_alive():
            self._context.destroy(linger=LAST_WORDS_MS)


class EventStream:
    """What arrived for one request and was not yet taken. All of it runs on one event loop.

    It is bounded: beyond `n_most` events nobody reads any longer, so they are dropped, `on_full` is called
    once (to cancel the request), and the reader, should it come back, gets RequestCancelledError.
    """

    __slots__ = ("_arrived", "_full", "_n_most", "_on_full", "_pending")

    def __init__(self, on_full: Callable[[], None], *, n_most: int) -> None:
        self._pending: list[Event] = []
        self._arrived = asyncio.Event()
        self._on_full, self._n_most, self._full = on_full, n_most, False

    def put(self, event: Event) -> None:
        """Add an event."""
        if self._full:
            return
        self._pending.append(event)
        self._arrived.set()
        if len(self._pending) > self._n_most:
            self._full = True
            self._pending.clear()
            self._on_full()

    def nudge(self) -> None:
        """Wake the reader though there may be nothing to take."""
        self._arrived.set()

    async def arrived(self) -> None:
        """Wait for an event or a nudge since the last `take`; where it left some, for the others' turn."""
        if self._pending:
            await asyncio.sleep(0)
        await self._arrived.wait()

    def take(self) -> list[Event]:
        """Return what is pending, possibly nothing, at most MOST_AT_ONCE. RequestCancelledError: too much."""
        if self._full:
            raise RequestCancelledError
        if len(self._pending) > MOST_AT_ONCE:
            taken = self._pending[:MOST_AT_ONCE]
            del self._pending[:MOST_AT_ONCE]
            return taken
        self._arrived.clear()
        taken, self._pending = self._pending, []
        return taken


class Puller:
    """The ingress's side: one PULL socket, demultiplexed to one stream per request."""

    def __init__(self, *, n_most: int = MAX_PENDING) -> None:
        self._n_most = n_most
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

    def open(self, request_id: str, on_full: Callable[[], None]) -> EventStream:
        """Make the stream of a request that is about to be submitted."""
        stream = self._streams[request_id] = EventStream(on_full, n_most=self._n_most)
        return stream

    def drop(self, request_id: str) -> None:
        """Forget a request; what still arrives for it is ignored."""
        self._streams.pop(request_id, None)

    async def _read(self) -> None:
        while True:
            data = await self._socket.recv()
            try:
                events = decode(data)
            except (msgspec.DecodeError, TypeError, ValueError, LookupError):
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
