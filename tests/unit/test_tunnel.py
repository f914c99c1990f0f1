"""The tunnel to a worker of another machine: who gets in, what comes out, what is said if nobody answers."""

import os
import re
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cobali_ray.backend import tunnel_listener
from cobali_ray.backend.tunnel import Greeting, Tunnel, WorkerFacts
from cobali_ray.backend.tunnel_key import TunnelKey, make_key
from cobali_ray.backend.tunnel_listener import TunnelListener
from cobali_ray.errors import ConfigError
from cobali_ray.ports import free_port
from tests.waiting import wait_until

KEY = TunnelKey.of(b"a" * 32)
PATIENCE_S = 30.0


LENGTH = struct.Struct("<Q")


def hear(link):
    """Return a whole message, which begins with its length; b"" if there is none."""
    heard = bytearray()
    while more := link.recv(1 << 16):
        heard += more
        if len(heard) >= LENGTH.size and len(heard) == LENGTH.size + LENGTH.unpack_from(heard)[0]:
            return bytes(heard)
    return b""


class OfAnotherVersion(Greeting, frozen=True):
    llama: str = "0.0.1"


class Worker:
    """A tunnel's listener, and in the place of llama.cpp's RPC something that says back what it hears."""

    def __init__(self):
        self.n_connections = 0
        self._rpc = socket.create_server(("127.0.0.1", 0))
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        rpc_port = self._rpc.getsockname()[1]
        self._listener = TunnelListener("127.0.0.1", port, KEY, rpc_port, lambda: WorkerFacts(busy_s=2.5))
        self._over = threading.Event()
        self._turns = threading.Thread(target=self._turn)
        self._turns.start()
        self._echo = threading.Thread(target=self._answer, daemon=True)
        self._echo.start()

    def _turn(self):
        while not self._over.is_set():
            self._listener.turn()

    def _answer(self):
        while True:
            try:
                link, _ = self._rpc.accept()
            except OSError:
                return
            self.n_connections += 1
            with link:
                while heard := hear(link):  # all of a question before any of the answer, as RPC does
                    link.sendall(heard)

    def close(self):
        self._over.set()
        self._turns.join()
        self._listener.close()
        self._rpc.close()


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setattr(tunnel_listener, "BEAT_S", 0.05)
    made = Worker()
    yield made
    made.close()


def connect(opened):
    host, _, port = opened.endpoint.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def through(opened, data):
    """Send data to the worker and return what comes back."""
    with connect(opened) as link:
        link.sendall(LENGTH.pack(len(data)) + data)
        return hear(link)[LENGTH.size :]


def test_what_goes_in_comes_out_through_one_connection_after_another(worker):
    opened = Tunnel(worker.address, KEY, PATIENCE_S, print)
    data = os.urandom(3 << 20)
    assert through(opened, data) == data
    assert through(opened, b"once more") == b"once more"
    wait_until(lambda: opened.facts == WorkerFacts(busy_s=2.5))
    opened.close()
    assert worker.n_connections == 2


def test_an_answer_that_is_there_at_once_opens_the_tunnel(worker, monkeypatch):
    def connect_and_wait(self, where):
        sock, monitor = really(self, where)
        assert sock.poll(1000 * PATIENCE_S)
        return sock, monitor

    really = Tunnel._connect
    monkeypatch.setattr(Tunnel, "_connect", connect_and_wait)
    opened = Tunnel(worker.address, KEY, PATIENCE_S, print)
    assert through(opened, b"at once") == b"at once"
    opened.close()


def refused(address, key, why):
    """See that an engine gets nothing, for this reason: at once, or where a busy machine keeps it waiting."""
    for patience_s in (0.3, 3.0, PATIENCE_S):
        with pytest.raises(ConfigError) as error:
            Tunnel(address, key, patience_s, print)
        if re.search(why, str(error.value)):
            return
    raise AssertionError(str(error.value))


def test_a_worker_serves_one_engine_and_then_the_next(worker):
    first = Tunnel(worker.address, KEY, PATIENCE_S, print)
    refused(worker.address, KEY, r"devices: .*lends its device to another engine")
    first.close()
    second = Tunnel(worker.address, KEY, PATIENCE_S, print)
    assert through(second, b"mine") == b"mine"
    second.close()


def test_without_the_key_nothing_gets_to_the_worker(worker):
    other = TunnelKey.of(b"b" * 32)
    refused(worker.address, other, r"devices: .* worker_key_file must be the file of its --key-file")
    half = TunnelKey(engine=other.engine, worker=KEY.worker)  # knows whom to ask
    refused(worker.address, half, "worker_key_file")
    assert not worker.n_connections


def test_another_version_is_refused_at_once_and_before_anything_else(worker, monkeypatch):
    monkeypatch.setattr(tunnel_listener, "Greeting", OfAnotherVersion)
    with pytest.raises(ConfigError, match=r"has llama-cpp-python 0\.0\.1, and this engine"):
        Tunnel(worker.address, KEY, PATIENCE_S, print)
    assert not worker.n_connections


def test_its_end_on_the_engines_machine_is_for_that_process_alone(worker):
    opened = Tunnel(worker.address, KEY, PATIENCE_S, print)
    port = opened.endpoint.rpartition(":")[2]
    script = f"import socket; print(socket.create_connection(('127.0.0.1', {port}), 60).recv(1))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "b''"
    assert through(opened, b"ours") == b"ours"
    assert worker.n_connections == 1
    opened.close()


def test_a_worker_that_is_lost_is_named(worker):
    lost = []
    opened = Tunnel(worker.address, KEY, PATIENCE_S, lost.append)
    assert through(opened, b"a") == b"a"
    worker.close()
    wait_until(lambda: lost)
    assert "broke" in lost[0]
    opened.close()


@pytest.mark.parametrize(
    ("host", "why"),
    [
        pytest.param("127.0.0.1", "nobody answers there", id="nobody"),
        pytest.param("no-such-machine.invalid", "there is no such machine", id="no-machine"),
    ],
)
def test_a_worker_that_is_not_there_is_waited_for_and_then_named(host, why):
    address = f"{host}:{free_port()}"
    with pytest.raises(ConfigError, match=rf"devices: the worker at {address}, after .*{why}"):
        Tunnel(address, KEY, 0.5, print)


def test_a_key_is_made_once_and_is_alike_at_both_ends(tmp_path):
    file = tmp_path / "folder" / "worker.key"
    assert make_key(file)
    key = TunnelKey.read(file, "worker_key_file")
    assert not make_key(file)
    assert TunnelKey.read(file, "--key-file") == key
    assert file.stat().st_mode & 0o777 == 0o600
    assert len({key.engine.secret, key.worker.secret, file.read_bytes().strip()}) == 3


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        pytest.param(b"0" * 40, 0o640, "can be read or written by others", id="others-read-it"),
        pytest.param(b"short", 0o600, "holds no key", id="too-short"),
        pytest.param("ü".encode() * 20, 0o600, "holds no key", id="not-its-letters"),
        pytest.param(None, 0o600, "cannot be read: No such file", id="no-file"),
    ],
)
def test_a_file_that_is_no_key_is_refused_by_the_name_of_its_setting(tmp_path, content, mode, why):
    file = Path(tmp_path / "key")
    if content is not None:
        file.write_bytes(content)
        file.chmod(mode)
    with pytest.raises(ConfigError, match=f"worker_key_file: .*{why}"):
        TunnelKey.read(file, "worker_key_file")
