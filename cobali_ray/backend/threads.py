"""How many CPU threads llama.cpp gets and how they wait for each other, settled before the library loads.

llama.cpp computes with OpenMP (libgomp). Its threads spin at every barrier: up to four times as fast as
sleeping when the cores are ours, a hundred times slower when something else needs them. Spinning for
some microseconds and then sleeping keeps the first and avoids the second.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Literal, TypeAlias

from cobali_ray.backend import cgroup

ThreadsWait: TypeAlias = Literal["auto", "active", "passive"]
Wait: TypeAlias = Literal["active", "brief", "passive"]

SPIN_COUNT = 700
"""Turns of libgomp's waiting loop before a thread sleeps: about 30 us where one turn is a `pause` of 140
cycles. Longer than a balanced operation keeps a thread waiting, shorter than what a neighbour minds;
`cobali bench threads` shows the ladder on a machine of yours."""

NICENESS = 10
"""By how much threads give way: the model's, which all wait for the slowest of them, go first."""

ENVIRONMENT: dict[Wait, dict[str, str]] = {
    "active": {},
    "brief": {"GOMP_SPINCOUNT": str(SPIN_COUNT)},
    "passive": {"OMP_WAIT_POLICY": "passive"},
}


def default_n_threads(root: Path = cgroup.ROOT, cpus: AbstractSet[int] | None = None) -> int:
    """Return one thread per physical core this process may use, within the CPU quota of its control groups.

    Two threads on one core share its arithmetic units, and whoever computes beyond a quota is stopped until
    the next period, all others waiting at the barrier. `cpus` None: those of the scheduler's affinity.
    """
    cpus = os.sched_getaffinity(0) if cpus is None else cpus
    return min(len({_core(root, cpu) for cpu in cpus}), n_at_once(root, cpus))


def n_at_once(root: Path = cgroup.ROOT, cpus: AbstractSet[int] | None = None) -> int:
    """Return how many threads of this process may run at the same time: its CPUs, within the quota."""
    n_cpus = len(os.sched_getaffinity(0) if cpus is None else cpus)
    quota = cgroup.n_cpus(root)
    return n_cpus if quota is None else min(n_cpus, max(int(quota), 1))


def _core(root: Path, cpu: int) -> str:
    """Name the core of a CPU by all its CPUs; itself where Linux does not tell."""
    siblings = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return siblings.read_text().strip() if siblings.exists() else str(cpu)


def apply_wait(
    setting: ThreadsWait, *, n_threads: int, environ: MutableMapping[str, str] | None = None
) -> Wait:
    """Set libgomp's wait policy in the environment; return what was chosen.

    `auto` spins briefly where every thread has a CPU, whatever the load at this moment: neighbours come
    and go, and a wait of some microseconds is right with and without them. More threads than CPUs must
    sleep, because the thread waited for cannot run while others spin.

    An OMP_WAIT_POLICY or GOMP_SPINCOUNT that the operator exported wins over `auto`. Call it before
    llama_cpp is imported: libgomp reads the environment once, when it loads.
    """
    environ = os.environ if environ is None else environ
    exported = environ.get("OMP_WAIT_POLICY", "").lower()
    if setting == "auto" and "GOMP_SPINCOUNT" in environ:
        return "brief"
    if setting == "auto" and exported:
        return "passive" if exported == "passive" else "active"
    auto: Wait = "brief" if n_threads <= n_at_once() else "passive"
    chosen = auto if setting == "auto" else setting
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


def pin(cpus: AbstractSet[int]) -> None:
    """Keep this thread, and those that it makes, on these CPUs. Raises OSError if none of them is there."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, cpus)


def give_way() -> None:
    """Lower the priority of this thread, and of those that it makes."""
    if sys.platform == "linux":  # elsewhere it is the whole process's
        os.nice(NICENESS)
