"""What a run ran on, and whether the machine was quiet enough to believe it."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Self

PACKAGES = ("cobali-ray", "llama-cpp-python", "ray", "numpy", "fastapi", "openai")
_HZ = os.sysconf("SC_CLK_TCK")
BUSY_SHARE = 0.15
"""Share of the cores that others may use before a run counts as disturbed."""


def describe_machine() -> dict[str, object]:
    """Return processor, cores, memory, system and package versions."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: installed for name in PACKAGES if (installed := _version(name))},
        "openmp": {k: v for k, v in os.environ.items() if k.startswith(("OMP_", "GOMP_"))},
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class ProcessorUsage:
    """Processor time over a span of a run. Shares are of all cores together."""

    wall_s: float
    ours_share: float
    """This process and the children it waited for."""
    others_share: float
    """Everything else on the machine, servers under test included unless they are children already ended."""
    steal_share: float
    """Time the hypervisor gave to somebody else."""


class Watch:
    """Measures processor use between entering and leaving: `with Watch() as watch: ...; watch.usage`."""

    def __init__(self) -> None:
        self.usage = ProcessorUsage(0.0, 0.0, 0.0, 0.0)

    def __enter__(self) -> Self:
        self._before = _reading()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wall, busy, steal, ours = (
            after - before for after, before in zip(_reading(), self._before, strict=True)
        )
        room = max(wall * (os.cpu_count() or 1), 1e-9)
        self.usage = ProcessorUsage(wall, ours / room, max(busy - ours, 0.0) / room, steal / room)


def _reading() -> tuple[float, float, float, float]:
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _wait, irq, soft, steal = (int(f) / _HZ for f in fields[:8])
    mine = os.times()
    ours = mine.user + mine.system + mine.children_user + mine.children_system
    return time.perf_counter(), user + nice + system + irq + soft, steal, ours
