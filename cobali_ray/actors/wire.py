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
from typing import Any, NamedTuple

import msgspec
import structlog
import zmq
import zmq.asyncio

from cobali_ray import errors
from cobali_ray.actors.ports import socket_dir
from cobali_ray.core.events import Delta, End, Event, RequestStats, TokenLogprob
from cobali_ray.errors import CobaliError, EventsLostError, InternalError, RequestCancelledError

_log = structlog.get_logger(__name__)

MAX_BACKLOG = 512
"""Messages (ticks) that may wait for one ingress before the requests of those that do not fit are ended."""
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


class Message(NamedTuple):
    """What one engine says to one ingress after a tick."""

    engine_id: str
    events: list[Event]
    lost: list[str]
    """Requests of which there was an event that could not be read; "" where it does not even name one."""


def encode(engine_id: str, events: Iterable[Event]) -> bytes:
    """Encode one message; events are arrays: a Delta has a text in second place, an End a list."""
    return _pack((engine_id, [_flat_end(e) if isinstance(e, End) else e for e in events]))


def _flat_end(end: End) -> tuple[Any, ...]:
    error = None if end.error is None else (type(end.error).__name__, end.error.args)
    return (end.request_id, (end.finish_reason, error, end.stats))


def decode(data: bytes) -> Message:
    """Decode what `encode` made; an event that cannot be read costs its own request only.

    What is no message at all: DecodeError, TypeError or ValueError.
    """
    engine_id, items = _unpack(data)
    if not isinstance(engine_id, str):
        raise TypeError(f"an engine id is a string, not {type(engine_id).__name__}")
    message = Message(engine_id, [], [])
    for item in items:
        try:
            message.events.append(_event(item))
        except (TypeError, ValueError, LookupError, AttributeError):
            owner = item[0] if isinstance(item, list) and item else None
            message.lost.append(owner if isinstance(owner, str) else "")
    return message


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
        with contextlib.suppress(TypeError, ValueError, LookupError, AttributeError):
            return kind(*args)
    return InternalError(name, *args)


class Pusher:
    """The engine's side: one PUSH socket per ingress. Used by the tick thread only."""

    def __init__(self, engine_id: str, now: Callable[[], float] = time.monotonic) -> None:
        self._engine_id = engine_id
        self._context = zmq.Context()
        self._sender: threading.Thread | None = None
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._sent_s: dict[str, float] = {}
        self._now = now

    @property
    def n_readers(self) -> int:
        """Addresses that were sent to of late."""
        return len(self._sockets)

    def send(self, batch: list[tuple[str, Event]]) -> set[str]:
        """Send one tick's events, each to its address; never blocks.

        Returns the requests of which an event did not get out: nobody reads it, or it cannot be encoded.
        """
        self._sender = threading.current_thread()
        addresses = {address for address, _ in batch}
        if len(addresses) == 1:
            return self._push(addresses.pop(), [event for _, event in batch])
        return set().union(
            *(self._push(address, [event for to, event in batch if to == address]) for address in addresses)
        )

    def _push(self, address: str, events: list[Event]) -> set[str]:
        lost: set[str] = set()
        try:
            data = encode(self._engine_id, events)
        except Exception:
            lost = self._unsayable(events)
            data = encode(self._engine_id, [event for event in events if event.request_id not in lost])
        try:
            self._socket(address).send(data, zmq.NOBLOCK, copy=True)
            self._sent_s[address] = self._now()
        except zmq.ZMQError as error:  # Again: its backlog is full; anything else: no such address
            _log.warning("ingress_not_reading", address=address, n_events=len(events), error=str(error))
            return {event.request_id for event in events}
        return lost

    def _unsayable(self, events: list[Event]) -> set[str]:
        """Find the requests of events that cannot be encoded."""
        lost = set()
        for event in events:
            try:
                encode(self._engine_id, [event])
            except Exception:
                _log.exception("unencodable_event", request_id=event.request_id)
                lost.add(event.request_id)
        return lost

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

    It is bounded: beyond `n_most` events nobody reads any longer, and it fails.
    """

    __slots__ = ("_arrived", "_failure", "_n_most", "_on_failure", "_pending")

    def __init__(self, on_failure: Callable[[], None], *, n_most: int) -> None:
        """`on_failure` is called once, to cancel the request."""
        self._pending: list[Event] = []
        self._arrived = asyncio.Event()
        self._on_failure, self._n_most = on_failure, n_most
        self._failure: CobaliError | None = None

    def put(self, event: Event) -> None:
        """Add an event."""
        if self._failure is not None:
            return
        self._pending.append(event)
        self._arrived.set()
        if len(self._pending) > self._n_most:
            self.fail(RequestCancelledError())

    def fail(self, error: CobaliError) -> None:
        """Drop what is pending and give the reader, should it come back, this error."""
        if self._failure is not None:
            return
        self._failure = error
        self._pending.clear()
        self._arrived.set()
        try:
            self._on_failure()
        except Exception:  # the request may go on for nothing; who reads for all streams must not stop
            _log.exception("cancel_failed")

    def nudge(self) -> None:
        """Wake the reader though there may be nothing to take."""
        self._arrived.set()

    async def arrived(self) -> None:
        """Wait for an event or a nudge since the last `take`; where it left some, for the others' turn."""
        if self._pending:
            await asyncio.sleep(0)
        await self._arrived.wait()

    def take(self) -> list[Event]:
        """Return what is pending, possibly nothing, at most MOST_AT_ONCE. Raises what it failed with."""
        if self._failure is not None:
            raise self._failure
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
        self._folder = tempfile.TemporaryDirectory(prefix="cobali-", dir=socket_dir())  # mode 0700
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

    def open(self, request_id: str, on_failure: Callable[[], None]) -> EventStream:
        """Make the stream of a request that is about to be submitted."""
        stream = self._streams[request_id] = EventStream(on_failure, n_most=self._n_most)
        return stream

    def drop(self, request_id: str) -> None:
        """Forget a request; what still arrives for it is ignored."""
        self._streams.pop(request_id, None)

    async def _read(self) -> None:
        while True:
            data = await self._socket.recv()
            try:
                self._share(decode(data))
            except Exception:  # whatever it holds, the messages after it must be read
                _log.exception("undecodable_message", n_bytes=len(data))

    def _share(self, message: Message) -> None:
        """Give each stream what is for it."""
        for request_id in message.lost:
            _log.error("undecodable_event", request_id=request_id, engine_id=message.engine_id)
            if (stream := self._streams.get(request_id)) is not None:
                stream.fail(EventsLostError())
        for event in message.events:
            if (stream := self._streams.get(event.request_id)) is not None:
                stream.put(event)

    def close(self) -> None:
        """Stop reading and remove the socket."""
        if self._task is not None:
            self._task.cancel()
        self._socket.close(linger=0)
        self._context.term()
        self._folder.cleanup()
