"""The truncating chain of llama.cpp over a matrix of sorted candidates, and the draw from what it leaves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class ChainParams(NamedTuple):
    """One row's parameters of the chain; a matrix of them has one column per field."""

    top_k: float
    typical_p: float
    top_p: float
    min_p: float
    temperature: float


def weigh(
    values: NDArray[np.float64], params: NDArray[np.float64], mass: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Give each candidate's weight, 0 for those the chain drops; a row's largest weight is 1.

    `values` is (rows, width): logits, falling, -inf where there is no candidate, the first one finite.
    `params` is (rows, 5), a `ChainParams` each. `mass` is (rows,): what exp(logit - first logit) sums to over
    the whole row, where the candidates are not all of it, else NaN. Every truncation works on the softmax at
    temperature 1 of what the one before left, and leaves at least one candidate. Sums are cumulative sums
    along the row, so that padding and neighbours cannot change a bit of them.
    """
    top_k, typical_p, top_p, min_p, temperature = (params[:, i : i + 1] for i in range(5))
    keep = (values > -np.inf) & (np.arange(values.shape[1]) < top_k)
    cuts_typical, cuts_top_p = bool((typical_p < 1).any()), bool((top_p < 1).any())
    if cuts_typical or cuts_top_p:
        e = np.exp(values - values[:, :1])
    if cuts_typical:
        keep &= _typical(values - values[:, :1], np.where(keep, e, 0), typical_p) | (typical_p >= 1)
    if cuts_top_p:
        cumulated = np.cumsum(np.where(keep, e, 0), axis=1)
        total = np.where(np.isnan(mass), cumulated[:, -1], mass)[:, None]
        keep[:, 1:] &= (cumulated[:, :-1] < top_p * total) | (top_p >= 1)
    first = np.take_along_axis(values, keep.argmax(axis=1)[:, None], axis=1)  # the first one kept
    if (min_p > 0).any():
        keep &= values >= first + np.log(min_p)
    weights: NDArray[np.float64] = np.where(keep, np.exp((values - first) / temperature), 0)
    return weights


def _typical(
    logits: NDArray[np.float64], e: NDArray[np.float64], typical_p: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Mark the candidates of `typical_set`, for every row at once; `e` is 0 for those already dropped."""
    alive = e > 0
    total = np.cumsum(e, axis=1)[:, -1:]
    logp = np.where(alive, logits - np.log(total), 0)
    p = e / total
    entropy = -np.cumsum(p * logp, axis=1)[:, -1:]
    distance = np.where(alive, np.abs(-logp - entropy), np.inf)
    order = np.argsort(distance, axis=1, kind="stable")
    cumulated = np.cumsum(np.take_along_axis(p, order, axis=1), axis=1)
    kept = np.ones_like(alive)
    kept[:, 1:] = cumulated[:, :-1] <= typical_p
    marked = np.empty_like(alive)
    np.put_along_axis(marked, order, kept, axis=1)
    return marked


def draw(weights: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
    """Invert each row's cumulated weights at its uniform number in [0, 1): the place drawn, per row."""
    cumulated = np.cumsum(weights, axis=1)
    total = cumulated[:, -1]
    target = np.minimum(uniforms * total, np.nextafter(total, 0))  # a candidate of weight 0 is never drawn
    places: NDArray[np.int64] = (cumulated > target[:, None]).argmax(axis=1)
    return places
