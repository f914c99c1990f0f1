"""`cobali ps`: what listens, from where it is reached, and who may use it."""

import itertools
import json
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import psutil
import pytest

from cobali_ray.actors import servers
from cobali_ray.actors.cluster import cluster_environment, env
from cobali_ray.actors.listening import ADMITTED, ALL, KEYS, OWNERS, Listener, listeners
from cobali_ray.actors.servers import ps, wait_ready
from cobali_ray.errors import ConfigError, StartError

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


class Told(BaseHTTPRequestHandler):
    """A server with two engines that has written ten tokens more each time it is asked."""

    def do_GET(self):
        body = b"{}"
        if self.path == "/ready":
            names = ("status", "n_running", "n_slots", "n_queued", "engine_id")
            engines = [
                dict(zip(names, row, strict=True))
                for row in (("ready", 2, 16, 3, "a"), (self.server.second, 0, 0, 0, "b"))
            ]
            body = json.dumps({"engines": engines}).encode()
        known = self.headers["authorization"] == "Bearer secret"
        if self.path == "/metrics":
            self.server.n_written += 10
            body = (
                '# TYPE cobali_info gauge\ncobali_info{engine="a",model="m",node="10.0.0.1"} 1\n'
                "# TYPE cobali_output_tokens counter\n"
                f'cobali_output_tokens_total{{engine="a"}} {self.server.n_written}\n'
            ).encode()
        self.send_response(200 if known or self.path == "/ready" else 401)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """Let `cobali ps` find one server: this process, with a port that tells of engines."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Told) as http:
        http.n_written, http.second = 0, "loading"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        found = Listener("0.0.0.0", http.server_port, os.getpid(), "HAProxy", "HTTP", KEYS)
        monkeypatch.setattr(servers, "server_processes", lambda: [psutil.Process()])
        monkeypatch.setattr(servers, "listeners", lambda _: [found, found._replace(what="other", port=1)])
        monkeypatch.setattr(servers, "name_of", lambda _: "cobali:engine-a")
        monkeypatch.setattr(servers, "WATCH_S", 0.01)
        monkeypatch.setattr(servers, "_now", itertools.cycle((0.0, 0.01)).__next__)
        monkeypatch.setenv("COLUMNS", "120")
        yield http
        http.shutdown()
        thread.join()


def test_servers_are_shown_with_their_engines(server, capsys):
    ps(key="secret", as_json=True)
    (told,) = json.loads(capsys.readouterr().out)
    assert told["url"] == f"http://127.0.0.1:{server.server_port}"
    assert told["memory_bytes"] >= told["engines"][0]["memory_bytes"] > 1 << 20
    first, second = told["engines"]
    shown = {
        "engine_id": "a", "model": "m", "status": "ready", "node": "10.0.0.1", "n_running": 2, "n_slots": 16,
    }  # fmt: skip
    assert shown.items() <= first.items()
    assert (first["n_queued"], first["tokens_per_second"]) == (3, 1000.0)
    assert (second["status"], second["tokens_per_second"]) == ("loading", None)
    ps(key="secret")
    head, _, row, _ = capsys.readouterr().out.splitlines()
    assert f"{told['url']}  pid {os.getpid()}, up " in head
    assert row.split()[:7] == ["a", "m", "ready", "10.0.0.1", "2/16", "3", "1000.0"]


def test_on_a_narrow_terminal_no_word_is_broken(server, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    ps(key="secret")
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    first = ["engine a", "model m", "state ready", "node 10.0.0.1", "slots 2/16", "queue 3", "tok/s 1000.0"]
    assert lines[1:8] == first
    assert "engine b" in lines
    ps(ports=True)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"address 0.0.0.0:{server.server_port}" in lines


def test_without_a_key_the_engines_are_shown_all_the_same(server, capsys):
    ps()
    said = capsys.readouterr().out
    assert "it needs a key to show more: --key, or COBALI_API_KEY" in said
    assert "2/16" in said


def test_a_server_is_asked_at_its_address(server, capsys):
    url = f"http://127.0.0.1:{server.server_port}"
    ps(url=f"{url}/v1", key="secret")
    head, _, row, _ = capsys.readouterr().out.splitlines()
    assert (head.strip(), row.split()[:3]) == (url, ["a", "m", "ready"])
    ps(url=url, key="secret", as_json=True)
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["pid"], told["memory_bytes"], told["engines"][0]["n_slots"]) == (None, None, 16)
    ps(url="http://127.0.0.1:1")
    assert "it does not answer" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--url: 'nowhere' is not an address"):
        ps(url="nowhere")


def test_waiting_ends_when_every_server_takes_requests(server, capsys):
    """There is none at first, then one that does not answer beside the one that does."""
    looks = [[], ["http://127.0.0.1:1", f"http://127.0.0.1:{server.server_port}"]]
    url, waits = f"http://127.0.0.1:{server.server_port}", []

    def pause(pause_s):
        waits.append(pause_s)
        if len(waits) == 3:
            server.second = "unloaded"

    wait_ready(lambda: looks.pop(0) if looks else [url], 60.0, now=lambda: 0.0, pause=pause)
    assert len(waits) == 3, "also for the model that is still being loaded"
    ps(wait=True, timeout=0.0, key="secret")
    assert "2/16" in capsys.readouterr().out, "and then it shows them"


def test_of_a_proxy_of_serve_one_port_takes_requests(server, monkeypatch, capsys):
    server.second, ports = "ready", (1, server.server_port)
    found = [Listener("127.0.0.1", port, os.getpid(), servers.PROXY, "of Ray", OWNERS) for port in ports]
    monkeypatch.setattr(servers, "listeners", lambda _: found)
    ps(wait=True, timeout=0.0, key="secret")
    assert "2/16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("urls", "says"),
    [
        ([], "The server did not start: still takes no requests after 7 s; see `cobali ps`"),
        (["http://127.0.0.1:1"], "http://127.0.0.1:1 did not start"),
    ],
)
def test_waiting_ends_with_an_error(urls, says):
    times = iter([0.0, 3.0, 7.0])
    with pytest.raises(StartError, match=says):
        wait_ready(lambda: urls, 7.0, now=lambda: next(times), pause=lambda _: None)


def test_the_command_shows_ports(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(servers, "server_processes", lambda: [psutil.Process()])
    with socket.create_server(("127.0.0.1", 0)) as near:
        port = near.getsockname()[1]
        ps(ports=True)
        assert f"127.0.0.1:{port} " in capsys.readouterr().out
        ps(ports=True, as_json=True)
        told = {one["port"]: one for one in json.loads(capsys.readouterr().out)}
        assert told[port]["reach"] == "this machine"
    v6 = Listener("fd00::1", 80, os.getpid(), "HAProxy", "HTTP", KEYS)
    with monkeypatch.context() as patched:
        patched.setattr(servers, "listeners", lambda _: [v6])
        ps(ports=True)
    assert "[fd00::1]:80" in capsys.readouterr().out, "its brackets are not markup"
    ps()
    assert (
        "No server takes requests here; there are processes of one, or of Ray: 1." in capsys.readouterr().out
    )
    monkeypatch.setattr(servers, "server_processes", list)
    ps()
    assert "No server runs here" in capsys.readouterr().out
    ps(as_json=True)
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (61, "1 min 1 s"), (3600, "1 h"), (90061, "1 d 1 h")]
)
def test_a_time_is_told_in_two_units(seconds, said):
    assert servers._span(seconds) == said


def test_the_environment_of_a_cluster_is_for_several_machines_and_their_token(tmp_path, capsys):
    environ = cluster_environment(tmp_path)
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in environ, "or Ray takes every node for 127.0.0.1"
    assert environ["RAY_AUTH_MODE"] == "token"
    env(host="0.0.0.0", folder=tmp_path / "with space")
    said = capsys.readouterr().out
    assert "export RAY_AUTH_MODE=token\n" in said
    assert "export COBALI_RAY_FRONT_HOST=0.0.0.0\n" in said
    assert f"export RAY_SERVE_HAPROXY_BINARY_PATH='{tmp_path}/with space/haproxy'\n" in said
    assert "0.0.0.0" in (tmp_path / "with space" / "haproxy").read_text()
    with pytest.raises(ConfigError, match=r"--folder: .*cannot be written"):
        env(folder=tmp_path / "with space" / "haproxy" / "below")
