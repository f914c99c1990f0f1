"""How the CPU threads of llama.cpp wait for each other, settled before the library loads.

llama.cpp computes with OpenMP (libgomp). Its threads spin at every barrier: twice as fast as sleeping
when the cores are ours, a hundred times slower when something else needs them.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Literal, TypeAlias

ThreadsWait: TypeAlias = Literal["auto", "active", "passive"]

BUSY_SHARE = 0.25
"""Share of the cores in use by others above which spinning does more harm than good."""


def default_n_threads() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0))


def choose_wait(
    asked: ThreadsWait, *, n_threads: int, n_cores: int, load: float
) -> Literal["active", "passive"]:
    """Return how threads should wait.

    `auto` spins only where cores stay free for everybody else: fewer compute threads than cores, or one
    thread, on a machine whose 1-minute load average leaves room for them.
    """
    if asked != "auto":
        return asked
    others_fit = n_threads < n_cores or n_threads == 1
    idle = load <= BUSY_SHARE * n_cores
    return "active" if others_fit and idle else "passive"


def apply_wait(
    asked: ThreadsWait, *, n_threads: int, environ: MutableMapping[str, str] | None = None
) -> Literal["active", "passive"]:
    """Set libgomp's wait policy in the environment; return what was chosen.

    An OMP_WAIT_POLICY or GOMP_SPINCOUNT that the operator exported wins over `auto`. Call it before
    llama_cpp is imported: libgomp reads the environment once, when it loads.
    """
    environ = os.environ if environ is None else environ
    exported = environ.get("OMP_WAIT_POLICY", "").lower()
    if asked == "auto" and (exported or "GOMP_SPINCOUNT" in environ):
        return "passive" if exported == "passive" else "active"
    chosen = choose_wait(asked, n_threads=n_threads, n_cores=default_n_threads(), load=os.getloadavg()[0])
    if chosen == "passive":
        environ["OMP_WAIT_POLICY"] = "passive"
    else:
        # Not "active": that would spin for minutes after the last tick. libgomp's default spins for
        # milliseconds and then sleeps, which is what "active" should mean for a server.
        environ.pop("OMP_WAIT_POLICY", None)
    return chosen


def openmp_loaded() -> bool:
    """Say whether libgomp is already in this process, so that its wait policy can no longer be chosen."""
    maps = Path("/proc/self/maps")
    return maps.exists() and "libgomp" in maps.read_text(errors="replace")
