"""`cobali ps`: what listens, from where it is reached, and who may use it."""

import os
import socket
from types import SimpleNamespace

import psutil
import pytest

from cobali_ray.actors import listening
from cobali_ray.actors.cluster import cluster_environment, env
from cobali_ray.actors.listening import ADMITTED, ALL, KEYS, OWNERS, listeners, ps

HAPROXY = """
frontend prometheus
    bind 127.0.0.1:9101
listen stats
    bind 127.0.0.1:8404
frontend http_frontend
    bind 0.0.0.0:8000
"""
ENVIRON = {
    "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": "20064",
    "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": "20127",
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": "40000",
}


class Process:
    """A process with one port."""

    pid = 7

    def __init__(self, command, host, port):
        self.command, self.laddr = command, (host, port)

    def cmdline(self):
        return self.command.split()

    def environ(self):
        return ENVIRON

    def name(self):
        return "a name"

    def net_connections(self, kind):
        there = SimpleNamespace(status=psutil.CONN_LISTEN, laddr=self.laddr)
        return [there, SimpleNamespace(status=psutil.CONN_ESTABLISHED, laddr=("10.0.0.1", 1))]


@pytest.mark.parametrize(
    ("command", "host", "port", "process", "reach", "who"),
    [
        ("haproxy -f CONFIG", "0.0.0.0", 8000, "HAProxy", "all networks", KEYS),
        ("haproxy -f CONFIG", "127.0.0.1", 8404, "HAProxy", "this machine", ALL),
        ("haproxy -f CONFIG", "127.0.0.1", 9101, "HAProxy", "this machine", ALL),
        ("ray::ServeReplica:a:ingress", "127.0.0.1", 20064, "a:ingress", "this machine", KEYS),
        (
            "ray::ServeReplica:a:ingress",
            "::ffff:10.0.0.1",
            20128,
            "a:ingress",
            "the network of this address",
            ADMITTED,
        ),
        ("ray::ServeReplica:a:engine", "::", 10002, "a:engine", "all networks", OWNERS),
        ("ray::ServeReplica:a:engine", "::ffff:127.0.0.1", 41000, "a:engine", "this machine", OWNERS),
        ("ray::ProxyActor", "127.0.0.1", 40000, "ProxyActor", "this machine", KEYS),
        ("ray::ProxyActor", "::", 10003, "ProxyActor", "all networks", OWNERS),
        ("ray::DashboardAgent", "0.0.0.0", 9000, "DashboardAgent", "all networks", ALL),
        ("/x/raylet/raylet --words", "::", 30000, "raylet", "all networks", OWNERS),
        ("/x/gcs/gcs_server --words", "::", 6379, "gcs_server", "all networks", OWNERS),
        ("python /x/dashboard/dashboard.py", "127.0.0.1", 8265, "dashboard", "this machine", OWNERS),
        ("something", "127.0.0.1", 1, "a name", "this machine", OWNERS),
    ],
)
def test_whose_a_port_is_and_who_may_use_it(tmp_path, command, host, port, process, reach, who):
    config = tmp_path / "haproxy.cfg"
    config.write_text(HAPROXY)
    (found,) = listeners([Process(command.replace("CONFIG", str(config)), host, port)])
    assert (found.process, found.reach, found.who) == (process, reach, who)
    assert (found.host, found.port, found.pid) == (host, port, 7)


def test_every_port_of_a_process_is_found():
    with (
        socket.create_server(("127.0.0.1", 0)) as near,
        socket.create_server(("0.0.0.0", 0)) as far,
        socket.socket() as silent,
    ):
        silent.bind(("127.0.0.1", 0))
        found = {one.port: one.reach for one in listeners([psutil.Process()])}
        assert found[near.getsockname()[1]] == "this machine"
        assert found[far.getsockname()[1]] == "all networks"
        assert silent.getsockname()[1] not in found


def test_a_process_that_has_ended_has_no_ports():
    class Gone(Process):
        def cmdline(self):
            raise psutil.NoSuchProcess(self.pid)

    assert list(listeners([Gone("", "::", 1)])) == []


def test_the_command_shows_processes_and_ports(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(listening, "server_processes", lambda: [psutil.Process()])
    with socket.create_server(("127.0.0.1", 0)) as near:
        ps(ports=True)
        assert f"127.0.0.1:{near.getsockname()[1]} " in capsys.readouterr().out
    ps()
    assert str(os.getpid()) in capsys.readouterr().out
    monkeypatch.setattr(listening, "server_processes", list)
    ps()
    assert "No server runs here" in capsys.readouterr().out


def test_the_environment_of_a_cluster_is_for_several_machines_and_their_token(tmp_path, capsys):
    environ = cluster_environment(tmp_path)
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in environ, "or Ray takes every node for 127.0.0.1"
    assert environ["RAY_AUTH_MODE"] == "token"
    env(host="0.0.0.0", folder=tmp_path / "with space")
    said = capsys.readouterr().out
    assert "export RAY_AUTH_MODE=token\n" in said
    assert f"export RAY_SERVE_HAPROXY_BINARY_PATH='{tmp_path}/with space/haproxy'\n" in said
    assert "0.0.0.0" in (tmp_path / "with space" / "haproxy").read_text()
