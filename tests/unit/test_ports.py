"""Ports for servers that must not meet."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cobali_ray import ports
from cobali_ray.actors import front
from cobali_ray.actors.front import fast_front
from cobali_ray.errors import ConfigError, StartError


def listener(port):
    """Listen as Serve does: ready to share the port."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("", port))
    sock.listen()
    return sock


def test_blocks_are_free_and_apart():
    one, two = ports.free_blocks(2)
    assert len(one) == len(two) == 64
    assert not set(one) & set(two)


def test_no_outgoing_connection_takes_a_single_port_before_somebody_listens():
    given = [ports.free_port() for _ in range(50)]
    assert len(set(given)) == 50
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(given) < first
    assert not {port for port in given if ports.FIRST <= port < ports.LAST}


def test_a_single_port_that_somebody_has_is_not_given(monkeypatch):
    port = ports.free_port()
    monkeypatch.setattr(ports, "SINGLE", range(port, port + 1))
    monkeypatch.setattr(ports, "_handed_out", set())
    with listener(port), pytest.raises(ConfigError, match="no free port"):
        ports.free_port()
    assert ports.free_port() == port


def test_a_port_that_somebody_would_share_is_not_free(monkeypatch):
    (block,) = ports.free_blocks(1)
    monkeypatch.setattr(ports, "FIRST", block[0])
    monkeypatch.setattr(ports, "LAST", block[-1] + 1)
    assert ports.free_blocks(1) == [block]
    with listener(block[7]), pytest.raises(ConfigError, match="64 free ports"):
        ports.free_blocks(1)


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", r"\[::1\]")])
def test_an_address_of_either_kind_is_free_or_taken(host, shown):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        try:
            taken.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        port = taken.getsockname()[1]
        taken.listen()
        with pytest.raises(ConfigError, match=f"{shown}:{port} is in use by .* choose another"):
            ports.require_free(host, port)
    ports.require_free(host, port)


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        pytest.param("/tmp/cobali-serve-x", ", the front end of a `cobali serve`; choose", id="of-a-server"),
        pytest.param("/etc", "; choose another", id="of-something-else"),
    ],
)
def test_a_port_that_another_server_has_is_said_to_be_its(folder, said):
    listen = (
        "import socket, sys\ns = socket.create_server(('127.0.0.1', 0))\n"
        "print(s.getsockname()[1], flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", listen, f"{folder}/haproxy.cfg"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        port = int(user.stdout.readline())
        with pytest.raises(ConfigError, match=rf"\(process {user.pid}\){said}"):
            ports.require_free("127.0.0.1", port)
        user.stdin.close()


@pytest.mark.parametrize(
    ("host", "port", "setting", "words"),
    [
        pytest.param("127.0.0.1", 99999, "port", "from 1 to 65535", id="no-port"),
        pytest.param("192.0.2.7", 8931, "host", "no address 192.0.2.7", id="another-machine"),
        pytest.param("no such host", 8931, "host", "no address no such host", id="no-host"),
    ],
)
def test_an_address_that_cannot_be_had_names_what_to_change(host, port, setting, words):
    with pytest.raises(ConfigError, match=words) as refused:
        ports.require_free(host, port)
    assert refused.value.setting == setting


@pytest.mark.parametrize("name", ["DIRECT_INGRESS_MIN_HTTP", "DIRECT_INGRESS_MIN_GRPC", "HAPROXY_METRICS"])
def test_a_server_that_starts_keeps_another_from_ports_that_it_binds_later(tmp_path, monkeypatch, name):
    environ = {}
    fast_front(environ, tmp_path, "haproxy")
    first = int(environ[f"RAY_SERVE_{name}_PORT"])
    monkeypatch.setattr(ports, "FIRST", first)
    monkeypatch.setattr(ports, "LAST", first + 64)
    with front.ports_held(environ), pytest.raises(ConfigError, match="64 free ports"):
        ports.free_blocks(1)
    assert ports.free_blocks(1) == [range(first, first + 64)]


@pytest.mark.parametrize(
    ("host", "reached"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("192.0.2.1", "192.0.2.1"), ("::1", "::1"), ("box", "box")],
)
def test_all_addresses_are_reached_at_the_loopback(host, reached):
    assert ports.reached_at(host) == reached


def test_no_outgoing_connection_takes_a_port_before_haproxy_binds_it(tmp_path):
    environ = {}
    front.fast_front(environ, tmp_path, "haproxy")
    found = {int(value) for name, value in environ.items() if name.endswith("_PORT")}
    assert len(found) == 7
    assert ports.FIRST <= min(found) <= max(found) < ports.LAST


def test_a_folder_where_no_program_may_run_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "one"
    folder.mkdir()
    monkeypatch.setattr(front.os, "access", lambda path, mode: mode != os.X_OK)
    with pytest.raises(StartError, match=f"^HAProxy did not start: {tmp_path} is mounted noexec; .*exec"):
        fast_front({}, folder, "haproxy")
