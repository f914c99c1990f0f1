"""Workers as child processes: of an engine, watched while it uses them, or of an actor that lends one."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from cobali_ray.backend.rpc import LentDevices, greet
from cobali_ray.errors import ConfigError
from cobali_ray.ports import free_port

START_S = 120.0
"""How long a worker may take from its start to its first answer, on a busy machine."""
_STOP_S = 10.0


class WorkerProcess:
    """A child process that lends a device of this machine: the CPU, to the engine in this process."""

    def __init__(
        self,
        cache: Path,
        *,
        n_threads: int,
        memory_mib: int | None,
        words: Sequence[str] = (),
        first: bytes = b"",
    ) -> None:
        """Start it, without waiting for it; `words` are more arguments, `first` is what it reads first."""
        port, self._ending = free_port(), False
        self.endpoint = f"127.0.0.1:{port}"
        self._cache, self._n_threads = cache, n_threads
        self._lent: LentDevices | None = None
        words = ["--port", str(port), "--cache", str(cache), "--threads", str(n_threads), *words]
        if memory_mib is not None:
            words += ["--memory", str(memory_mib << 20)]
        self._process = subprocess.Popen(  # noqa: S603 - words of ours
            [sys.executable, "-m", "cobali_ray.backend.worker", *words],
            stdin=subprocess.PIPE,  # it ends when this closes, however we end
            stdout=subprocess.DEVNULL,
            bufsize=0,
        )
        if first and self._process.stdin is not None:
            self._process.stdin.write(first)

    def wait(self) -> None:
        """Wait until it lends. Raises ConfigError."""
        greet(self.endpoint, START_S, self._require_alive)

    def connect(self, lose: Callable[[str], None]) -> tuple[int, ...]:
        """Wait for it, and return the handles of its devices. Raises ConfigError.

        `lose` is called, with the reason, when it ends before it is closed.
        """
        self._lent = LentDevices(self.endpoint, self._cache, START_S, self._require_alive)
        threading.Thread(target=self._watch, args=(lose,), daemon=True, name="worker").start()
        return self._lent.handles

    def busy_s(self) -> float | None:
        """Return how long its CPU has computed: the time of all threads, by their number."""
        try:
            times = psutil.Process(self._process.pid).cpu_times()
        except psutil.Error:  # it has just ended
            return None
        return float(times.user + times.system) / self._n_threads

    def _require_alive(self) -> None:
        if (code := self._process.poll()) is not None:
            raise ConfigError("devices", f"a worker ended at its start with code {code}; the log says why")

    def _watch(self, lose: Callable[[str], None]) -> None:
        code = self._process.wait()
        if not self._ending:
            lose(f"its process ended with code {code}")

    def close(self) -> None:
        """Stop it; what lies on its device must be freed by then."""
        if self._lent is not None:
            self._lent.close()
        self._ending = True
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
