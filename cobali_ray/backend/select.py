"""Which requests decode next, over arrays: the Selector port, its numpy twin and the choice of one.

The plan of a tick (`core/plan.py`) walks the busy slots; this is the same decision over their state in
arrays, as CoBaLI does on its GPU. The engine takes its ticks of pure decode from here. The lowest index
comes first and the answer is the same every time, on the host and on the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from statistics import median
from typing import Literal, Protocol, TypeAlias

import numpy as np
import structlog
from numpy.typing import NDArray

from cobali_ray.backend.select_cuda import CudaKernels, open_kernels
from cobali_ray.errors import ConfigError

_log = structlog.get_logger(__name__)

SelectorName: TypeAlias = Literal["host", "cuda", "auto"]
N_TRIALS = 21
"""Selections that `auto` times on each side; odd, for the median."""


class Column(IntEnum):
    """Rows of a request table, in the order that the kernels read them."""

    RUNNING = 0
    """Not 0: the request holds a slot."""
    DECODING = 1
    """Not 0: only the token sampled last is left to compute."""
    N_PENDING = 2
    """Tokens still to be computed, one in flight included; 0 if no further tick will compute any."""
    TOKEN = 3
    """The token known last."""
    N_COMPUTED = 4
    SLOT_ID = 5


Requests: TypeAlias = NDArray[np.int32]
"""A table of shape (len(Column), n_requests), C-contiguous: one row per property."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The requests that take part, dense and in ascending order of index. Four int32 arrays of one length."""

    index: NDArray[np.int32]
    token: NDArray[np.int32]
    position: NDArray[np.int32]
    slot_id: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.index)


class Selector(Protocol):
    """Chooses among the active requests: those that run, decode and have a token to compute."""

    name: Literal["host", "cuda"]

    def continuous(self, requests: Requests, budget: int) -> Chosen:
        """Choose the first `budget` active requests, lowest index first."""
        ...

    def sequential(self, requests: Requests) -> Chosen:
        """Choose the first active request only."""
        ...


def empty_requests(n_requests: int) -> Requests:
    """Return a table of idle requests, to be filled row by row."""
    return np.zeros((len(Column), n_requests), np.int32)


class HostSelector:
    """The numpy twin of the kernels."""

    name: Literal["host", "cuda"] = "host"

    def continuous(self, requests: Requests, budget: int) -> Chosen:
        """Choose the first `budget` active requests, lowest index first."""
        return _gather(requests, _active(requests).nonzero()[0][: max(budget, 0)])

    def sequential(self, requests: Requests) -> Chosen:
        """Choose the first active request only."""
        return _gather(requests, _active(requests).nonzero()[0][:1])


def _active(requests: Requests) -> NDArray[np.bool_]:
    running, decoding, n_pending = requests[: Column.TOKEN]
    active: NDArray[np.bool_] = np.logical_and(running, decoding)
    active &= n_pending > 0
    return active


def _gather(requests: Requests, index: NDArray[np.intp]) -> Chosen:
    rows = requests[Column.TOKEN : Column.SLOT_ID + 1].take(index, axis=1)
    return Chosen(index.astype(np.int32), *rows)


class CudaSelector:
    """The kernels on a CUDA device: one copy up, two kernels, one copy back."""

    name: Literal["host", "cuda"] = "cuda"

    def __init__(self, kernels: CudaKernels) -> None:
        self._kernels = kernels

    def continuous(self, requests: Requests, budget: int) -> Chosen:
        """Choose the first `budget` active requests, lowest index first."""
        return Chosen(*self._kernels.continuous(requests, max(budget, 0)))

    def sequential(self, requests: Requests) -> Chosen:
        """Choose the first active request only."""
        return Chosen(*self._kernels.sequential(requests))


def choose_selector(
    asked: SelectorName,
    *,
    n_requests: int,
    open_device: Callable[[], CudaKernels] = open_kernels,
    now: Callable[[], float] = time.perf_counter,
) -> Selector:
    """Return the selector to use; `auto` times both once on `n_requests` and takes the faster.

    Raises ConfigError if `cuda` is asked for and there is no CUDA device or no CuPy.
    """
    host = HostSelector()
    if asked == "host":
        return host
    try:
        cuda = CudaSelector(open_device())
    except ConfigError as reason:
        if asked == "cuda":
            raise
        _log.info("selector", chosen="host", detail=str(reason))
        return host
    if asked == "cuda":
        return cuda
    host_s, cuda_s = (time_selector(one, n_requests, now) for one in (host, cuda))
    faster: Selector = cuda if cuda_s < host_s else host
    _log.info("selector", chosen=faster.name, n_requests=n_requests, host_s=host_s, cuda_s=cuda_s)
    return faster


def time_selector(selector: Selector, n_requests: int, now: Callable[[], float]) -> float:
    """Return the median seconds of one continuous selection in which every request is active."""
    requests = busy_requests(n_requests)
    selector.continuous(requests, n_requests)
    spent = []
    for _ in range(N_TRIALS):
        began = now()
        selector.continuous(requests, n_requests)
        spent.append(now() - began)
    return median(spent)


def busy_requests(n_requests: int) -> Requests:
    """Return a table in which every request decodes: the most work a selection can be."""
    requests = empty_requests(n_requests)
    requests[[Column.RUNNING, Column.DECODING, Column.N_PENDING]] = 1
    requests[Column.TOKEN :] = np.arange(n_requests, dtype=np.int32)
    return requests
