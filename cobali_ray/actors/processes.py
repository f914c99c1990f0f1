"""Processes of this machine, as /proc tells them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path


def descendants(root: int) -> set[int]:
    """Return the processes below `root`: its children, theirs, and so on."""
    parents = dict(_parents())
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in {root, *found}} - found:
        found |= more
    return found


def naming(text: str) -> set[int]:
    """Return the processes that have `text` in their command."""
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            if text in Path(f"/proc/{pid}/cmdline").read_text(errors="replace"):
                found.add(pid)
    return found - {os.getpid()}


def end(pids: Iterable[int]) -> None:
    """Kill these processes; the work in them is lost."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def has_ended(pid: int) -> bool:
    """Say whether a process is gone, or a zombie, of which only its exit status is left."""
    try:
        return _fields(pid)[0] == "Z"
    except OSError:
        return True


def reap() -> None:
    """Let go of children that have ended; they count among the descendants until then."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _parents() -> Iterator[tuple[int, int]]:
    for pid in _pids():
        with contextlib.suppress(OSError):
            yield pid, int(_fields(pid)[1])


def _fields(pid: int) -> list[str]:
    """Return what follows a process's name: its state, its parent, ... Raises OSError if it is gone."""
    # The name in parentheses may hold anything, a closing parenthesis too.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
