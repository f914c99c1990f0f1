"""The worker's end of a tunnel, which alone listens beyond loopback. The protocol is in `tunnel.py`."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable

import msgspec
import structlog
import zmq

from cobali_ray.backend.tunnel import BEAT_S, NUMBER, Greeting, WorkerFacts, prepare, read_of, send_on, tcp_of
from cobali_ray.backend.tunnel_key import TunnelKey
from cobali_ray.ports import LOOPBACK

_log = structlog.get_logger(__name__)

_ZAP = "inproc://zeromq.zap.01"
_CONNECT_S = 10.0


class TunnelListener:
    """Lets one engine at a time reach the RPC of this process, if it has the key."""

    def __init__(
        self, host: str, port: int, key: TunnelKey, rpc_port: int, facts: Callable[[], WorkerFacts]
    ) -> None:
        """Listen. Raises zmq.ZMQError if it cannot."""
        self._rpc_port, self._facts, self._engines_key = rpc_port, facts, key.engine.public
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._guard = self._context.socket(zmq.REP)
        self._guard.bind(_ZAP)
        self._socket = self._context.socket(zmq.ROUTER)
        prepare(self._socket)
        self._socket.router_mandatory = 1  # so that sending to an engine that has left fails
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = key.worker
        self._socket.zap_domain = b"cobali"
        self._socket.bind(tcp_of(host, port))
        self._poller = zmq.Poller()
        self._poller.register(self._guard, zmq.POLLIN)
        self._poller.register(self._socket, zmq.POLLIN)
        self._engine: bytes | None = None
        """The engine that the device is lent to, by ZeroMQ's name of the connection."""
        self._links: dict[int, socket.socket] = {}
        self._last = 0
        self._beat_s = 0.0

    def start(self) -> None:
        """Serve in a thread; if that fails, the process ends."""
        threading.Thread(target=self._serve, daemon=True, name="tunnel").start()

    def _serve(self) -> None:
        try:
            while True:
                self.turn()
        except BaseException:
            _log.exception("tunnel_failed")
            sys.stderr.flush()
            os._exit(1)

    def turn(self) -> None:
        """Wait for something to do, at most until the next sign of life, and do it."""
        ready = dict(self._poller.poll(int(BEAT_S * 1000)))
        if self._guard in ready:
            self._admit()
        for number, link in list(self._links.items()):
            if link.fileno() in ready and self._links.get(number) is link:
                self._read(number, link)
        if self._socket in ready:
            self._receive(*self._socket.recv_multipart())
        if (now_s := time.monotonic()) - self._beat_s >= BEAT_S:
            self._beat_s = now_s
            self._send(0, msgspec.json.encode(self._facts()))

    def close(self) -> None:
        """Stop listening and close all connections; no thread may be in `turn`."""
        for number in list(self._links):
            self._drop(number)
        self._context.destroy(linger=0)

    def _admit(self) -> None:
        """Answer ZeroMQ, which asks for each connection whether its key may come in (ZAP, its RFC 27)."""
        version, request_id, _, address, _, mechanism, credential, *_ = self._guard.recv_multipart()
        admitted = mechanism == b"CURVE" and zmq.utils.z85.encode(credential) == self._engines_key
        if not admitted:
            _log.warning("engine_not_admitted", address=address.decode())
        self._guard.send_multipart([version, request_id, b"200" if admitted else b"400", b"", b"", b""])

    def _receive(self, engine: bytes, head: bytes, data: bytes) -> None:
        (number,) = NUMBER.unpack(head)
        if not number:
            self._greet(engine, msgspec.json.decode(data, type=Greeting))
        elif engine == self._engine:
            self._hand_on(number, data)

    def _greet(self, engine: bytes, greeting: Greeting) -> None:
        ours = Greeting()
        if greeting.llama != ours.llama:
            why = (
                f"has llama-cpp-python {ours.llama}, and this engine {greeting.llama}: "
                "install the same cobali_ray on both"
            )
            answer = Greeting(refusal=why, for_good=True)
        else:
            self._send(0, msgspec.json.encode(self._facts()))  # which notices that an engine has left
            busy = "it lends its device to another engine, and serves one at a time"
            answer = ours if self._engine is None else Greeting(refusal=busy)
        try:
            self._socket.send_multipart([engine, NUMBER.pack(0), msgspec.json.encode(answer)])
        except zmq.ZMQError:
            return
        if not answer.refusal:
            self._engine = engine
            _log.info("lent", cobali=greeting.cobali)

    def _hand_on(self, number: int, data: bytes) -> None:
        if number > self._last:
            self._last = number
            try:
                link = socket.create_connection((LOOPBACK, self._rpc_port), _CONNECT_S)
            except OSError:  # it does not listen yet
                self._send(number, b"")
                return
            link.settimeout(None)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._links[number] = link
            self._poller.register(link, zmq.POLLIN)
        if (target := self._links.get(number)) is not None and not send_on(target, data):
            self._drop(number)

    def _read(self, number: int, link: socket.socket) -> None:
        data = read_of(link)
        if not data:
            self._drop(number)
        self._send(number, data)

    def _drop(self, number: int) -> None:
        link = self._links.pop(number)
        self._poller.unregister(link)
        link.close()

    def _send(self, number: int, data: bytes) -> None:
        """Send to the engine, waiting until it takes it; note if it has left."""
        while self._engine is not None:
            try:
                self._socket.send_multipart([self._engine, NUMBER.pack(number), data])
            except zmq.Again:
                continue
            except zmq.ZMQError:
                self._engine, self._last = None, 0
                for link_number in list(self._links):
                    self._drop(link_number)
                _log.info("given_back")
            return
