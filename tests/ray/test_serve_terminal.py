"""`cobali serve` in a real terminal (tmux): what a person sees from the start to the end."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from own_server import command

from cobali_ray.actors.processes import descendants, end
from cobali_ray.ports import free_port
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here; `make browser` installs it"),
]
WIDTH, HEIGHT = 120, 60
CHAT = {"model": "scripted", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello!"}]}


class Pane:
    """A terminal of its own, in which the server runs."""

    def __init__(self, folder, words):
        self._socket = str(folder / "tmux")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._environ = kept | {"TERM": "xterm-256color"}
        self._environ.pop("NO_COLOR", None)
        command = " ".join([*words, "; echo left with $?; cat"])
        self.tmux("new-session", "-d", "-x", str(WIDTH), "-y", str(HEIGHT), "-c", str(folder), command)

    def tmux(self, *words):
        command = ["tmux", "-S", self._socket, "-f", "/dev/null", *words]
        return subprocess.run(command, env=self._environ, capture_output=True, text=True, check=True).stdout

    def text(self, *words):
        return self.tmux("capture-pane", "-p", *words)

    def until(self, pattern, timeout_s=60.0):
        """Wait for a line; return all that is on the screen then."""
        seen = lambda: re.search(pattern, self.text(), re.MULTILINE)  # noqa: E731
        wait_until(seen, timeout_s=timeout_s, pause_s=0.1, so_far=self.text)
        return self.text()

    def below(self):
        return descendants(int(self.tmux("list-panes", "-F", "#{pane_pid}")))

    def server(self):
        return min(pid for pid in self.below() if "cobali serve" in command(pid))

    def close(self):
        below = self.below()
        self.tmux("kill-server")
        end(below)


@pytest.fixture
def pane(tmp_path):
    (tmp_path / "config.yaml").write_text("applications: [{args: {model: 'builtin:scripted:0.005'}}]")
    port = free_port()
    program = str(Path(sys.executable).with_name("cobali"))
    pane = Pane(tmp_path, [program, "serve", "--config", "config.yaml", f"--port={port}"])
    pane.url = f"http://127.0.0.1:{port}"
    try:
        yield pane
    finally:
        pane.close()


def test_what_a_person_sees_of_a_server(pane):
    shown = pane.until("Ctrl-C stops it", timeout_s=180)
    steps = re.findall(r"^  (\S.*?)  +[\d.]+ s$", shown, re.MULTILINE)
    assert steps == [
        "finding the model",
        "starting Ray",
        "starting Serve",
        "loading the model",
        "starting the front end",
    ]
    assert re.search(rf"^  Page +{pane.url}/$", shown, re.MULTILINE)
    assert re.search(rf"^  Chat +(?:\S*/)?cobali chat --url {pane.url}$", shown, re.MULTILINE)
    assert re.search(r"^  Context +4,096 tokens a request, 16 slots$", shown, re.MULTILINE)

    with httpx2.Client(base_url=pane.url, timeout=60) as http:
        assert http.post("/v1/chat/completions", json=CHAT).status_code == 200
        assert http.get("/v1/nowhere").status_code == 404
    took = r"TTFT [\d.]+ m?s +\d+ tok/s"
    pane.until(rf"^\d\d:\d\d:\d\d  200  POST /v1/chat/completions  scripted +\d+ -> 8 tok +{took}$")
    pane.until(r"^\d\d:\d\d:\d\d  404  GET \(no such path\) +unknown_path")
    assert "\x1b[32m200" in pane.text("-e"), "in colours"

    os.kill(pane.server(), signal.SIGUSR1)
    pane.until(r"The settings were read again; changed: nothing\.$")
    (engine,) = (pid for pid in descendants(pane.server()) if "cobali:engine" in command(pid))
    os.kill(engine, signal.SIGKILL)
    shown = pane.until(r"The engine died (?s:.*)The engine is back after [\d.]+ s\.$")
    assert shown.count("The engine died and is being restarted; its requests wait and then continue.") == 1

    pane.tmux("send-keys", "C-c")
    shown = pane.until("^left with 0")
    assert re.search(r"^\d\d:\d\d:\d\d  Stopping \.\.\. \(Ctrl-C again to skip\)$", shown, re.MULTILINE)
    assert re.search(r"^\d\d:\d\d:\d\d  Stopped in [\d.]+ s\.$", shown, re.MULTILINE)
    silence = r"does not answer|is back after"  # which a busy machine has of its own
    said = [line for line in shown.splitlines() if line.strip() and not re.search(silence, line)]
    foreign = [line for line in said if re.search(r"pid=|INFO|WARN|Traceback|raylet|[Ee]rror|\{\"", line)]
    assert foreign == [], "nothing of Ray, Serve or HAProxy"
    assert len(said) == 24, shown
