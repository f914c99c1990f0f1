"""Busy processes beside the measured one, and what the machine's processors did."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from cobali_ray.errors import ConfigError
from cobali_workloads.servers.processes import cpu_s

_HZ = os.sysconf("SC_CLK_TCK")
_LOOP = "n = 0\nwhile True:\n    n += 1\n"


class Neighbours:
    """Processes that each keep one core busy in pure Python, for as long as the `with` lasts."""

    def __init__(self, n_processes: int) -> None:
        self._n_processes = n_processes
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", _LOOP]
        self._running = [subprocess.Popen(command) for _ in range(self._n_processes)]  # noqa: S603 - ours
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running:
            process.kill()
            process.wait()

    def be_nice(self, nice: int) -> None:
        """Set their niceness."""
        for process in self._running:
            be_nice(process.pid, nice)

    def cpu_s(self) -> float:
        """Return the processor time they used so far."""
        return sum(cpu_s(process.pid) for process in self._running)


def be_nice(pid: int, nice: int) -> None:
    """Set the niceness of a process. Raises ConfigError below 0 unless we are root."""
    # Linux keeps a niceness for every thread.
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(task.name), nice)
    except PermissionError as error:
        raise ConfigError("--nice", f"{nice} needs root") from error


def busy_s() -> float:
    """Return the processor time that the whole machine has used, in core seconds since it started."""
    user, nice, system, _idle, _wait, irq, soft = (
        int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + soft) / _HZ
