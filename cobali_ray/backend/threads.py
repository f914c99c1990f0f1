"""How the CPU threads of llama.cpp wait for each other, settled before the library loads.

llama.cpp computes with OpenMP (libgomp). Its threads spin at every barrier: up to four times as fast as
sleeping when the cores are ours, a hundred times slower when something else needs them. Spinning for
some microseconds and then sleeping keeps the first and avoids the second.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Literal, TypeAlias

ThreadsWait: TypeAlias = Literal["auto", "active", "passive"]
Wait: TypeAlias = Literal["active", "brief", "passive"]

SPIN_COUNT = 700
"""Turns of libgomp's waiting loop before a thread sleeps: about 30 us where one turn is a `pause` of 140
cycles. Longer than a balanced operation keeps a thread waiting, shorter than what a neighbour minds;
`cobali bench threads` shows the ladder on a machine of yours."""

ENVIRONMENT: dict[Wait, dict[str, str]] = {
    "active": {},
    "brief": {"GOMP_SPINCOUNT": str(SPIN_COUNT)},
    "passive": {"OMP_WAIT_POLICY": "passive"},
}


def default_n_threads() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0))


def choose_wait(asked: ThreadsWait, *, n_threads: int, n_cores: int) -> Wait:
    """Return how threads should wait.

    `auto` spins briefly where every thread has a core, whatever the load at this moment: neighbours come
    and go, and a wait of some microseconds is right with and without them. More threads than cores must
    sleep, because the thread waited for cannot run while others spin.
    """
    if asked != "auto":
        return asked
    return "brief" if n_threads <= n_cores else "passive"


def apply_wait(
    asked: ThreadsWait, *, n_threads: int, environ: MutableMapping[str, str] | None = None
) -> Wait:
    """Set libgomp's wait policy in the environment; return what was chosen.

    An OMP_WAIT_POLICY or GOMP_SPINCOUNT that the operator exported wins over `auto`. Call it before
    llama_cpp is imported: libgomp reads the environment once, when it loads.
    """
    environ = os.environ if environ is None else environ
    exported = environ.get("OMP_WAIT_POLICY", "").lower()
    if asked == "auto" and "GOMP_SPINCOUNT" in environ:
        return "brief"
    if asked == "auto" and exported:
        return "passive" if exported == "passive" else "active"
    chosen = choose_wait(asked, n_threads=n_threads, n_cores=default_n_threads())
    # Not OMP_WAIT_POLICY=active: that would spin for minutes after the last tick. libgomp's default spins
    # for milliseconds and then sleeps, which is what "active" should mean for a server.
    environ.pop("OMP_WAIT_POLICY", None)
    environ.pop("GOMP_SPINCOUNT", None)
    environ.update(ENVIRONMENT[chosen])
    return chosen


def openmp_loaded() -> bool:
    """Say whether libgomp is already in this process, so that its wait policy can no longer be chosen."""
    maps = Path("/proc/self/maps")
    return maps.exists() and "libgomp" in maps.read_text(errors="replace")
