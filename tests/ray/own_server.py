"""`cobali serve` as a process of its own, and what is below it."""

import contextlib
import json
import os
import subprocess
import sys
from itertools import filterfalse
from pathlib import Path

from cobali_ray.actors.processes import descendants, has_ended
from cobali_ray.ports import free_port
from tests.waiting import wait_until


@contextlib.contextmanager
def serve(*words, programs=Path(sys.executable).parent, cwd=Path(__file__).parents[2], **environ):
    """Run `cobali serve`; what it leaves behind is an error."""
    ours = ("RAY_", "COBALI_RAY_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    port = str(free_port())
    command = [programs / "cobali", "serve", "--port", port, "--model", "builtin:scripted", *words]
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=kept | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        umask=0,
    ) as process:
        process.url = f"http://127.0.0.1:{port}"
        try:
            yield process
        finally:
            below = descendants(process.pid)
            process.kill()
    wait_until(lambda: all(map(has_ended, below)), so_far=lambda: [*filterfalse(has_ended, below)])


def ready(process):
    """Read what a server says until it is ready, and return that."""
    told = []
    for line in process.stdout:
        told += events(line)
        if told[-1]["event"] == "ready":
            return told
    raise AssertionError(told)


def events(said):
    """Read what a server says that has no terminal: nothing but JSON, whoever says it."""
    return [json.loads(line) for line in said.splitlines()]


def command(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def names(root):
    return "\n".join(map(command, descendants(root)))
