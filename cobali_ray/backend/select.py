"""Which requests decode next, over arrays: what CoBaLI does on its GPU, and the same with numpy.

The scheduler asks one `Select` who decodes when a request came or left; `select_decoding` walks the slots,
and `over_arrays` makes one of what chooses from a table. The lowest index comes first and the answer is the
same every time.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend.select_cuda import CudaKernels, open_kernels
from cobali_ray.core.planner import Select, select_decoding
from cobali_ray.core.request.sequence import Sequence

SelectorName: TypeAlias = Literal["host", "numpy", "cuda"]


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


ArraySelect: TypeAlias = Callable[[Requests, int], Chosen]
"""Chooses so many of the active requests, those first whose index is lowest.

Active are those that run, decode and have a token to compute.
"""


def empty_requests(n_requests: int) -> Requests:
    """Return a table of idle requests, to be filled row by row."""
    return np.zeros((len(Column), n_requests), np.int32)


def numpy_select(requests: Requests, budget: int) -> Chosen:
    """Choose as the kernels do."""
    running, decoding, n_pending = requests[: Column.TOKEN]
    active = np.logical_and(running, decoding) & (n_pending > 0)
    index = active.nonzero()[0][: max(budget, 0)]
    rows = requests[Column.TOKEN : Column.SLOT_ID + 1].take(index, axis=1)
    return Chosen(index.astype(np.int32), *rows)


def cuda_select(kernels: CudaKernels) -> ArraySelect:
    """Return what chooses on a CUDA device: one copy up, two kernels, one copy back."""
    return lambda requests, budget: Chosen(*kernels.select(requests, max(budget, 0)))


def over_arrays(choose: ArraySelect) -> Select:
    """Return a `Select` that writes the sequences into a table and has `choose` look at that."""

    def select(by_slot: Seq[Sequence | None], budget: int) -> list[Sequence]:
        chosen = choose(table_of(by_slot), budget)
        return [s for slot_id in chosen.slot_id.tolist() if (s := by_slot[slot_id]) is not None]

    return select


def table_of(by_slot: Seq[Sequence | None]) -> Requests:
    requests = empty_requests(len(by_slot))
    requests[Column.SLOT_ID] = np.arange(len(by_slot))
    for slot_id, s in enumerate(by_slot):
        if s is not None:
            requests[: Column.SLOT_ID, slot_id] = (1, s.decoding, s.n_pending, s.tokens[-1], s.n_computed)
    return requests


def choose_select(name: SelectorName) -> Select:
    """Return the selector of this name. Raises ConfigError for `cuda` without a device or CuPy."""
    if name == "cuda":
        return over_arrays(cuda_select(open_kernels()))
    return over_arrays(numpy_select) if name == "numpy" else select_decoding


def busy_requests(n_requests: int) -> Requests:
    """Return a table in which every request decodes: the most work a selection can be."""
    requests = empty_requests(n_requests)
    requests[[Column.RUNNING, Column.DECODING, Column.N_PENDING]] = 1
    requests[Column.TOKEN :] = np.arange(n_requests, dtype=np.int32)
    return requests
