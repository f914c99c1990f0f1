"""Processes of this machine, from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

POLL_S: Final = 0.05
END_S: Final = 10.0
_BEGAN: Final = 19
"""The place of a process's start time in `_fields`."""


def descendants(root: int) -> set[int]:
    """Return the processes below `root`: its children, theirs, and so on."""
    parents: dict[int, int] = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            state, parent, *_ = _fields(pid)
            if state != "Z":
                parents[pid] = int(parent)
    below: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent in {root, *below}} - below:
        below |= more
    return below


def started_with(variable: str) -> set[int]:
    """Return the processes that were started with `variable`, a NAME=VALUE, in their environment.

    If only one server has the value, these are its processes: it is handed on from process to process, and no
    word of a command can pass for it.
    """
    pids = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            if os.fsencode(variable) in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                pids.add(pid)
    return pids - {os.getpid()}


def end(pids: Iterable[int]) -> None:
    """Kill these processes; the work in them is lost."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_all(find: Callable[[], set[int]]) -> set[int]:
    """Kill what `find` returns until it finds nothing more, at most for `END_S`; return what that was."""
    ended = set[int]()
    for _ in range(round(END_S / POLL_S)):
        if not (pids := find()):
            break
        end(pids)
        ended |= pids
        time.sleep(POLL_S)
    return ended


def has_ended(pid: int, began: int = 0) -> bool:
    """Return whether a process is gone, or a zombie, of which only its exit status is left.

    `began` is what `began_at` returned for it: a later process with the same id is another one.
    """
    try:
        fields = _fields(pid)
    except OSError:
        return True
    return fields[0] == "Z" or (began > 0 and int(fields[_BEGAN]) != began)


def began_at(pid: int) -> int:
    """Return when a process began, in clock ticks since the machine did. Raises OSError if it is gone."""
    return int(_fields(pid)[_BEGAN])


def kill_if_same(pid: int, began: int) -> None:
    """Kill a process, unless it has ended or its id belongs to another one by now."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter: it is another's by now
        handle = os.pidfd_open(pid)  # from here on the id cannot come to mean another
        try:
            if not has_ended(pid, began):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _fields(pid: int) -> list[str]:
    """Return what follows a process's name: its state, its parent, ... Raises OSError if it is gone."""
    # The name in parentheses may hold anything, a closing parenthesis too.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _pids() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
