"""The selection kernels compiled for the CPU: the same source, its threads run as fibers."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np

from cobali_ray.backend.select_cuda import N_OUTPUTS, SOURCE

SHIM = Path(__file__).with_name("cuda_on_cpu.h")
_LAUNCHER = """
extern "C" int run(const int* table, int n, int budget, int* answer, unsigned n_threads, unsigned seed) {
    return fibers::launch(n_threads, seed, [=] { select_continuous(table, n, budget, answer); })
        && fibers::launch(n_threads, seed, [=] { gather_metadata(table, n, answer); });
}
"""


class StuckError(Exception):
    """Threads of a block wait for each other in vain."""


class EmulatedKernels:
    """What `CudaKernels` answers, from the CPU. `n_threads` and `seed` may change between calls."""

    def __init__(self, folder, source=SOURCE):
        code, library = folder / "kernels.cpp", folder / "kernels.so"
        code.write_text(f'#include "{SHIM}"\n{source}\n{_LAUNCHER}')
        subprocess.run(
            [shutil.which("g++"), "-std=c++17", "-O1", "-shared", "-fPIC", "-o", library, code], check=True
        )
        self._library = ctypes.CDLL(str(library))
        self.n_threads, self.seed = 1024, 0

    def select(self, table, budget):
        n = table.shape[1]
        answer = np.full(1 + N_OUTPUTS * n, -7, np.int32)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (table, answer)]
        threads = self.n_threads, ctypes.c_uint(self.seed)
        if not self._library.run(pointers[0], n, budget, pointers[1], *threads):
            raise StuckError
        return tuple(answer[1:].reshape(N_OUTPUTS, n)[:, : answer[0]].copy())
