"""How `cobali serve` starts, fails to start, and stops on the way."""

import inspect
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest
from rich.console import Console

from cobali_ray.actors import serving
from cobali_ray.actors.ports import free_port
from cobali_ray.actors.processes import descendants, naming
from cobali_ray.errors import StartError

pytestmark = pytest.mark.ray


@pytest.fixture
def ended(monkeypatch):
    """What would have been killed; the cluster of these tests is among it."""
    ended = []
    monkeypatch.setattr(serving, "end", ended.append)
    return ended


def starts(monkeypatch, *outcomes):
    """Let Ray's start end like this, one after the other."""
    left = iter(outcomes)

    def init(*, dashboard):
        if (error := next(left)) is not None:
            raise error

    monkeypatch.setattr(serving, "_init_ray", init)
    return left


BUSY = Exception("The current node timed out during startup.\nThis could happen because ...\n")


def test_a_start_that_fails_is_tried_once_more(monkeypatch, ended, capsys):
    starts(monkeypatch, BUSY, None)
    serving._start_ray(Console(), dashboard=False)
    assert len(ended) == 1, "what the first left behind"
    assert "once more" in capsys.readouterr().out


def test_a_start_that_fails_twice_is_one_line_that_says_what_to_do(monkeypatch, ended):
    starts(monkeypatch, BUSY, BUSY)
    with pytest.raises(StartError) as failed:
        serving._start_ray(Console(), dashboard=False)
    text = str(failed.value)
    assert text.startswith("Ray did not start: The current node timed out during startup.")
    assert "/tmp/ray/session_latest/logs" in text
    assert "\n" not in text


def test_ray_waits_where_its_code_would_not(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray._private import node, parameter, services, worker
    assert "services.get_node(" in inspect.getsource(node.Node.__init__)
    assert "services.start_raylet(" in inspect.getsource(node.Node.start_raylet)
    assert "ray._private.parameter.RayParams(" in inspect.getsource(worker.init)
    calls = []

    def get_node(address, node_id):
        calls.append(node_id)
        if len(calls) < 3:
            raise RuntimeError("not there yet")
        return {"node_id": node_id}

    monkeypatch.setattr(services, "get_node", get_node)
    monkeypatch.setattr(serving, "READY_POLL_S", 0)
    before = parameter.RayParams
    with serving._patience():
        assert services.get_node("address", "node") == {"node_id": "node"}
        params = parameter.RayParams()
        ports = {params.metrics_agent_port, params.dashboard_agent_listen_port, params.runtime_env_agent_port}
        assert len(ports) == 3
        assert 0 not in ports
    assert (services.get_node, parameter.RayParams) == (get_node, before)


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
    environ = {}
    serving.set_environment(environ, tmp_path)
    assert [name for name in environ if name.encode() not in known] == []


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
    serving.guard_token(Console())
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == "secret" if mode is not None else len(path.read_text()) == 64
    assert ("could be read by other users" in capsys.readouterr().out) == (mode == 0o644)


def test_ctrl_c_while_ray_starts_is_obeyed_and_leaves_nothing():
    cobali = str(Path(sys.executable).with_name("cobali"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with tempfile.TemporaryDirectory(prefix="cobali-test-") as folder:  # short: sockets lie below
        command = [cobali, "serve", "--port", str(free_port()), "--model", "builtin:scripted"]
        with subprocess.Popen(
            command,
            cwd=Path(__file__).parents[2],
            env=environ | {"TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            while not (below := descendants(process.pid)) & naming("gcs_server"):
                assert process.poll() is None, process.stdout.read()
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=60)
        assert "Stopping before it was ready" in said
        assert "Traceback" not in said
        assert process.returncode == 0
        until = time.monotonic() + 5  # what was killed takes a moment to be gone
        while left := naming(folder) | {pid for pid in below if Path(f"/proc/{pid}").exists()}:
            assert time.monotonic() < until, left
            time.sleep(0.05)
