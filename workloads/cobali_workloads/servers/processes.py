"""Processes observed from outside, by /proc: who descends from whom, memory, processor time."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

REPLICA: Final = "ray::ServeReplica"
ENGINE, INGRESS = f"{REPLICA}:cobali:engine", f"{REPLICA}:cobali:ingress"
"""How the names of these processes of a server begin, which Ray gives them."""
_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def descendants(root: int) -> list[int]:
    """Return a process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    pids, todo = [], [root]
    while todo:
        pid = todo.pop()
        pids.append(pid)
        todo += parents.get(pid, [])
    return pids


def pids_of(root: int, name: str) -> list[int]:
    """Return a process and its descendants whose short names begin like this, the youngest last."""
    pids = []
    for pid in descendants(root):
        with suppress(OSError):
            if name_of(pid).startswith(name):
                pids.append(pid)
    return sorted(pids)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; empty if the process is gone."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def name_of(pid: int) -> str:
    """Return a short name of a process."""
    words = (
        (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").split()
    )
    if not words:
        return "?"
    if words[0].startswith("ray::"):
        return words[0]
    scripts = [w for w in words[:3] if not w.startswith("-") and "python" not in Path(w).name]
    return Path(scripts[0] if scripts else words[0]).name


def memory_mb(pid: int) -> tuple[float, float]:
    """Return RSS and PSS in megabytes."""
    text = (_PROC / str(pid) / "smaps_rollup").read_text()
    sizes = dict(re.findall(r"^(Rss|Pss):\s+(\d+) kB", text, re.MULTILINE))
    return int(sizes["Rss"]) / 1000, int(sizes["Pss"]) / 1000


def cpu_s(pid: int) -> float:
    """Return CPU seconds used so far."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if fields else 0.0
