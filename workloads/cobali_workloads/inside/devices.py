"""What passes take on fourteen devices: tables of milliseconds, each with its source.

They stand for the truth, so none of it has the form of core/cost/ticktime.py: times are interpolated between
measured rows and bend as they were measured. What nobody measured is scaled from what somebody did, and its
source says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import log
from typing import Any, NamedTuple

from cobali_ray.core.cost.runs import CELL_STEP
from cobali_ray.core.cost.ticktime import KNOTS
from cobali_ray.core.request.limits import EngineLimits, Grain, LimitSettings

N_SLOTS, N_CTX = 16, 6144
N_UBATCH = 512
TABLE_DEPTH = 128
N_MANY = 64
"""Rows from which on computing, not reading the weights, bounds a pass."""
DEEP = 8192
_TILE, _STEP = 64, 128
"""Tokens of a tile of flash attention on a CPU, and of what two threads compute at once."""


class BatchPart(NamedTuple):
    """Tokens of one sequence in a batch, or in a micro-batch of it."""

    seq_id: int
    start: int
    length: int
    n_outputs: int
    """How many of its last rows have an output."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """How long passes take on one device with one model."""

    name: str
    source: str
    rows_ms: Mapping[int, float]
    """A micro-batch of so many rows of a prompt, of which one has an output."""
    outputs_ms: Mapping[int, float]
    """A micro-batch of one row each of so many sequences, `TABLE_DEPTH` deep, all with an output."""
    read_ns: float
    """What attention takes for each further cell of a sequence at least: to read it."""
    attend_ns: float
    """What it takes for each cell and row."""
    cut_ms: float = 0.0
    """What a further micro-batch takes besides its rows."""
    split: bool = False
    """Split cache, plain attention: a gap between sequence ids cuts the batch, and all rows of a micro-batch
    take as long as the deepest. Else each pays for its own depth."""
    by_row_ns: float | None = None
    """Split cache, flash attention: what a cell and row take in chunks of fewer than `_TILE` tokens. Longer
    ones are computed in whole tiles, with `attend_ns` for each cell and row."""
    n_before: int = 0
    """Cells that each sequence holds before its first token, of which the scheduler does not know."""

    @cached_property
    def limits(self) -> EngineLimits:
        """Return the bounds of an engine on it with the product's own settings."""
        pass_s = self._rows_s[1] + self.cut_ms / 1000
        grain = Grain(pass_cells=int(pass_s * 1e9 / self.read_ns), beside=1) if self.split else Grain()
        if self.by_row_ns is not None:
            grain = Grain(step=_STEP, least=_TILE, beside=1)
        return LimitSettings().on(
            N_SLOTS, N_CTX, n_cells=N_SLOTS * N_CTX, copies=True, shares=not self.split, dense=self.split,
            grain=grain,
        )  # fmt: skip

    @cached_property
    def _rows_s(self) -> Sequence[float]:
        return _filled(self.rows_ms, N_UBATCH)

    @cached_property
    def _outputs_s(self) -> Sequence[float]:
        """What the outputs add to a micro-batch, by their number."""
        rows = self._rows_s
        return [max(s - rows[n], 0.0) for n, s in enumerate(_filled(self.outputs_ms, max(self.outputs_ms)))]

    @property
    def table(self) -> dict[str, Any]:
        """What a model of tick times has learned of shallow passes of the 0.5B shape."""
        out_s = _OUTPUT_MS / 1000
        rows = [[n, self._rows_s[n] - out_s] for n in KNOTS]
        return {"rows": rows, "any": 0.0, "out": out_s, "cell": 0.0, "short": 0.0, "whole": 0.0}

    def seconds(self, batch: Iterable[BatchPart]) -> float:
        """Return what a batch takes."""
        cut = _cut_at_gaps(batch) if self.split else _cut_when_full(batch)
        took_s = -self.cut_ms / 1000
        for parts in cut:
            took_s += self._pass_s(parts) + self.cut_ms / 1000
        return took_s

    def _pass_s(self, parts: Sequence[BatchPart]) -> float:
        n_rows = n_outputs = 0
        cells_s, deepest = 0.0, 0
        plain = self.split and self.by_row_ns is None
        if plain:
            deepest = max([part.start for part in parts]) + self.n_before
            deepest = deepest // CELL_STEP * CELL_STEP  # the table's rows pay for one step
        for _, start, length, outputs in parts:
            n_rows += length
            n_outputs += outputs
            depth = deepest if plain else max(start + self.n_before - TABLE_DEPTH, 0)
            cells_s += depth * self._attention_ns(length)
        last = len(self._outputs_s) - 1
        return self._rows_s[n_rows] + self._outputs_s[min(n_outputs, last)] + cells_s / 1e9

    def _attention_ns(self, length: int) -> float:
        """Return what a cell takes that so many rows attend to."""
        if self.by_row_ns is None:
            return max(self.read_ns, self.attend_ns * length)
        if length < _TILE:
            return self.by_row_ns * length
        return self.attend_ns * -(-length // _STEP) * _STEP

    def slower(self, times: int) -> Device:
        """Return a device that takes so many times as long, as for a model that is larger."""
        return replace(
            self,
            name=f"{self.name}-{times}x",
            source=f"{self.name}, {times} times as slow.",
            rows_ms={n: times * ms for n, ms in self.rows_ms.items()},
            outputs_ms={n: times * ms for n, ms in self.outputs_ms.items()},
            read_ns=times * self.read_ns,
            attend_ns=times * self.attend_ns,
            by_row_ns=self.by_row_ns and times * self.by_row_ns,
            cut_ms=times * self.cut_ms,
        )

    def deep(self, n_before: int = DEEP) -> Device:
        """Return the same device with sequences that hold so many cells before they come."""
        return replace(
            self,
            name=f"{self.name}-{n_before // 1024}k",
            source=f"{self.source} Each sequence is {n_before} tokens deeper than the scheduler knows.",
            n_before=n_before,
        )


def _filled(knots: Mapping[int, float], most: int) -> list[float]:
    """Return seconds for 0 to `most` rows."""
    points = sorted({0: 0.0, **knots}.items())
    seconds = [0.0] * (most + 1)
    for (n, ms), (further, more_ms) in pairwise(points):
        for i in range(n, further + 1):
            seconds[i] = (ms + (more_ms - ms) * (i - n) / (further - n)) / 1000
    return seconds


def _cut_at_gaps(batch: Iterable[BatchPart]) -> list[list[BatchPart]]:
    """Cut a batch as llama.cpp does for a split cache.

    A micro-batch takes sequences with neighbouring ids, and as many tokens of each.
    """
    passes, left = list[list[BatchPart]](), list(batch)
    while left:
        chosen = [left[0]]
        for part in left[1:]:
            if part.seq_id == chosen[-1].seq_id + 1:
                chosen.append(part)
        n_each = min(*[part.length for part in chosen], N_UBATCH // len(chosen))
        passes.append([_first(part, n_each) for part in chosen])
        rest, ids = list[BatchPart](), {part.seq_id for part in chosen}
        for part in left:
            if part.seq_id not in ids:
                rest.append(part)
            elif part.length > n_each:
                rest.append(_without(part, n_each))
        left = rest
    return passes


def _cut_when_full(batch: Iterable[BatchPart]) -> list[list[BatchPart]]:
    """Cut a batch into micro-batches of `N_UBATCH` rows."""
    passes, room = list[list[BatchPart]](), 0
    for part in batch:
        while part.length:
            if not room:
                passes.append([])
                room = N_UBATCH
            first = _first(part, min(part.length, room))
            passes[-1].append(first)
            room -= first.length
            part = _without(part, first.length)  # noqa: PLW2901
    return passes


def _first(part: BatchPart, n: int) -> BatchPart:
    return part._replace(length=n, n_outputs=max(part.n_outputs - (part.length - n), 0))


def _without(part: BatchPart, n: int) -> BatchPart:
    seq_id, start, length, n_outputs = part
    return BatchPart(seq_id, start + n, length - n, min(n_outputs, length - n))


def _scaled(knots: Mapping[int, float], at_one: float, at_many: float) -> dict[int, float]:
    """Return times multiplied: of one row, of many, and between them by the logarithm of the rows."""
    last = log(N_MANY)
    shares = {n: min(log(n) / last, 1.0) for n in knots}
    return {n: ms * at_one ** (1 - shares[n]) * at_many ** shares[n] for n, ms in knots.items()}


def _copied(rows_ms: Mapping[int, float], output_ms: float) -> dict[int, float]:
    """Return times of rows with an output each, where each further one takes as long to copy to the host."""
    seconds = _filled(rows_ms, N_UBATCH)
    return {n: 1000 * seconds[n] + (n - 1) * output_ms for n in (1, N_SLOTS)}


HALF_B = Device(
    name="0.5b-q8_0",
    source="Measured: 0.5B shape, Q8_0, vocabulary of 152k, two cores, flash attention off, 128 tokens deep. "
    "Depth: measured on synthetic-tiny-152k (docs/benchmarks/depth.md), times 21 for layers and heads.",
    rows_ms={1: 28, 4: 67, 8: 76, 16: 130, 32: 212, 64: 360, 128: 552, 256: 1220, 512: 2520},
    outputs_ms={1: 28, 2: 59, 3: 71, 4: 74, 6: 127, 8: 122, 12: 138, 16: 161},
    read_ns=5900,
    attend_ns=2060,
    cut_ms=10,
    split=True,
)
HALF_B_FLASH = replace(
    HALF_B,
    name=f"{HALF_B.name}-flash",
    source=f"Rows as {HALF_B.name}, with flash attention: cells by what live ticks took 0 to 1,000 deep.",
    by_row_ns=2900,
    attend_ns=350,
)
_OUTPUT_MS = 6.5
"""What one output row of the 0.5B shape takes: 136 million weights."""


def _one_and_a_half_b(name: str, n_vocab: int) -> Device:
    """Return Qwen2.5-1.5B's shape, scaled from the 0.5B one.

    Its layers have 3.66 times the weights (1,310 million), which take 2.09 times the bytes in Q4_K_M; an
    output row has 1,536 weights a token. Attention computes twice as much.
    """
    output = n_vocab * 1536 / 136e6
    rows = {n: max(ms - _OUTPUT_MS, 0.0) for n, ms in HALF_B.rows_ms.items()}
    one_ms = _OUTPUT_MS * output * 6.56 / 8.5  # Q6_K
    rows = {n: ms + one_ms for n, ms in _scaled(rows, 2.09, 3.66).items()}
    seconds, plain = _filled(rows, N_UBATCH), _filled(HALF_B.rows_ms, N_UBATCH)
    outputs = {
        n: 1000 * seconds[n] + max(ms - 1000 * plain[n], 0.0) * output for n, ms in HALF_B.outputs_ms.items()
    }
    return replace(
        HALF_B,
        name=name,
        source=f"Scaled from {HALF_B.name} by weights and bytes: 1.5B shape, Q4_K_M, {n_vocab:,} tokens.",
        rows_ms=rows,
        outputs_ms=outputs,
        read_ns=2 * HALF_B.read_ns,
        attend_ns=2 * HALF_B.attend_ns,
        cut_ms=2.09 * HALF_B.cut_ms,
    )


_XD = "Averages of XiongjieDai/GPU-Benchmarks-on-LLM-Inference on GitHub, May 2024"
_COPY_MS = 0.043
"""128,256 logits over PCIe at 12 GB/s, computed."""
_4090_ROWS = {1: 7.66, 16: 8.22, 32: 9.53, 64: 11.96, 128: 18.55, 256: 29.92, 512: 55.2}
RTX_4090 = Device(
    name="rtx4090",
    source=f"8B Q4_K_M. One row and depth: {_XD} (tg and pp of 512 and 8,192). 16 rows and more: llama.cpp's "
    "pull request 7860, Q4_K_S by micro-batch; interpolated below. Copies of logits computed.",
    rows_ms=_4090_ROWS,
    outputs_ms=_copied(_4090_ROWS, _COPY_MS),
    read_ns=359,
    attend_ns=28,
    cut_ms=0.2,
)


def _as_fast(name: str, source: str, at_one: float, at_many: float, *, read: float, attend: float) -> Device:
    """Return a card of which only single rows and long prompts are known: the RTX 4090's table, scaled."""
    rows = _scaled(_4090_ROWS, at_one, at_many)
    outputs = _copied(rows, _COPY_MS)
    return replace(
        RTX_4090, name=name, source=source, rows_ms=rows, outputs_ms=outputs, read_ns=read, attend_ns=attend
    )


_M2_ROWS = {1: 12.69, 2: 14.1, 3: 16.4, 4: 17.8, 5: 21.6, 6: 25.4, 7: 27.3, 8: 27.4, 9: 57, 32: 57, 512: 515}
_ALL = (
    Device(
        name="tiny",
        source="Measured: synthetic-tiny-152k (most of its weights are the vocabulary's), two cores. Depth: "
        "docs/benchmarks/depth.md, flash attention off.",
        rows_ms={1: 3.0, 8: 3.5, 128: 9.9, 512: 39.5},
        outputs_ms={1: 3.0, 4: 3.8, 8: 5.5, 16: 10.5},
        read_ns=280,
        attend_ns=98,
        split=True,
    ),
    HALF_B,
    HALF_B.deep(),
    HALF_B_FLASH,
    HALF_B_FLASH.slower(6),
    replace(
        HALF_B,
        name="0.5b-q4_0",
        source=f"Scaled from {HALF_B.name}: one row by bytes (0.66, the vocabulary stays Q8_0), many not.",
        rows_ms=_scaled(HALF_B.rows_ms, 0.66, 1.0),
        outputs_ms=_scaled(HALF_B.outputs_ms, 0.66, 1.0),
    ),
    _one_and_a_half_b("1.5b-4k-vocab", 4096),
    _one_and_a_half_b("1.5b-152k-vocab", 151_936),
    _one_and_a_half_b("1.5b-152k-vocab", 151_936).deep(),
    _as_fast(
        "rtx4070",
        f"8B Q4_K_M. {_XD}, of the 4070 Ti, whose memory is the same; long prompts times 40.1 / 29.15, the "
        "ratio of the two cards' TFLOPS. Between them the RTX 4090's table, scaled.",
        130.58 / 83.50,
        7138.99 / 3936.29 * 40.1 / 29.15,
        read=426,
        attend=63 * 40.1 / 29.15,
    ),
    RTX_4090,
    RTX_4090.deep(),
    _as_fast(
        "h100",
        "8B Q4_K_M: the RTX 4090's table, scaled by what XiongjieDai/GPU-Benchmarks-on-LLM-Inference "
        "measured of both on 7B Q4_0 (H100 PCIe 133.77 and 4,868.59, RTX 4090 149.37 and 5,531.19 tokens/s, "
        "December 2023); depth by bandwidth (2.0 to 1.01 TB/s).",
        149.37 / 133.77,
        5531.19 / 4868.59,
        read=359 / 2,
        attend=28 / 2,
    ),
    Device(
        name="m2-ultra",
        source=f"8B Q4_K_M, 76 GPU cores. One row, 512 rows and depth: {_XD}. 2 to 8 rows: as 7B Q8_0 grows "
        "with them in llama.cpp's pull request 10581. 9 to 32 rows: another kernel, whose time hardly "
        "depends on them, as for 5 to 8 rows before that change; then interpolated. Logits are not copied.",
        rows_ms=_M2_ROWS,
        outputs_ms=_copied(_M2_ROWS, 0.0),
        read_ns=1508,
        attend_ns=23,
        cut_ms=0.3,
    ),
)
DEVICES: Mapping[str, Device] = {device.name: device for device in _ALL}
