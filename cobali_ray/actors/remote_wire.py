"""The wire between machines: ZeroMQ over TCP, encrypted by CURVE. Knows no Ray.

The ingress listens and the engine connects. Each has a key pair of its own, made when it starts; only public
keys travel, over Ray's control path: the ingress's in its address, the engine's in the answer to `attend`.
Whoever the ingress does not know is not let in. A message has in front which connection it is of and which
message of it, so that one that is missing is noticed; an engine without events sends an empty message four
times a second, so that silence is noticed, too.

The messages are those of `wire.py`, and an engine on the ingress's own node uses the Unix socket instead. In
front of each message are a random number of its connection and its own number within that, 8 bytes each,
little-endian. A missing number, or a second connection, means that events may be lost: the requests of that
engine go on elsewhere, after what has arrived. The ingress counts polls, not time, so that one that was busy
does not take its own delay for the engine's silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import secrets
import struct
import threading
from collections.abc import Callable
from typing import Any, Final

import structlog
import zmq
import zmq.asyncio
from zmq.utils import z85

from cobali_ray.actors.address import Address
from cobali_ray.actors.frames import MAX_BACKLOG, MAX_MESSAGE_BYTES
from cobali_ray.ports import FIRST, LAST

_log = structlog.get_logger(__name__)

BEAT_S: Final = 0.25
"""An engine sends a message at least this often."""
SILENT_BEATS: Final = 4
"""Beats without a message after which an ingress takes an engine for gone."""
NEW_BEATS: Final = 8
"""As many more before the first message: the engine has to connect, and may have to try twice."""
UNUSED_BEATS: Final = 120
"""A connection is closed after so many beats without messages and without a sign of the ingress."""
AGAIN_MS: Final = 500
"""How soon a connection that could not be made is tried again."""
CUT_MS: Final = 1000
"""After so long without a sign of life TCP's connection is given up, and made anew."""
LINGER_MS: Final = 200
"""How long closing waits for the last messages to leave."""
MAX_QUEUED: Final = 16
"""Messages that ZeroMQ holds besides. The ingress's end takes many more: where it stops to read, its signs of
life end, too."""

_HEAD = struct.Struct("<QQ")


class Reception:
    """What was received from one engine: whether messages are missing, whether it is silent. Pure."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._next = 0
        self._n_looks = -NEW_BEATS

    def note(self, epoch: int, number: int) -> bool:
        """Record a message. Returns whether none is missing before it."""
        expected = self._next if epoch == self._epoch else 0
        # Whether all of a connection arrived is unknown once another one follows it.
        whole = number == expected and self._epoch in {None, epoch}
        self._epoch, self._next, self._n_looks = epoch, number + 1, 0
        return whole

    def look(self) -> bool:
        """Check for silence, once in a beat. Returns whether the engine counts as gone from this beat on."""
        self._n_looks += 1
        return self._n_looks == SILENT_BEATS

    @property
    def silent(self) -> bool:
        """Whether it has been silent for longer than a live engine ever is."""
        return self._n_looks >= SILENT_BEATS


class RemoteConnection:
    """The engine's end of the way to one ingress elsewhere. Its own thread sends; callers never wait.

    The caller counts what it queued and the thread what it sent: no locks.
    """

    def __init__(self, connect: Callable[[Address], zmq.Socket[bytes]], address: Address) -> None:
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._n_queued = self._n_left = self._n_unused = 0
        self._closing = False
        self.closed = False
        """Whether it was closed because it was not used."""
        self._thread = threading.Thread(target=self._speak, args=(connect, address), name="wire", daemon=True)
        self._thread.start()

    def send(self, message: bytes) -> None:
        """Send a message soon. BlockingIOError: too many wait; any other OSError: it is closed."""
        if self.closed:
            raise ConnectionResetError("the ingress has kept no touch")
        if self._n_queued - self._n_left >= MAX_BACKLOG:
            raise BlockingIOError(f"{MAX_BACKLOG} messages wait")
        self._n_queued += 1
        self._waiting.put(message)

    def keep(self) -> None:
        """Record that the ingress is there and wants messages."""
        self._n_unused = 0

    def _speak(self, connect: Callable[[Address], zmq.Socket[bytes]], address: Address) -> None:
        try:
            with connect(address) as socket:
                self._speak_on(socket)
        except zmq.ZMQError:  # no such address, or no more sockets
            _log.exception("wire_failed", endpoint=address.endpoint)
        finally:
            self.closed = True

    def _speak_on(self, socket: zmq.Socket[bytes]) -> None:
        epoch, number = secrets.randbits(64), 0
        while self._n_unused < UNUSED_BEATS:
            try:
                message = self._waiting.get(timeout=BEAT_S)
            except queue.Empty:
                self._n_unused += 1
                number += self._say(socket, _HEAD.pack(epoch, number))
                continue
            if message is None:
                return
            while not self._say(socket, _HEAD.pack(epoch, number) + message):
                self._n_unused += 1
                if self._closing or self._n_unused >= UNUSED_BEATS:
                    break
                socket.poll(int(BEAT_S * 1000), zmq.POLLOUT)
            else:
                self._n_unused = 0
            number += 1
            self._n_left += 1

    @staticmethod
    def _say(socket: zmq.Socket[bytes], data: bytes) -> bool:
        """Send what there is room for. Returns whether there was."""
        try:
            socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        """Close the connection. Its last messages are on their way until the engine's end is closed, too."""
        self._closing = True
        self._waiting.put(None)
        self._thread.join()


class RemoteEnd:
    """The engine's end of all ways to other machines. Its tick thread sends, and another one may `meet`."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._public, self._secret = zmq.curve_keypair()
        self.key = self._public.decode()
        """The public one, by which an ingress knows this engine."""
        self._connections: dict[Address, RemoteConnection] = {}
        self._opening = threading.Lock()

    @property
    def n_readers(self) -> int:
        return sum(not connection.closed for connection in list(self._connections.values()))

    def connection(self, address: Address) -> RemoteConnection:
        """Return the way to an ingress. It is made in the background, for as long as that takes."""
        with self._opening:
            connection = self._connections.get(address)
            if connection is None or connection.closed:
                self._connections = {a: c for a, c in self._connections.items() if not c.closed}
                connection = self._connections[address] = RemoteConnection(self._connect, address)
            return connection

    def meet(self, address: Address) -> None:
        """Send messages to an ingress from now on, also if there are no events."""
        self.connection(address).keep()

    def _connect(self, address: Address) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.PUSH)
        _prepare(socket)
        socket.sndhwm = MAX_QUEUED
        socket.reconnect_ivl, socket.reconnect_ivl_max = AGAIN_MS // 5, AGAIN_MS
        socket.connect_timeout = CUT_MS
        socket.curve_serverkey = address.key.encode()
        socket.curve_publickey, socket.curve_secretkey = self._public, self._secret
        socket.connect(address.endpoint)
        return socket

    def close(self) -> None:
        """Close all connections, after a moment for the last messages."""
        for connection in self._connections.values():
            connection.close()
        self._context.term()


class RemoteListener:
    """The ingress's end: one port for messages of engines on other machines that were admitted.

    `take` gets each message with the key of the engine that it is of; `lose` a key, when messages of that
    engine are missing or it is silent. All of it runs on one event loop.
    """

    def __init__(self, host: str, take: Callable[[bytes, str], None], lose: Callable[..., None]) -> None:
        self._take, self._lose = take, lose
        self._context = zmq.asyncio.Context()
        public, secret = zmq.curve_keypair()
        self.key = public.decode()
        self._guard = self._context.socket(zmq.ROUTER)
        self._guard.bind("inproc://zeromq.zap.01")
        self._socket = self._context.socket(zmq.PULL)
        _prepare(self._socket)
        self._socket.maxmsgsize = _HEAD.size + MAX_MESSAGE_BYTES
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = public, secret
        self._socket.zap_domain = b"cobali"
        address = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
        self.endpoint = f"{address}:{self._socket.bind_to_random_port(address, FIRST, LAST)}"
        self._engines: dict[str, Reception] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to listen, on the running event loop."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work()) for work in (self._admit, self._read, self._watch)]

    def admit(self, key: str) -> None:
        """Admit this engine from now on; it has to send a message soon."""
        if key not in self._engines:
            self._engines = {k: reception for k, reception in self._engines.items() if not reception.silent}
            self._engines[key] = Reception()

    def silent(self, key: str) -> bool:
        reception = self._engines.get(key)
        return reception is not None and reception.silent

    async def _admit(self) -> None:
        """Answer ZeroMQ, which asks for each connection whether this key may come in (ZAP, its RFC 27)."""
        while True:
            try:
                (
                    *asker,
                    version,
                    request_id,
                    _,
                    address,
                    _,
                    mechanism,
                    credential,
                ) = await self._guard.recv_multipart()
            except zmq.Again:  # the asker has left
                continue
            key = z85.encode(credential).decode() if mechanism == b"CURVE" else ""
            admitted = key in self._engines
            if not admitted:
                _log.warning("engine_not_admitted", address=address.decode(), key=key)
            # 300: not now. After 400 an engine that is known only later would not try again.
            status = b"200" if admitted else b"300"
            await self._guard.send_multipart([*asker, version, request_id, status, b"", key.encode(), b""])

    async def _read(self) -> None:
        while True:
            try:
                frame = await self._socket.recv(copy=False)
            except zmq.Again:  # there was a message, and its connection has ended
                continue
            with contextlib.suppress(struct.error):  # no engine of ours, whoever let it in
                key, data = str(frame.get("User-Id")), frame.bytes
                self._received(key, *_HEAD.unpack_from(data))
                if len(data) > _HEAD.size:
                    self._take(data[_HEAD.size :], key)
            await asyncio.sleep(0)  # however much there is, others have their turn

    def _received(self, key: str, epoch: int, number: int) -> None:
        reception = self._engines.setdefault(key, Reception())
        if reception.silent:
            _log.info("engine_heard_again", key=key)
        if not reception.note(epoch, number):
            _log.warning("messages_missing", key=key, number=number)
            self._lose(key, "")  # what is missing may be the first of any stream

    async def _watch(self) -> None:
        # Looks are counted, not time: while this loop was busy it received nothing.
        while True:
            await asyncio.sleep(BEAT_S)
            for key, reception in list(self._engines.items()):
                if reception.look():
                    _log.warning("engine_silent", key=key, endpoint=self.endpoint)
                    self._lose(key)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._context.destroy(linger=0)


def _prepare(socket: zmq.Socket[Any]) -> None:
    """Set what both ends have in common."""
    socket.linger = LINGER_MS
    socket.ipv6 = True
    socket.handshake_ivl = AGAIN_MS
    socket.heartbeat_ivl, socket.heartbeat_timeout = AGAIN_MS, CUT_MS
