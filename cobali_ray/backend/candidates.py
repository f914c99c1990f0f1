"""Which tokens of a logits row can still be drawn: found by thresholds, so that no whole row is sorted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

MAX_VOCAB = 1 << 24
"""A sort key holds row (8 bits), logit (32 bits) and token id (24 bits)."""
_MAX_ROWS = 1 << 8
LOWEST = float(np.finfo(np.float32).min)
"""The least logit a token that can be drawn may have."""


def widen(n: int) -> int:
    """Round a number of candidates up to the width its row is computed in.

    A multiple of 16 float64, so that every row of a matrix fills whole vector registers: what is computed for
    a row cannot depend on where in the matrix it lies. Up to 128 in steps of 16, then powers of two.
    """
    return max(16, -(-n // 16) * 16) if n <= 128 else 1 << (n - 1).bit_length()


def runs(picks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Cut ascending row numbers into runs: (place in `picks`, first row, row after the last)."""
    begin = 0
    for at in range(1, len(picks) + 1):
        if at == len(picks) or picks[at] != picks[at - 1] + 1:
            yield begin, picks[begin], picks[at - 1] + 1
            begin = at


def top_candidates(
    logits: NDArray[np.float32], picks: Sequence[int], width: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]:
    """Give the `width` likeliest tokens of each picked row, likeliest first, ties by lower id.

    Returns logits (rows, width), ids (rows, width) and which rows are sound. Places without a candidate hold
    -inf and id 0. A row that holds NaN or +inf, or nothing above -inf, is not sound and has no candidates.

    A row is cut into interleaved blocks; the `width`-th largest block maximum is a lower bound of the
    `width`-th largest logit, so only blocks that reach it are looked into.
    """
    n_vocab = logits.shape[1]
    step = min(_MAX_ROWS, max(1, (1 << 22) // n_vocab))
    parts = [_top_chunk(logits, picks[i : i + step], width) for i in range(0, len(picks), step)]
    if len(parts) == 1:
        return parts[0]
    values, ids, sound = zip(*parts, strict=True)
    return np.concatenate(values), np.concatenate(ids), np.concatenate(sound)


def _top_chunk(
    logits: NDArray[np.float32], picks: Sequence[int], width: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]:
    n_rows, n_vocab = logits.shape
    depth = 1 << max(0, round(math.log2(n_vocab / width) / 2)) if n_vocab > width else 1
    n_blocks = n_vocab // depth
    blocks = logits[:, : depth * n_blocks].reshape(n_rows, depth, n_blocks)
    maxima = np.empty((len(picks), n_blocks), np.float32)
    for at, i in enumerate(picks):
        np.maximum.reduce(blocks[i], axis=0, out=maxima[at])
    rows = np.array(picks)
    rest = logits[rows, depth * n_blocks :]
    peak = np.maximum(maxima.max(axis=1), rest.max(axis=1, initial=-np.inf))
    sound = np.isfinite(peak)
    bound = np.full(len(picks), LOWEST, np.float32)
    if width < n_blocks:
        bound = np.maximum(bound, np.partition(maxima, n_blocks - width, axis=1)[:, n_blocks - width])
    bound[~sound] = np.inf
    maxima[~sound] = -np.inf

    row, block = _where(maxima >= bound[:, None])
    inside = blocks[rows[row], :, block]
    hit, deep = _where(inside >= bound[row, None])
    keys = _sort_keys(inside[hit, deep], deep * n_blocks + block[hit], row[hit])
    if rest.shape[1]:
        row, place = _where((rest >= bound[:, None]) & sound[:, None])
        more = _sort_keys(rest[row, place], depth * n_blocks + place, row)
        keys = np.concatenate((keys, more))
    keys.sort()

    edges = np.searchsorted(keys, np.arange(len(picks) + 1, dtype=np.uint64) << np.uint64(56))
    if len(picks) == _MAX_ROWS:
        edges[-1] = len(keys)  # the key of row 256 does not fit 64 bits
    places = edges[:-1, None] + np.arange(width)
    missing = places >= edges[1:, None]
    places[missing] = 0
    if not len(keys):
        keys = np.zeros(1, np.uint64)
    values, ids = _from_keys(keys[places])
    values[missing], ids[missing] = -np.inf, 0
    return values, ids, sound


def _where(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give what `np.nonzero` gives for a matrix, several times faster where few are true."""
    row, column = np.divmod(np.flatnonzero(mask), mask.shape[1])
    return row, column


def _sort_keys(
    values: NDArray[np.float32], ids: NDArray[np.int64], rows: NDArray[np.int64] | int = 0
) -> NDArray[np.uint64]:
    """Pack (row, logit, id) into integers that ascend by row, then likeliest first, then lower id first."""
    bits = (values + np.float32(0)).view(np.uint32)  # adding 0 makes -0.0 and 0.0 the same bits
    falling = np.where(bits < 1 << 31, bits ^ 0x7FFFFFFF, bits).astype(np.uint64)
    packed: NDArray[np.uint64] = np.left_shift(falling, 24, dtype=np.uint64)
    packed |= np.left_shift(rows, 56, dtype=np.uint64, casting="unsafe")
    packed |= ids.astype(np.uint64)
    return packed


def _from_keys(keys: NDArray[np.uint64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    falling = (keys >> np.uint64(24)).astype(np.uint32)
    bits = np.where(falling < 1 << 31, falling ^ 0x7FFFFFFF, falling)
    return bits.view(np.float32).astype(np.float64), (keys & np.uint64(MAX_VOCAB - 1)).astype(np.int64)


def sort_candidates(
    values: NDArray[np.float32], ids: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Sort each row's candidates, likeliest first, ties by lower id."""
    return _from_keys(np.sort(_sort_keys(values, ids.astype(np.int64)), axis=1))


def at_least(row: NDArray[np.float32], bound: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Give logits and ids of all tokens that reach `bound`, as float32, likeliest first, ties by lower id."""
    lowest = np.float32(max(bound, LOWEST))
    ids = np.flatnonzero(row >= lowest)
    return _from_keys(np.sort(_sort_keys(row[ids], ids)))
