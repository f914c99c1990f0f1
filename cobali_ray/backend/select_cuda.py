"""The selection kernels for CUDA, and CuPy that launches them. Importing this needs neither.

Ordered compaction: each warp votes, a prefix sum over the votes gives every chosen request its place, so
the lowest index comes first whatever the order in which the threads run. CoBaLI's kernel counts places
with an atomic counter, and its order with it is left to chance.
"""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cobali_ray.errors import ConfigError
from cobali_ray.extras import remedy

BLOCK: Final = 1024
"""Threads of the one block that selects; it walks longer tables tile by tile."""
N_OUTPUTS: Final = 4
"""Rows of an answer after its count: index, token, position, slot id."""

SOURCE: Final = r"""
// A table holds six rows of n ints: running, decoding, n_pending, token, n_computed, slot_id.
// An answer holds its count in answer[0] and then four rows of n ints: index, token, position, slot_id.

__device__ __forceinline__ bool is_active(const int* table, int n, int i) {
    return i < n && table[i] != 0 && table[n + i] != 0 && table[2 * n + i] > 0;
}

// Choose the first `budget` active requests. One block of any number of whole warps, at most 32.
extern "C" __global__ void select_continuous(const int* table, int n, int budget, int* answer) {
    __shared__ int warp_base[33];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int n_warps = blockDim.x >> 5;
    int* index = answer + 1;
    int n_found = 0;

    // Every thread sees the same n_found, so that all of them leave the loop together.
    for (int tile = 0; tile < n && n_found < budget; tile += blockDim.x) {
        const int i = tile + threadIdx.x;
        const bool active = is_active(table, n, i);
        const unsigned votes = __ballot_sync(0xffffffffu, active);
        if (lane == 0) warp_base[warp] = __popc(votes);
        __syncthreads();

        if (warp == 0) {
            const int own = lane < n_warps ? warp_base[lane] : 0;
            int sum = own;
            for (int step = 1; step < 32; step <<= 1) {
                const int below = __shfl_up_sync(0xffffffffu, sum, step);
                if (lane >= step) sum += below;
            }
            warp_base[lane] = sum - own;
            if (lane == 31) warp_base[32] = sum;
        }
        __syncthreads();

        const int place = n_found + warp_base[warp] + __popc(votes & ((1u << lane) - 1u));
        if (active && place < budget) index[place] = i;
        n_found += warp_base[32];
        __syncwarp();  // lane 0 writes the next votes only after its whole warp has read these sums
    }
    if (threadIdx.x == 0) answer[0] = n_found < budget ? n_found : budget;
}

// Choose the first active request only. One block.
extern "C" __global__ void select_sequential(const int* table, int n, int budget, int* answer) {
    __shared__ int first;
    if (threadIdx.x == 0) first = n;
    __syncthreads();
    for (int tile = 0; tile < n; tile += blockDim.x) {
        const int i = tile + threadIdx.x;
        const bool active = is_active(table, n, i);
        if (active) atomicMin(&first, i);
        if (__syncthreads_or(active)) break;  // the same for all; later tiles hold only higher indices
    }
    if (threadIdx.x == 0) {
        const bool found = first < n && budget > 0;
        if (found) answer[1] = first;
        answer[0] = found ? 1 : 0;
    }
}

// Gather what the batch needs of the chosen requests. Any grid.
extern "C" __global__ void gather_metadata(const int* table, int n, int* answer) {
    const int n_chosen = answer[0];
    const int* index = answer + 1;
    for (int k = blockIdx.x * blockDim.x + threadIdx.x; k < n_chosen; k += blockDim.x * gridDim.x) {
        const int i = index[k];
        answer[1 + n + k] = table[3 * n + i];
        answer[1 + 2 * n + k] = table[4 * n + i];
        answer[1 + 3 * n + k] = table[5 * n + i];
    }
}
"""


class CudaKernels:
    """Compiled kernels, a stream and buffers that grow with the table. One thread calls it.

    Tables and answers travel through pinned memory, so that each way is one asynchronous copy.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        module = cupy.RawModule(code=SOURCE, options=("--std=c++17",))
        self._continuous, self._sequential, self._gather = (
            module.get_function(name)
            for name in ("select_continuous", "select_sequential", "gather_metadata")
        )
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._capacity = 0
        self.device_name: str = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()

    def continuous(self, table: NDArray[np.int32], budget: int) -> tuple[NDArray[np.int32], ...]:
        """Return index, token, position and slot id of the first `budget` active requests."""
        return self._run(self._continuous, table, budget)

    def sequential(self, table: NDArray[np.int32]) -> tuple[NDArray[np.int32], ...]:
        """Return the same of the first active request."""
        return self._run(self._sequential, table, 1)

    def _run(self, kernel: Any, table: NDArray[np.int32], budget: int) -> tuple[NDArray[np.int32], ...]:
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
            kernel((1,), (n_threads,), (self._table, np.int32(n), np.int32(budget), self._answer))
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
