"""Programs as their recipes set them up, each with a home of its own and nobody else to talk to."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from urllib.request import urlopen

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs" / "recipes"
MOST_S = 240
ALONE = (
    "--import=data:text/javascript,import%20dns%20from%20'node:dns';"
    "dns.lookup=(host,_,done)=>done(new%20Error(host+'%20is%20not%20on%20loopback'))"
)
"""Node.js asks no proxy: it finds no address."""


class Outside(ThreadingTCPServer):
    """Stands as a proxy between a program and everybody else: it remembers who was asked for, and refuses."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Refusal)
        self.asked = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        Thread(target=self.serve_forever, daemon=True).start()


class Refusal(StreamRequestHandler):
    """Answers 403."""

    def handle(self):
        self.server.asked.append(self.rfile.readline().decode("latin-1").strip())
        self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


class Desk:
    """A home and an empty folder to work in."""

    def __init__(self, server, folder, outside):
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir()
        self.work.mkdir()
        self._folder, self._outside = folder, outside
        with urlopen(f"{server}/v1/models") as answer:
            model = json.load(answer)["data"][0]
        self._known = {
            "http://127.0.0.1:8000": server,
            "my-model": model["id"],
            "65536": str(model["max_model_len"]),
        }
        self._exports = {}

    def follow(self, recipe, files):
        """Set up what a recipe exports, and its `files`: the language of its block -> the path below home."""
        text = (RECIPES / f"{recipe}.md").read_text(encoding="utf-8")
        for told, known in self._known.items():
            text = text.replace(told, known)
        self._exports = dict(re.findall(r"^export (\w+)=(\S+)", text, re.MULTILINE))
        for language, path in files.items():
            (block,) = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
            (self.home / path).parent.mkdir(parents=True, exist_ok=True)
            (self.home / path).write_text(block)

    def run(self, name, command, said):
        """Run a program of the environment `name` to its end, with `said` as input; return its output."""
        folders = (ROOT / ".clients" / name / "node_modules" / ".bin", Path(sys.executable).parent)
        variables = {
            "HOME": str(self.home),
            "PATH": os.pathsep.join([*map(str, folders), os.environ["PATH"]]),
            "LANG": "C.UTF-8",
            "NODE_OPTIONS": ALONE,
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), self._outside.url),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
            **self._exports,
        }
        given, printed, told = (self._folder / one for one in ("stdin", "stdout", "stderr"))
        given.write_text(said)
        with given.open() as stdin, printed.open("w") as stdout, told.open("w") as stderr:
            streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
            program = subprocess.Popen(
                command, cwd=self.work, env=variables, start_new_session=True, **streams
            )
            try:
                ended = f"ended with {program.wait(MOST_S)}"
            except subprocess.TimeoutExpired:
                ended = f"had not ended after {MOST_S} s"
            finally:
                kill(program)
        shown = f"{ended}\n-- stdout\n{printed.read_text()}\n-- stderr\n{told.read_text()}"
        assert ended == "ended with 0", f"{' '.join(command)} {shown}"
        assert not self._outside.asked, f"{' '.join(command)} asked for {self._outside.asked} and {shown}"
        return printed.read_text()


def kill(program):
    """End a program and what it has left running."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()
