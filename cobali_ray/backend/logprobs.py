"""Log-probabilities of the row as the model gave it: before bias, penalties, truncation and temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend.candidates import top_candidates, widen
from cobali_ray.backend.whole_row import masses, n_scratch

SCORED_BYTES = 64 << 20
"""Most that the logits of one pass may take which are for logprobs of prompts. llama.cpp makes room for them
twice, on the device when a model is opened and beside it at their first use, so it must be small beside a
model; yet chunks should not be so short that each reads all weights for few tokens."""
MAX_SCORED = 256
"""Rows where that would allow more. What a tick reports of a prompt is read by an ingress at once: 256 tokens
with 20 alternatives each take it some 5 ms."""


def n_scored_rows(n_vocab: int) -> int:
    """Return how many rows of a vocabulary one pass may compute for logprobs of prompts."""
    return max(2, min(MAX_SCORED, SCORED_BYTES // (4 * n_vocab)))


class PromptRows(NamedTuple):
    """Rows of a pass that follow each other, behind each of which the next token is known."""

    first: int
    """The number of the first one."""
    tokens: Sequence[int]
    """What follows each."""
    n_top: int
    """How many of the likeliest are reported."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What a client learns about one token; natural logarithms."""

    logprob: float
    """Of the token itself."""
    top: tuple[tuple[int, float], ...]
    """The k likeliest (id, logprob), likeliest first, ties by lower id, none of probability 0."""
    rank: int | None = None
    """How many tokens are as likely or likelier; None where they were not counted."""


@dataclass(frozen=True, slots=True)
class RawRow:
    """What must be known of a row before it is changed in place."""

    log_total: float
    """Logarithm of the sum of exp(logit) over the row; NaN where the row holds NaN, +inf or only -inf."""
    top: tuple[tuple[int, float], ...]


def measure_rows(
    logits: NDArray[np.float32], rows: Sequence[tuple[int, int]], scratch: NDArray[np.float32]
) -> dict[int, RawRow]:
    """Measure these rows, given as (row number, k), ascending; by row number."""
    log_totals: dict[int, float] = {}
    widths: dict[int, list[tuple[int, int]]] = {}
    for i, k in rows:
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


def score_rows(
    logits: NDArray[np.float32], prompts: Sequence[PromptRows]
) -> list[list[TokenLogprobs] | None]:
    """Return how likely the tokens of prompts are, by the very sums that drawn tokens have.

    None for a prompt with a row that holds NaN, +inf or only -inf. The logits are not written to.
    """
    scratch = np.zeros(n_scratch(logits.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        return [_score(logits, prompt, scratch) for prompt in prompts]


def _score(
    logits: NDArray[np.float32], prompt: PromptRows, scratch: NDArray[np.float32]
) -> list[TokenLogprobs] | None:
    first, tokens, k = prompt
    raw = measure_rows(logits, [(first + i, k) for i in range(len(tokens))], scratch)
    scored = []
    for i, token in enumerate(tokens, first):
        log_total, top = raw[i].log_total, raw[i].top
        if math.isnan(log_total):
            return None
        logit = logits[i, token]
        rank = int(np.count_nonzero(logits[i] >= logit))
        scored.append(TokenLogprobs(float(logit) - log_total, top, rank))
    return scored
