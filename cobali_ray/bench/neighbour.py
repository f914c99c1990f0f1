"""A busy process beside the measured one, and a process that ticks on command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_HZ = os.sysconf("SC_CLK_TCK")
_LOOP = "n = 0\nwhile True:\n    n += 1\n"
_POLICY = ("OMP_", "GOMP_")


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
        """Set their niceness. Raises PermissionError below 0 unless we are root."""
        for process in self._running:
            _be_nice(process.pid, nice)

    def cpu_s(self) -> float:
        """Return the processor time they used so far."""
        return sum(_cpu_s(process.pid) for process in self._running)


class Child:
    """A `threads_child` process with its own OpenMP environment; it sleeps between orders."""

    def __init__(self, settings: Mapping[str, Any], policy: Mapping[str, str]) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_POLICY)}
        command = [sys.executable, "-m", "cobali_ray.bench.threads_child", json.dumps(dict(settings))]
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=inherited | dict(policy),
            text=True,
        )

    def answer(self) -> dict[str, Any]:
        """Wait for its next line. Raises ChildProcessError if it ended instead."""
        pipe = self._process.stdout
        line = pipe.readline() if pipe else ""
        if not line:
            raise ChildProcessError(f"threads_child ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def order(self, **what: float) -> dict[str, Any]:
        """Send one order and return the answer."""
        if self._process.stdin:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        return self.answer()

    def be_nice(self, nice: int) -> None:
        """Set the niceness of its threads. Raises PermissionError below 0 unless we are root."""
        _be_nice(self._process.pid, nice)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()


def _be_nice(pid: int, nice: int) -> None:
    # Linux keeps a niceness for every thread.
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(task.name), nice)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _HZ


def busy_s() -> float:
    """Return the processor time that the whole machine has used, in core seconds since it started."""
    user, nice, system, _idle, _wait, irq, soft = (
        int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + soft) / _HZ
