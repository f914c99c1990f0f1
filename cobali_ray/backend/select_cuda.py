"""The selection kernels for CUDA (`select.cu`), and CuPy that launches them. Importing this needs neither.

Ordered compaction: each warp votes, a prefix sum over the votes gives every chosen request its place, so
the lowest index comes first whatever the order in which the threads run. CoBaLI's kernel counts places
with an atomic counter, and its order with it is left to chance.
"""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cobali_ray.errors import ConfigError
from cobali_ray.extras import remedy

BLOCK: Final = 1024
"""Threads of the one block that selects; it walks longer tables tile by tile."""
N_OUTPUTS: Final = 4
"""Rows of an answer after its count: index, token, position, slot id."""

SOURCE: Final = Path(__file__).with_name("select.cu").read_text(encoding="utf-8")


class CudaKernels:
    """Compiled kernels, a stream and buffers that grow with the table. One thread calls it.

    Tables and answers travel through pinned memory, so that each way is one asynchronous copy.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        module = cupy.RawModule(code=SOURCE, options=("--std=c++17",))
        self._select, self._gather = map(module.get_function, ("select_continuous", "gather_metadata"))
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._capacity = 0
        self.device_name: str = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()

    def select(self, table: NDArray[np.int32], budget: int) -> tuple[NDArray[np.int32], ...]:
        """Return index, token, position and slot id of the first `budget` active requests."""
        n_rows, n = table.shape
        if not n:
            return tuple(np.empty((N_OUTPUTS, 0), np.int32))
        if n > self._capacity:
            self._allocate(n_rows, n)
        n_in, n_out = n_rows * n, 1 + N_OUTPUTS * n
        self._host_in[:n_in] = table.reshape(-1)
        self._table[:n_in].set(self._host_in[:n_in], stream=self._stream)
        n_threads = min(BLOCK, -(-n // 32) * 32)
        with self._stream:
            self._select((1,), (n_threads,), (self._table, np.int32(n), np.int32(budget), self._answer))
            self._gather((1,), (n_threads,), (self._table, np.int32(n), self._answer))
        self._answer[:n_out].get(stream=self._stream, out=self._host_out[:n_out])
        self._stream.synchronize()
        n_chosen = int(self._host_out[0])
        rows = self._host_out[1:n_out].reshape(N_OUTPUTS, n)
        return tuple(rows[:, :n_chosen].copy())

    def _allocate(self, n_rows: int, n: int) -> None:
        pinned = self._cupy.cuda.alloc_pinned_memory
        n_in, n_out = n_rows * n, 1 + N_OUTPUTS * n
        self._host_in = np.frombuffer(pinned(4 * n_in), np.int32, n_in)
        self._host_out = np.frombuffer(pinned(4 * n_out), np.int32, n_out)
        self._table = self._cupy.empty(n_in, np.int32)
        self._answer = self._cupy.empty(n_out, np.int32)
        self._capacity = n


def open_kernels() -> CudaKernels:
    """Compile the kernels for the current device. Raises ConfigError that says what is missing."""
    if find_spec("cupy") is None:
        raise ConfigError("selector", f"cuda: CuPy is not installed: {remedy('cuda')}")
    nothing = ConfigError("selector", "cuda: CuPy finds no CUDA device")
    try:
        ctypes.CDLL("libcuda.so.1")  # without the driver there is none, and CuPy takes a while to import
    except OSError:
        raise nothing from None
    import cupy

    if not cupy.cuda.is_available():
        raise nothing
    try:
        return CudaKernels(cupy)
    except (RuntimeError, OSError, cupy.cuda.compiler.CompileException) as error:
        raise ConfigError("selector", f"cuda: the kernels cannot be built here: {error}") from error
