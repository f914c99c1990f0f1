"""What needs a look at a whole row: its mass, its nucleus, its typical set, a draw from all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend.candidates import LOWEST, at_least
from cobali_ray.backend.row_sampler import RowSampler

_DEPTH = 128
_N_PROBES = 2048


def n_scratch(n_vocab: int) -> int:
    """Give the size of the zeroed float32 scratch row that `masses` wants."""
    return -(-n_vocab // _DEPTH) * _DEPTH


def masses(
    row: NDArray[np.float32], peak: float, temperature: float, scratch: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Write exp((row - peak) / temperature) to `scratch`; give its sums over the columns of (128, n / 128).

    exp is float32, whose error of 1e-7 is below what a float32 logit can say. 16 terms are added in float32,
    all above in float64.
    """
    e = scratch[: len(row)]
    np.subtract(row, np.float32(peak), out=e)
    if temperature != 1:
        np.divide(e, np.float32(temperature), out=e)
    np.exp(e, out=e)
    by_16 = np.add.reduce(scratch.reshape(16, -1), axis=0)
    sums: NDArray[np.float64] = np.add.reduce(by_16.reshape(_DEPTH // 16, -1), axis=0, dtype=np.float64)
    return sums


def draw_whole(sums: NDArray[np.float64], scratch: NDArray[np.float32], uniform: float) -> int:
    """Draw a token from the unsorted row that `masses` left in `scratch`: the column first, then in it."""
    column, left = _invert(np.cumsum(sums), uniform)
    inside = np.cumsum(scratch.reshape(_DEPTH, -1)[:, column], dtype=np.float64)
    place, _ = _invert(inside, left / float(sums[column]))
    return place * len(sums) + column


def _invert(cumulated: NDArray[np.float64], uniform: float) -> tuple[int, float]:
    """Find the first place whose cumulated mass is above `uniform` of all; also the mass left over there."""
    total = float(cumulated[-1])
    target = min(uniform * total, math.nextafter(total, 0))  # a place of no mass is never found
    place = int(np.searchsorted(cumulated, target, side="right"))
    return place, target - (float(cumulated[place - 1]) if place else 0.0)


def nucleus(
    row: NDArray[np.float32], peak: float, top_p: float, total: float
) -> tuple[NDArray[np.float64], NDArray[np.int64], float]:
    """Give candidates that surely hold the smallest set of mass `top_p`, and the mass of the row.

    `total` is the row's mass relative to `peak`. Some logits, evenly spaced, say where the cut may be; that
    the candidates above it weigh enough is checked, and if they do not the whole row is taken.
    """
    probes = np.sort(row[:: max(1, len(row) // _N_PROBES)])
    below = np.cumsum(np.exp(probes.astype(np.float64) - peak)) * (len(row) / len(probes))
    at = int(np.searchsorted(below, (1 - top_p) * 0.75 * total, side="right"))
    values, ids = at_least(row, float(probes[min(at, len(probes) - 1)]))
    cumulated = np.cumsum(np.exp(values - peak))
    if len(ids) and cumulated[-1] > top_p * total * (1 + 1e-6):
        n = int(np.searchsorted(cumulated, top_p * total)) + 1
        return values[:n], ids[:n], total
    values, ids = at_least(row, LOWEST)
    return values, ids, math.nan


def typical_set(row: NDArray[np.float32], peak: float, typical_p: float) -> NDArray[np.int64]:
    """Give the smallest set of mass above `typical_p` whose surprise is nearest to the row's entropy.

    Source: locally typical sampling, Meister et al., TACL '23; the cut is llama.cpp's. Ids in no order.
    """
    ids = np.flatnonzero(row >= LOWEST)
    logits = row[ids].astype(np.float64) - peak
    logp = logits - math.log(float(np.add.reduce(np.exp(logits))))
    p = np.exp(logp)
    distance = np.abs(-logp + np.add.reduce(p * logp))
    probes = slice(None, None, max(1, len(ids) // _N_PROBES))
    order = np.argsort(distance[probes])
    inside = np.cumsum(p[probes][order])
    at = int(np.searchsorted(inside, (1 + 3 * typical_p) / 4 * inside[-1]))
    near = np.flatnonzero(distance <= distance[probes][order[min(at, len(order) - 1)]])
    if float(np.add.reduce(p[near])) <= typical_p + 1e-9:
        near = np.arange(len(ids))
    order = near[np.argsort(distance[near])]
    n = min(int(np.searchsorted(np.cumsum(p[order]), typical_p, side="right")) + 1, len(order))
    # The sort is not stable: of those exactly as far as the last one, the lower ids are taken.
    last = distance[order[n - 1]]
    nearer, equal = np.flatnonzero(distance < last), np.flatnonzero(distance == last)
    chosen: NDArray[np.int64] = ids[np.concatenate((nearer, equal[: n - len(nearer)]))]
    return chosen


Candidates = tuple["NDArray[np.float64]", "NDArray[np.int64]", float]
"""Logits, falling; their ids; what `weigh` calls the mass, NaN when the candidates are all there is."""


def open_candidates(
    row: NDArray[np.float32], sampler: RowSampler, peak: float, scratch: NDArray[np.float32]
) -> Candidates:
    """Give the candidates of a row whose parameters do not bound their number by a small top_k.

    Never fewer than the chain keeps. `peak` is the row's largest logit, finite.
    """
    chain, typical_p = sampler.chain, sampler.params.typical_p
    if math.isfinite(chain.top_k):
        top_k = int(chain.top_k)
        values, ids = at_least(row, float(np.partition(row, len(row) - top_k)[len(row) - top_k]))
        return values[:top_k], ids[:top_k], math.nan
    if typical_p < 1:
        typical = np.sort(typical_set(row, peak, typical_p))
        values, places = at_least(row[typical], LOWEST)
        return values, typical[places], math.nan
    total = math.nan
    if chain.top_p < 1:
        total = float(np.cumsum(masses(row, peak, 1, scratch))[-1])
    if chain.min_p > 0:
        values, ids = at_least(row, peak + math.log(chain.min_p))
        return values, ids, total
    return nucleus(row, peak, chain.top_p, total)


def stack(
    candidates: Sequence[Candidates], width: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Lay candidates of several rows into matrices (rows, width), padded with -inf."""
    values = np.full((len(candidates), width), -np.inf)
    ids = np.zeros((len(candidates), width), np.int64)
    for at, (row_values, row_ids, _) in enumerate(candidates):
        values[at, : len(row_values)] = row_values
        ids[at, : len(row_ids)] = row_ids
    return values, ids, np.array([mass for _, _, mass in candidates])
