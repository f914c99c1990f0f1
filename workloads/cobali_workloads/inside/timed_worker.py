"""A worker that notes when its device computes, and may take its time: a device of any speed.

Between the worker and ggml's CPU stands a function that reads the clock before and after each graph. Its
times lie in a file that this process and the engine's both map, so that reading them disturbs nobody.
A device that is to take longer waits, by the clock: so several compute at once, however few the cores are.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend import ggml, worker
from cobali_ray.backend.rpc import greet
from cobali_ray.backend.rpc_build import built
from cobali_ray.ports import free_port
from cobali_workloads.inside.device import TimeSpan

MAX_GRAPHS = 1 << 20
START_S = 120.0
_INIT, _COMPUTE = 5, 1 + 12
"""The places of two functions: in what ggml knows of a device, and of a stream on it, behind its id."""
_ROWS = 16 + 8
"""Bytes in front of how many rows a tensor of ggml has."""
_Init = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_char_p)
_Compute = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)


class TimedWorker:
    """The process, on loopback and with one thread, for as long as the `with` block lasts."""

    def __init__(self, cache: Path, pass_s: float = 0.0, row_s: float = 0.0) -> None:
        """Have a pass take `pass_s` seconds and `row_s` for each of its rows, unless it takes longer."""
        built(cache)
        self._pace = pass_s, row_s
        self.endpoint = f"127.0.0.1:{free_port()}"
        self._cache = cache

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="cobali-worker-")
        file = Path(self._folder.name, "times")
        self._times = _mapped(file)
        words = [self.endpoint.rpartition(":")[2], str(self._cache), str(file), *map(str, self._pace)]
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, this module
            [sys.executable, "-m", __name__, *words], stdout=subprocess.DEVNULL
        )
        greet(self.endpoint, START_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def spans(self, since_s: float) -> list[TimeSpan]:
        """Return when it computed since then, in seconds of `time.perf_counter`."""
        n = min(int(self._times[0, 0]), MAX_GRAPHS)
        recorded = self._times[1 : n + 1] / 1e9
        return [TimeSpan(*span) for span in recorded[recorded[:, 0] >= since_s].tolist()]


def _mapped(file: Path) -> NDArray[np.int64]:
    """Map a file of (begin, end) in ns, with how many there are in front; it takes no room until written."""
    if not file.exists():
        with file.open("wb") as empty:
            empty.truncate(16 * (MAX_GRAPHS + 1))
    return np.memmap(file, np.int64, "r+", shape=(MAX_GRAPHS + 1, 2))


def _watch(times: NDArray[np.int64], pass_s: float, row_s: float) -> tuple[object, ...]:
    """Have the CPU's graphs timed; return what must not be forgotten meanwhile."""
    base = ggml.load()
    base.ggml_graph_node.restype, base.ggml_graph_node.argtypes = c_void_p, (c_void_p, c_int)
    device = base.ggml_backend_dev_by_type(ggml.CPU)
    functions = (c_void_p * (_INIT + 1)).from_address(device)
    init_stream = _Init(functions[_INIT] or 0)
    kept: list[object] = [times]

    def init(of: int, parameters: bytes | None) -> int | None:
        stream: int = init_stream(of, parameters)
        places = (c_void_p * (_COMPUTE + 1)).from_address(stream)
        compute_graph = _Compute(places[_COMPUTE] or 0)

        def compute(on: int, graph: int) -> int:
            began = time.perf_counter_ns()
            status: int = compute_graph(on, graph)
            n_rows = ctypes.c_int64.from_address(base.ggml_graph_node(graph, 0) + _ROWS).value
            left_s = pass_s + row_s * n_rows - (time.perf_counter_ns() - began) / 1e9
            if pass_s + row_s and left_s > 0:
                time.sleep(left_s)
            n = min(int(times[0, 0]) + 1, MAX_GRAPHS)
            times[n] = began, time.perf_counter_ns()
            times[0, 0] = n
            return status

        timed = _Compute(compute)
        kept.append(timed)
        places[_COMPUTE] = ctypes.cast(timed, c_void_p)
        return stream

    timed_init = _Init(init)
    functions[_INIT] = ctypes.cast(timed_init, c_void_p)
    return (timed_init, kept)


def main(words: Sequence[str]) -> None:
    """Lend the CPU, timed, until the process is killed."""
    port, cache, file, *pace = words
    kept = _watch(_mapped(Path(file)), *map(float, pace))
    worker.serve(int(port), cache=Path(cache), n_threads=1)
    del kept


if __name__ == "__main__":
    main(sys.argv[1:])
