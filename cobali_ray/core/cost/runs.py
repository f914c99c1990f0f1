"""Runs: which sequences of a batch share a micro-batch, and what its attention pays for that.

llama.cpp puts a sequence of a split cache into the micro-batch of the one before it in the batch, if its id
is one higher. With plain attention, all rows of a micro-batch take as long as the deepest of them: a long
prompt or one long conversation makes each stream beside it as dear as itself. So a batch is laid out as runs
of neighbouring ids, the highest run first, since runs in falling order never join. A cut costs a pass over
the weights where it parts streams, and nothing between streams and a chunk: a chunk's tokens but the first
are a micro-batch of their own anyway.

What a cut is worth follows from `Grain.pass_cells`, known where plain attention was measured and chosen
(`backend/attention.py`); the tick-time model counts what the runs cost. Flash attention passes over what is
not a row's own: there only chunks are parted from streams, so that the first token of each is computed with
the others, in whole tiles. On GPUs, and with `flash_attn: off` as a setting, which is part of the
reproducible configuration, batches keep the order of ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple

_ALL = 1 << 62
CELL_STEP = 256
"""llama.cpp rounds a micro-batch's depth up to so many cells."""


class Row(NamedTuple):
    """A sequence's part of a batch."""

    seq_id: int
    depth: int
    """Cells its attention goes over: its own last token's among them."""
    chunk: bool = False


def runs_of(rows: Sequence[Row], pass_cells: int | None) -> list[list[int]]:
    """Return the runs of `rows`, which are sorted by id, as their places there; the lowest comes first.

    `pass_cells` None: streams are never parted.
    """
    pass_cells = _ALL if pass_cells is None else pass_cells
    runs: list[list[int]] = []
    for stretch in _stretches(rows):
        for part in _parted(rows, stretch, pass_cells):
            if any(rows[i].chunk for i in part):
                runs.append(part)
            else:
                runs += _cut(rows, part, pass_cells)
    return runs


def cells_of(rows: Sequence[Row], runs: Sequence[Sequence[int]]) -> int:
    """Return the cells that the streams' attention pays for: rows times the deepest of each run."""
    n_streams = [sum([not rows[i].chunk for i in run]) for run in runs]
    return sum(
        [n * max([_padded(rows[i]) for i in run]) for n, run in zip(n_streams, runs, strict=True) if n]
    )


def run_lengths(ids: Sequence[int]) -> tuple[int, ...]:
    """Return how many of these ids, in the order of the batch, are in each run; () where all are in one."""
    if not ids or ids[-1] - ids[0] == len(ids) - 1:
        return ()
    return tuple([len([*group]) for _, group in groupby(enumerate(ids), lambda item: item[1] - item[0])])


def _padded(row: Row) -> int:
    return -(-row.depth // CELL_STEP) * CELL_STEP


def _stretches(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Yield the places of rows whose ids are neighbours."""
    for _, group in groupby(enumerate(rows), lambda item: item[1].seq_id - item[0]):
        yield [place for place, _ in group]


def _parted(rows: Sequence[Row], stretch: list[int], pass_cells: int) -> list[list[int]]:
    """Part chunks from streams; not where that would part streams for less than the pass which it costs."""
    groups = [list(group) for _, group in groupby(stretch, lambda i: rows[i].chunk)]
    parts: list[list[int]] = []
    joined = False
    for place, group in enumerate(groups):
        between = rows[group[0]].chunk and 0 < place < len(groups) - 1
        joins = between and _together(rows, parts[-1], group, groups[place + 1]) <= pass_cells
        if joins or joined:
            parts[-1] += group
        else:
            parts.append(group)
        joined = joins
    return parts


def _together(rows: Sequence[Row], left: list[int], chunks: list[int], right: list[int]) -> int:
    """Return the cells that streams on both sides of chunks pay more if all are one run."""
    deepest = [max([_padded(rows[i]) for i in part]) for part in (left, chunks, right)]
    whole = (len(left) + len(right)) * max(deepest)
    return whole - len(left) * deepest[0] - len(right) * deepest[2]


def _cut(rows: Sequence[Row], run: list[int], pass_cells: int) -> list[list[int]]:
    """Cut a run of streams where that saves most, for as long as it saves more than a pass."""
    depths = [_padded(rows[i]) for i in run]
    n, deepest = len(depths), max(depths)
    if n * (deepest - min(depths)) <= pass_cells:
        return [run]
    below = list(accumulate(depths, max))
    above = list(accumulate(reversed(depths), max))
    saved = [i * (deepest - below[i - 1]) + (n - i) * (deepest - above[n - i - 1]) for i in range(1, n)]
    most = max(saved)
    if most <= pass_cells:
        return [run]
    at = saved.index(most) + 1
    return _cut(rows, run[:at], pass_cells) + _cut(rows, run[at:], pass_cells)
