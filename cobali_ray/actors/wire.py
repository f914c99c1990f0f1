"""The wire: one message per tick and ingress, encoded, sent and read. Knows no Ray.

An address is where one ingress listens: a Unix socket, reachable on this machine only and by this user only
(it is private, and so is its directory). Each engine has one connection to it, a stream of frames. An address
in a cluster names a port, too, for engines on other machines (`remote_wire`).

A message is a frame (`frames.py`) with a msgpack array `[engine_id, [event, ...]]`, and each event is an
array that begins with the id of its request:

    delta       [id, text, [token_id, ...], [logprob, ...], stats, [prompt logprob, ...]]
    vectors     [id, rows, [text number, ...]]     rows: 32-bit floats, little-endian, one text after another
    progress    [id, n_processed, n_cached, n_prompt, seconds, n_ahead, wait_s]
    computing   [id, on]                           true before anything is computed for the request
    end         [id, [finish_reason, error, stats, stop]]

The type of the second element tells them apart: text, bytes, a number, a boolean or a list. A logprob is
`[token_id, piece, logprob, [[token_id, piece, logprob], ...], rank]`; `stats` is `RequestStats` as an
array, in deltas only with the first tokens; `error` is null or `[class name, args]` of a class in
`errors.py`; `stop` is the stop string that ended the answer. There is no version: both ends belong to one
deployment.

Sending never blocks the tick, and no buffer grows without bound: what the socket does not take at once is
sent by a thread of the connection, at most `MAX_BACKLOG` messages wait for it, and a message is at most
`MAX_MESSAGE_BYTES` long. A client that leaves thousands of events unread has its request cancelled; until
then a slow one costs the engine nothing. A broken connection is closed, and the next event opens another one.

A lost event costs its own request and nothing else. If the engine cannot send or encode one, it cancels the
request, sends nothing more for it, and the control call returns `EventsLostError`. If the ingress cannot read
one, it ends the stream with the same error and cancels the control call. A loss that neither notices shows
when the control call has returned and no `End` has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog

from cobali_ray import errors
from cobali_ray.actors.address import Address, others_reach
from cobali_ray.actors.fork_worker import SOCKET
from cobali_ray.actors.frames import MAX_BACKLOG, MAX_MESSAGE_BYTES, FrameReader, frame
from cobali_ray.core.dispatch.messages import Event, EventsReceived, Unheard, Unreadable
from cobali_ray.core.request.events import (
    Computing,
    Delta,
    End,
    EngineEvent,
    RequestProgress,
    RequestStats,
    TokenLogprob,
    Vectors,
)
from cobali_ray.errors import CobaliError, InternalError
from cobali_ray.ports import socket_dir

if TYPE_CHECKING:
    from cobali_ray.actors.remote_wire import RemoteConnection, RemoteEnd, RemoteListener

_log = structlog.get_logger(__name__)

LAST_WORDS_S = 0.2
"""How long closing waits for the last messages to leave."""
LOCAL = "here"
"""In place of a key: an engine on the ingress's own node."""
READ_BYTES = 1 << 16
"""What is read at once, at most. From 128 KiB on each read pays for new memory, about 17 microseconds."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


class WireMessage(NamedTuple):
    """One engine's message to one ingress after a tick."""

    engine_id: str
    events: list[EngineEvent]
    lost: list[str]
    """Requests with an event that could not be decoded; "" if not even its request could be."""


def encode(engine_id: str, events: Iterable[EngineEvent]) -> bytes:
    """Encode one message; events are arrays.

    In second place Delta has a text, Vectors bytes, RequestProgress a number, End a list and Computing a
    boolean.
    """
    return _pack((engine_id, [_flat_end(e) if isinstance(e, End) else e for e in events]))


def _flat_end(end: End) -> tuple[Any, ...]:
    error = None if end.error is None else (type(end.error).__name__, end.error.args)
    return (end.request_id, (end.finish_reason, error, end.stats, end.stop))


def decode(data: bytes) -> WireMessage:
    """Decode what `encode` made; an event that cannot be read costs its own request only.

    Raises DecodeError, TypeError or ValueError for what is no message at all.
    """
    engine_id, items = _unpack(data)
    if not isinstance(engine_id, str):
        raise TypeError(f"an engine id is a string, not {type(engine_id).__name__}")
    message = WireMessage(engine_id, [], [])
    for item in items:
        try:
            message.events.append(_event(item))
        except (TypeError, ValueError, LookupError, AttributeError):
            owner = item[0] if isinstance(item, list) and item else None
            message.lost.append(owner if isinstance(owner, str) else "")
    return message


def _event(item: list[Any]) -> EngineEvent:
    request_id, second = item[0], item[1]
    if not isinstance(request_id, str):
        raise TypeError(f"a request id is a string, not {type(request_id).__name__}")
    if isinstance(second, str):
        _, _, tokens, logprobs, stats, prompt = item
        return Delta(
            request_id,
            second,
            tuple(tokens),
            tuple(map(_logprob, logprobs)) if logprobs else (),
            None if stats is None else RequestStats(*stats),
            tuple(map(_logprob, prompt)) if prompt else (),
        )
    if isinstance(second, bytes):
        return Vectors(request_id, second, tuple(item[2]))
    if isinstance(second, bool):
        return Computing(request_id, second)
    if isinstance(second, int):
        return RequestProgress(*item)
    reason, error, stats, stop = second
    return End(request_id, reason, None if error is None else _error(*error), RequestStats(*stats), stop)


def _logprob(item: list[Any]) -> TokenLogprob:
    token, piece, logprob, top, rank = item
    return TokenLogprob(token, piece, logprob, tuple((t, p, lp) for t, p, lp in top), rank)


def _error(name: str, args: list[Any]) -> CobaliError:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, CobaliError):
        with contextlib.suppress(TypeError, ValueError, LookupError, AttributeError):
            return kind(*args)
    return InternalError(name, *args)


class Connection:
    """The engine's end of the way to one ingress. One thread sends, and never waits.

    What the socket does not take at once goes to a thread of its own, and so does everything after it until
    that thread has caught up. The sender counts what it handed over and the thread what has left: no locks.
    """

    def __init__(self, address: str) -> None:
        """Connect. Raises OSError if nobody listens there."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.connect(address)
            self._socket.setblocking(True)
        except OSError:
            self._socket.close()
            raise
        self._late: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._n_late = self._n_caught_up = 0
        self._thread: threading.Thread | None = None
        self._failure: OSError | None = None

    def send(self, message: bytes) -> None:
        """Send a message, now or soon. BlockingIOError: too many wait; any other OSError: it is broken."""
        if self._failure is not None:
            raise self._failure
        rest = frame(message)
        if self._n_late == self._n_caught_up:
            with contextlib.suppress(BlockingIOError):
                rest = rest[self._socket.send(rest, socket.MSG_DONTWAIT) :]
            if not rest:
                return
        elif self._n_late - self._n_caught_up >= MAX_BACKLOG:
            raise BlockingIOError(f"{MAX_BACKLOG} messages wait")
        self._n_late += 1
        self._late.put(rest)
        if self._thread is None:
            self._thread = threading.Thread(target=self._catch_up, name="wire", daemon=True)
            self._thread.start()

    def _catch_up(self) -> None:
        while (rest := self._late.get()) is not None:
            try:
                self._socket.sendall(rest)
            except OSError as error:
                self._failure = error
                return
            self._n_caught_up += 1

    @property
    def closed(self) -> bool:
        """Whether the ingress has closed its end."""
        try:
            return not self._socket.recv(1, socket.MSG_DONTWAIT)  # it says nothing, it can only end
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close it, after a moment for the last messages."""
        if self._thread is not None:
            self._late.put(None)
            self._thread.join(LAST_WORDS_S)
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # a send that still waits fails
            self._thread.join()
        self._socket.close()


class Pusher:
    """The engine's side: one connection per ingress. Used by the tick thread only, but for `meet`."""

    def __init__(self, engine_id: str, *, host: str = "", node_id: str = "") -> None:
        """`host` is the node's address, and where others reach that, ingresses may be on other nodes."""
        self._engine_id, self._node_id = engine_id, node_id
        self._sender: threading.Thread | None = None
        self._connections: dict[str, Connection] = {}
        self._remote: RemoteEnd | None = None
        if others_reach(host):
            from cobali_ray.actors.remote_wire import RemoteEnd

            self._remote = RemoteEnd()

    @property
    def n_readers(self) -> int:
        """Ingresses that it is connected to."""
        return len(self._connections) + (self._remote.n_readers if self._remote is not None else 0)

    def meet(self, address: str, *, known: bool) -> str:
        """Return the key by which an ingress elsewhere knows this engine; "" if it needs none.

        An ingress that knows it already gets messages from now on. Called by any thread.
        """
        where = Address.parse(address)
        if self._remote is None or not where.is_far(self._node_id):
            return ""
        if known:
            self._remote.meet(where)
        return self._remote.key

    def send(self, batch: list[tuple[str, EngineEvent]]) -> set[str]:
        """Send one tick's events, each to its address; never blocks.

        Returns the requests of which an event did not get out: nobody reads it, or it cannot be encoded.
        """
        self._sender = threading.current_thread()
        lost: set[str] = set()
        for address in {address for address, _ in batch}:
            lost |= self._push(address, [event for to, event in batch if to == address])
        return lost

    def _push(self, address: str, events: list[EngineEvent]) -> set[str]:
        lost: set[str] = set()
        try:
            data = encode(self._engine_id, events)
        except Exception:
            lost = self._unsayable(events)
            data = encode(self._engine_id, [event for event in events if event.request_id not in lost])
        try:
            if len(data) > MAX_MESSAGE_BYTES:
                raise BlockingIOError(f"a message of {len(data)} bytes")
            self._connection(address).send(data)
        except OSError as error:
            _log.warning("ingress_not_reading", address=address, n_events=len(events), error=str(error))
            if not isinstance(error, BlockingIOError) and (broken := self._connections.pop(address, None)):
                broken.close()  # if the ingress lives after all, the next event opens a new one
            return {event.request_id for event in events}
        return lost

    def _unsayable(self, events: list[EngineEvent]) -> set[str]:
        """Return the requests whose events cannot be encoded."""
        lost = set()
        for event in events:
            try:
                encode(self._engine_id, [event])
            except Exception:
                _log.exception("unencodable_event", request_id=event.request_id)
                lost.add(event.request_id)
        return lost

    def _connection(self, address: str) -> Connection | RemoteConnection:
        connection = self._connections.get(address)
        if connection is None:
            where = Address.parse(address)
            if self._remote is not None and where.is_far(self._node_id):
                return self._remote.connection(where)
            self._drop_closed()
            connection = self._connections[address] = Connection(where.near)
        return connection

    def _drop_closed(self) -> None:
        """Close connections without a reader: an ingress that was restarted has another address."""
        for address in [a for a, connection in self._connections.items() if connection.closed]:
            self._connections.pop(address).close()

    def close(self) -> None:
        """Close all connections, giving last words a moment to get out.

        A socket belongs to the thread that uses it: another one closes it only once that has ended. One that
        hangs keeps them, and the process, which is about to end, takes them along.
        """
        if self._sender in {None, threading.current_thread()} or not self._sender.is_alive():
            while self._connections:
                self._connections.popitem()[1].close()
            if self._remote is not None:
                self._remote.close()


def _sockets() -> str:
    """Return where sockets lie: in the server's own folder, which goes even if this process is killed."""
    forks = os.environ.get(SOCKET)
    return str(Path(forks).parent) if forks else socket_dir()


class Puller:
    """The ingress's side, to which an engine connects. Its events go to `on_event`."""

    def __init__(
        self, engine_id: str, on_event: Callable[[Event], None], *, host: str = "", node_id: str = ""
    ) -> None:
        """`host` is the node's address; if others reach it, engines of other nodes can send, too."""
        self._engine_id, self._on_event = engine_id, on_event
        self._folder = tempfile.TemporaryDirectory(prefix="cobali-", dir=_sockets())  # mode 0700
        near = Path(self._folder.name) / "events"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(near))
        near.chmod(0o600)
        self._listener.listen()
        self._listener.setblocking(False)
        self._engines: set[socket.socket] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._remote: RemoteListener | None = None
        address = Address(str(near))
        if others_reach(host):
            from cobali_ray.actors.remote_wire import RemoteListener

            self._remote = RemoteListener(host, self._take, self._lose)
            address = Address(str(near), node_id, self._remote.endpoint, self._remote.key)
        self.address = str(address)

    def start(self) -> None:
        """Begin to read, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener, self._accept, self._loop)
        if self._remote is not None:
            self._remote.start()

    def admit(self, key: str) -> None:
        """Admit an engine of another node, by its key; "" is one that needs none."""
        if key and self._remote is not None:
            self._remote.admit(key)

    def _accept(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(OSError):  # it left before its turn came
            engine, _ = self._listener.accept()
            self._engines.add(engine)
            loop.add_reader(engine, self._read, loop, engine, FrameReader())

    def _read(self, loop: asyncio.AbstractEventLoop, engine: socket.socket, frames: FrameReader) -> None:
        """Read what has arrived from an engine. If it has gone, half a message goes with it."""
        try:
            data = engine.recv(READ_BYTES, socket.MSG_DONTWAIT)
            messages = frames.feed(data)
        except BlockingIOError:
            return
        except (OSError, InternalError) as error:
            _log.error("engine_unreadable", error=repr(error))
            data, messages = b"", []
        for message in messages:
            self._take(message)
        if not data:
            self._engines.discard(engine)
            loop.remove_reader(engine)
            engine.close()

    def silent(self, source: str) -> bool:
        """Return whether an engine of another node, by its key, is silent at present."""
        return bool(source) and self._remote is not None and self._remote.silent(source)

    def _take(self, data: bytes, source: str = LOCAL) -> None:
        try:
            message = decode(data)
            if message.lost:
                _log.error("undecodable_events", request_ids=message.lost, engine_id=message.engine_id)
                self._on_event(Unreadable(message.lost))
            self._on_event(EventsReceived(message.events, source))
        except Exception:  # whatever it holds, the messages after it must be read
            _log.exception("undecodable_message", n_bytes=len(data))

    def _lose(self, *sources: str) -> None:
        """Report a silent engine of another node; "" is the source of requests without an event."""
        self._on_event(Unheard(self._engine_id, sources))

    def close(self) -> None:
        """Stop reading and remove the socket."""
        loop, self._loop = self._loop, None
        for reader in (self._listener, *self._engines):
            if loop is not None and not loop.is_closed():
                loop.remove_reader(reader)
            reader.close()
        self._engines.clear()
        self._folder.cleanup()
        if self._remote is not None:
            self._remote.close()
