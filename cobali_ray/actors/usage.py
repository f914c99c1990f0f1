"""What a server takes beside its engines: its ingresses and front ends, seen from inside one of them."""

from __future__ import annotations

import contextlib
import re
from typing import Final

import psutil

from cobali_ray.telemetry.usage import Usage, usage_of

ROOT: Final = re.compile(r"cobali serve |/raylet/raylet ")
"""Commands of processes that have one server or Ray node below them."""
PARTS: Final = {
    "ingress": re.compile(r"ray::ServeReplica:\S+:ingress"),
    "front_end": re.compile(r"haproxy .*-f "),
}


def beside() -> list[Usage]:
    """Ask about all ingresses and front ends of this process's own server, on this machine.

    All of them, because each scrape may be answered by another ingress. It reads a file per process of the
    machine, so a thread should call it.
    """
    own = psutil.Process()
    root = next((one for one in own.parents() if ROOT.search(_command(one))), own)
    found = []
    for process in (root, *root.children(recursive=True)):
        command = _command(process)
        for part, pattern in PARTS.items():
            if pattern.search(command):
                with contextlib.suppress(psutil.Error):  # it ended meanwhile
                    found.append(usage_of(process, part))
    return found


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) + " "
    except psutil.Error:
        return ""
