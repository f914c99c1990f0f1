"""With or without flash attention? Measured on a CPU, because llama.cpp's `auto` asks only whether it can.

Its kernel for a CPU computes fewer than 64 tokens of a sequence one by one. On some processors that takes
twice the time of plain attention where much is cached, on others it is the faster one. So both are tried when
a model is opened, once per file, build and processor: a row, and a few rows of a prompt, beside half a slot's
cells. Nothing is prefilled for that: the cells are copies of a few.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import structlog

from cobali_ray.backend import library
from cobali_ray.backend.config import FLASH, LlamaConfig
from cobali_ray.backend.kept import Measured, MeasuredCells, kept_or_measured

_log = structlog.get_logger(__name__)

N_ROWS = 16
"""Rows of a prompt computed at once: a short chunk, as there are beside streams."""
MAX_CELLS = 2048
"""A longer context says the same, for more memory."""
_MIN_ROUNDS, _MAX_ROUNDS, _ENOUGH_S = 3, 8, 0.2
"""Both settings take turns so often, fewer where these seconds are spent. The shortest times count: what else
the machine does only adds to them, and what is measured is kept."""
_ALONE_S = 0.06
_TOO_LONG_S = 1.0
"""A model that takes longer for `N_ROWS` is not measured: about ten such passes are made."""
UNREACHABLE_CELLS = 1 << 40
"""What stands for no limit: more cells than any slot has."""
_CLEARLY = 0.95
"""Plain attention is chosen where it takes less than this share of the other's time, as a mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTimes:
    """Seconds of single passes beside `n_cells` cached tokens: of one row, and of `N_ROWS` of a prompt."""

    n_cells: MeasuredCells
    on_s: tuple[Measured, Measured]
    off_s: tuple[Measured, Measured]
    pass_cells: MeasuredCells
    """How many cells a row attends to, without flash attention, in the time of a pass over the weights."""

    @property
    def off_wins(self) -> bool:
        """Whether plain attention is clearly faster, both kinds of pass weighed alike."""
        return self.off_s[0] * self.off_s[1] < _CLEARLY**2 * self.on_s[0] * self.on_s[1]


def measured(lc: Any, model: Any, config: LlamaConfig) -> AttentionTimes | None:
    """Return the times for slots of `config.n_ctx` tokens, as they were kept or else measured now.

    None where it is not measured: a slow model, or one whose cells cannot be copied to another sequence.
    """
    began = time.monotonic()
    n_cells = N_ROWS
    while 2 * n_cells <= min(config.n_ctx // 2, MAX_CELLS):
        n_cells *= 2
    facts = (n_cells, config.n_threads, config.ggml_types, N_ROWS, lc.llama_print_system_info().decode())
    times, was_kept = kept_or_measured(
        config.measurements, "attention", config.path, facts, AttentionTimes,
        lambda kept: kept or _measure(lc, model, config, n_cells),
    )  # fmt: skip
    _log.info(
        "flash_attention",
        chosen="off" if times is not None and times.off_wins else "auto",
        n_cells=n_cells,
        on_ms=times and _ms(times.on_s),
        off_ms=times and _ms(times.off_s),
        pass_cells=times and times.pass_cells,
        known=was_kept,
        took_s=round(time.monotonic() - began, 3),
    )
    return times


def _ms(seconds: Sequence[float]) -> list[float]:
    return [round(1000 * s, 3) for s in seconds]


def _measure(lc: Any, model: Any, config: LlamaConfig, n_cells: int) -> AttentionTimes | None:
    with _trial(lc, model, config, n_cells, "on") as on, _trial(lc, model, config, n_cells, "off") as off:
        if on is None or off is None:
            return None
        empty_s = off.alone_s()
        n_filled = N_ROWS
        while n_filled < n_cells:
            if not (on.fill() and off.fill()):
                return None
            n_filled *= 2
        cells_s = off.alone_s() - empty_s
        pass_cells = UNREACHABLE_CELLS
        if cells_s > 0:
            pass_cells = min(int(n_cells * empty_s / cells_s) + 1, UNREACHABLE_CELLS)
        began = time.monotonic()
        rounds: list[tuple[float, ...]] = []
        while len(rounds) < _MIN_ROUNDS or (
            len(rounds) < _MAX_ROUNDS and time.monotonic() - began < _ENOUGH_S
        ):
            rounds.append(tuple(trial.seconds(n) for trial in (on, off) for n in (1, N_ROWS)))
    on_1, on_n, off_1, off_n = map(min, zip(*rounds, strict=True))
    return AttentionTimes(n_cells=n_cells, on_s=(on_1, on_n), off_s=(off_1, off_n), pass_cells=pass_cells)


@contextmanager
def _trial(
    lc: Any, model: Any, config: LlamaConfig, n_cells: int, flash_attn: str
) -> Iterator[_Trial | None]:
    """Open a small context for as long as the `with` lasts; None where llama.cpp opens none."""
    params = lc.llama_context_default_params()
    params.n_ctx = n_cells + 2 * N_ROWS
    params.n_batch = params.n_ubatch = N_ROWS
    params.n_seq_max = params.n_outputs_max = 2
    params.n_threads = params.n_threads_batch = config.n_threads
    params.flash_attn_type = FLASH[flash_attn]
    params.type_k, params.type_v = config.ggml_types
    params.kv_unified = params.no_perf = True
    context = lc.llama_init_from_model(model, params)
    try:
        trial = _Trial(lc, context, config.n_threads) if context else None
        yield trial if trial is not None and trial.begin() else None
    finally:
        if context:
            lc.llama_free(context)


class _Trial:
    """A context in which sequence 0 holds a few tokens many times over; 1 is where they are copied from."""

    def __init__(self, lc: Any, context: Any, n_threads: int) -> None:
        self._lc, self._context, self._n_threads = lc, context, n_threads
        self._memory = lc.llama_get_memory(context)
        self._position, self._output = np.zeros(N_ROWS, np.int32), np.zeros(N_ROWS, np.int8)
        zeros = np.zeros(N_ROWS, np.int32)
        self._raw = library.raw_batch(
            lc, token=zeros, position=self._position, seq=zeros, output=self._output
        )

    def begin(self) -> bool:
        """Compute the first tokens; False where that fails, or takes so long that no more should be tried."""
        began = time.monotonic()
        return self._compute(0, N_ROWS) and time.monotonic() - began < _TOO_LONG_S

    def seconds(self, n_rows: int) -> float:
        """Time a pass of so many rows and forget them again.

        The processor's time, not the clock's: what else the machine does meanwhile says nothing of kernels.
        """
        began = time.process_time()
        self._compute(N_ROWS, n_rows)
        took = time.process_time() - began
        self._lc.llama_memory_seq_rm(self._memory, 0, N_ROWS, -1)
        return took

    def alone_s(self) -> float:
        """Return what a row takes on one thread: exact, as there is nobody to wait for at barriers."""
        self._lc.llama_set_n_threads(self._context, 1, 1)
        times = [self.seconds(1)]
        while len(times) < _MAX_ROUNDS and sum(times) < _ALONE_S:
            times.append(self.seconds(1))
        self._lc.llama_set_n_threads(self._context, self._n_threads, self._n_threads)
        return median(times)

    def fill(self) -> bool:
        """Let sequence 0 hold twice as many cells; the new ones have the positions of the old."""
        copied = library.copy_sequence(self._lc, self._context, 0, 1)
        if copied:
            self._lc.llama_memory_seq_cp(self._memory, 1, 0, -1, -1)
            self._lc.llama_memory_seq_rm(self._memory, 1, -1, -1)
        return copied

    def _compute(self, position: int, n_rows: int) -> bool:
        self._position[:n_rows] = np.arange(position, position + n_rows)
        self._output[:] = 0
        self._output[n_rows - 1] = 1
        self._raw.n_tokens = n_rows
        return bool(self._lc.llama_decode(self._context, self._raw) == 0)
