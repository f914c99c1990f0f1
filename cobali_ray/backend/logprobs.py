"""Log-probabilities of the row as the model gave it: before bias, penalties, truncation and temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cobali_ray.backend.candidates import top_candidates, widen
from cobali_ray.backend.whole_row import masses

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What a client learns about one drawn token; natural logarithms."""

    logprob: float
    """Of the drawn token."""
    top: tuple[tuple[int, float], ...]
    """The k likeliest (id, logprob), likeliest first, ties by lower id, none of probability 0."""


@dataclass(frozen=True, slots=True)
class RawRow:
    """What must be known of a row before it is changed in place."""

    log_total: float
    """Logarithm of the sum of exp(logit) over the row; NaN where the row holds NaN, +inf or only -inf."""
    top: tuple[tuple[int, float], ...]


def measure_rows(
    logits: NDArray[np.float32], asked: Sequence[tuple[int, int]], scratch: NDArray[np.float32]
) -> dict[int, RawRow]:
    """Measure the rows that asked, given as (row number, k), ascending; by row number."""
    log_totals: dict[int, float] = {}
    widths: dict[int, list[tuple[int, int]]] = {}
    for i, k in asked:
        peak = float(logits[i].max())
        log_totals[i] = math.nan
        if math.isfinite(peak):
            log_totals[i] = peak + math.log(float(masses(logits[i], peak, 1, scratch).sum()))
            if k:
                widths.setdefault(widen(k), []).append((i, k))
    tops: dict[int, tuple[tuple[int, float], ...]] = {}
    for width, members in widths.items():
        values, ids, _ = top_candidates(logits, [i for i, _ in members], width)
        for (i, k), row_ids, row_values in zip(members, ids.tolist(), values.tolist(), strict=True):
            pairs = zip(row_ids[:k], row_values[:k], strict=True)
            tops[i] = tuple((t, v - log_totals[i]) for t, v in pairs if v > -math.inf)
    return {i: RawRow(log_total, tops.get(i, ())) for i, log_total in log_totals.items()}
