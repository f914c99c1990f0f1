"""The engine's end of a tunnel to a worker on another machine: ZeroMQ over TCP, encrypted by CURVE.

llama.cpp's RPC has neither keys nor encryption, and runs what it is sent. So it stays on loopback at both
ends, and only the tunnel goes between the machines. Each end proves that it has the key file before the other
reads a byte of it, by a key pair that is derived from the file; what encrypts is made anew for each
connection (CurveZMQ, ZeroMQ's RFC 26).

A message is a number of four bytes and data. Number 0 is between the ends: first the engine's version, which
the worker answers, and then the worker's facts every second. Others are connections to the worker's RPC, in
the order in which the engine opens them; one without data ends its connection.

A lost message would put the rest in the wrong place, so a connection between the ends that breaks is never
made anew: the engine ends itself, as it does without its device.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final

import msgspec
import psutil
import structlog
import zmq
from zmq.utils.monitor import recv_monitor_message

from cobali_ray import __version__
from cobali_ray.backend.endpoint import address_of
from cobali_ray.backend.tunnel_key import TunnelKey
from cobali_ray.errors import ConfigError
from cobali_ray.ports import LOOPBACK, authority

_log = structlog.get_logger(__name__)

SILENT_MS: Final = 10_000
"""After so long without a sign of life the other end counts as lost."""
BEAT_S: Final = 1.0
"""How often the worker sends its facts."""
CHUNK_BYTES: Final = 1 << 18
"""Most data of one message."""
NUMBER: Final = struct.Struct("<I")
_PAUSE_S: Final = 0.3
_QUEUED: Final = 32
"""Messages that may wait at each end: 8 MiB, after which the sender waits."""
_WAIT_MS: Final = 1_000
_LINGER_MS: Final = 200
_SEALED_BYTES: Final = 1 << 10
"""How much longer an encrypted message may be."""
_ENDED = (
    zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)  # fmt: skip


class Greeting(msgspec.Struct, frozen=True):
    """What the ends send each other before anything else."""

    llama: str = msgspec.field(default_factory=lambda: version("llama-cpp-python"))
    cobali: str = __version__
    refusal: str = ""
    """Why the worker does not lend its device; "" if it does."""
    for_good: bool = False
    """Whether trying again is of no use."""


class WorkerFacts(msgspec.Struct, frozen=True):
    """What a worker sends of itself every second."""

    busy_s: float | None = None
    """How long its device has computed, as far as it knows."""


def prepare(sock: zmq.Socket[Any]) -> None:
    """Set what both ends have in common."""
    sock.linger, sock.ipv6 = _LINGER_MS, True
    sock.sndhwm = sock.rcvhwm = _QUEUED
    sock.sndtimeo = _WAIT_MS
    sock.maxmsgsize = CHUNK_BYTES + _SEALED_BYTES
    sock.handshake_ivl = SILENT_MS
    sock.heartbeat_ivl, sock.heartbeat_timeout = _WAIT_MS, SILENT_MS


def tcp_of(host: str, port: int) -> str:
    """Return an address as ZeroMQ writes it."""
    return f"tcp://{authority(host, port)}"


class Tunnel:
    """An open tunnel: `endpoint` on loopback is the worker, for this process alone."""

    def __init__(self, address: str, key: TunnelKey, timeout_s: float, lose: Callable[[str], None]) -> None:
        """Open it. Raises ConfigError that names the worker; `lose` gets the reason when it is lost later."""
        self._address, self._key, self._lose = address, key, lose
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._links: dict[int, socket.socket] = {}
        self._number = 0
        self.facts = WorkerFacts()
        """The last that the worker sent."""
        try:
            self._socket, self._monitor = self._open(time.monotonic() + timeout_s, timeout_s)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._listener = socket.create_server((LOOPBACK, 0))
        self.endpoint = authority(*self._listener.getsockname())
        self._end, self._ended = socket.socketpair()
        self._thread = threading.Thread(target=self._carry, daemon=True, name="tunnel")
        self._thread.start()

    # -- opening --------------------------------------------------------------------------------------

    def _open(self, deadline: float, timeout_s: float) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        host, port = address_of(self._address)
        while True:
            why = ""
            try:
                socket.getaddrinfo(host, port)
            except OSError as error:
                why = f"there is no such machine ({error.strerror})"
            else:
                opened = self._connect(tcp_of(host, port))
                answer = self._greeted(*opened, deadline)
                if isinstance(answer, Greeting) and not answer.refusal:
                    return opened
                self._close(*opened)
                why = answer.refusal if isinstance(answer, Greeting) else answer
                if isinstance(answer, Greeting) and answer.for_good:
                    raise ConfigError("devices", f"the worker at {self._address} {why}")
            if time.monotonic() + _PAUSE_S >= deadline:
                raise ConfigError("devices", f"the worker at {self._address}, after {timeout_s:.0f} s: {why}")
            threading.Event().wait(_PAUSE_S)

    def _connect(self, where: str) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        sock = self._context.socket(zmq.DEALER)
        prepare(sock)
        sock.reconnect_ivl = -1
        sock.curve_serverkey = self._key.worker.public
        sock.curve_publickey, sock.curve_secretkey = self._key.engine
        monitor = sock.get_monitor_socket(_ENDED | zmq.EVENT_CONNECTED)
        sock.connect(where)
        sock.send_multipart([NUMBER.pack(0), msgspec.json.encode(Greeting())])
        return sock, monitor

    @staticmethod
    def _greeted(sock: zmq.Socket[bytes], monitor: zmq.Socket[bytes], deadline: float) -> Greeting | str:
        """Return the worker's answer, or why there is none."""
        poller, connected = zmq.Poller(), False
        poller.register(sock, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            ready = dict(poller.poll(int(left * 1000) + 1))
            if monitor in ready:  # first, so that what comes of it later is an end
                if recv_monitor_message(monitor)["event"] == zmq.EVENT_CONNECTED:
                    connected = True
                elif connected:
                    return "it ends the connection: worker_key_file must be the file of its --key-file"
                else:
                    return "nobody answers there; `cobali worker --listen` starts one"
            elif sock in ready:
                return msgspec.json.decode(sock.recv_multipart()[1], type=Greeting)
        return "no answer" if connected else "no answer: it is switched off, or a firewall is between"

    @staticmethod
    def _close(sock: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        sock.disable_monitor()
        monitor.close(linger=0)
        sock.close()

    # -- open -----------------------------------------------------------------------------------------

    def _carry(self) -> None:
        """Carry data both ways, until it is closed or the worker is lost.

        It may wait to send, and does not read meanwhile: RPC asks, then waits for the answer, so only one
        side sends at a time.
        """
        poller = zmq.Poller()
        for source in (self._socket, self._monitor, self._listener, self._ended):
            poller.register(source, zmq.POLLIN)
        why = ""
        try:
            while not why:
                ready = dict(poller.poll())
                if self._ended.fileno() in ready:
                    return
                if self._monitor in ready:
                    why = "the connection to it broke"
                for number, link in list(self._links.items()):
                    if link.fileno() in ready:
                        self._read(number, link, poller)
                if self._socket in ready:
                    self._receive(poller)
                if self._listener.fileno() in ready:  # last: a new link may get the number of one just closed
                    self._take(poller)
        except Exception as error:
            _log.exception("tunnel_failed", worker=self._address)
            why = repr(error)
        self._lose(why)

    def _receive(self, poller: zmq.Poller) -> None:
        head, data = self._socket.recv_multipart()
        (number,) = NUMBER.unpack(head)
        if not number:
            self.facts = msgspec.json.decode(data, type=WorkerFacts)
        elif (link := self._links.get(number)) is not None and not send_on(link, data):
            self._drop(number, poller)

    def _take(self, poller: zmq.Poller) -> None:
        link, peer = self._listener.accept()
        if not _ours(peer):
            _log.warning("tunnel_refused", peer=authority(*peer), detail="it is another process")
            link.close()
            return
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number += 1
        self._links[self._number] = link
        poller.register(link, zmq.POLLIN)

    def _read(self, number: int, link: socket.socket, poller: zmq.Poller) -> None:
        data = read_of(link)
        if not data:
            self._drop(number, poller)
        while True:
            try:
                self._socket.send_multipart([NUMBER.pack(number), data])
            except zmq.Again:
                if self._monitor.poll(0):  # nobody will take it
                    return
            else:
                return

    def _drop(self, number: int, poller: zmq.Poller) -> None:
        link = self._links.pop(number)
        poller.unregister(link)
        link.close()

    def close(self) -> None:
        """Release the worker; nothing may use its device any more."""
        self._end.close()
        self._thread.join()
        for link in (*self._links.values(), self._listener, self._ended):
            link.close()
        self._close(self._socket, self._monitor)
        self._context.term()


def read_of(link: socket.socket) -> bytes:
    """Return what was received; nothing if the other side has ended."""
    try:
        return link.recv(CHUNK_BYTES)
    except OSError:
        return b""


def send_on(link: socket.socket, data: bytes) -> bool:
    """Send data on; return whether there was any, and it could be sent."""
    with contextlib.suppress(OSError):
        link.sendall(data)
        return bool(data)
    return False


def _ours(peer: tuple[str, int]) -> bool:
    """Whether this process has the other end: every account of the machine reaches its loopback."""
    return any(connection.laddr == peer for connection in psutil.Process().net_connections("tcp4"))
