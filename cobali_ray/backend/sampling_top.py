"""The likeliest tokens of each row to token ids: what `sample_rows` does, without whole rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend.candidates import sort_candidates
from cobali_ray.backend.row_sampler import RowSampler, SamplingPath, draw_tokens
from cobali_ray.backend.sampling import SampleResult, take_token, why_failed
from cobali_ray.errors import InvariantError


def sample_candidates(
    values: NDArray[np.float32], ids: NDArray[np.int32], rows: Sequence[RowSampler]
) -> SampleResult:
    """Draw one token per row and update each row's sampler once, token for token as `sample_rows` would.

    `values` and `ids` are (rows, n): the logits of the n likeliest tokens of each row, in any order, and
    which tokens they are; both are changed in place. n tokens must suffice for each of the rows.

    What n tokens cannot tell: which of several equal logits the device left out at the n-th place. It matters
    only if the last token that a request keeps and all behind it are equal. And a NaN is found only among
    the n tokens; a model that breaks breaks the whole row.
    """
    if values.shape != ids.shape or len(values) != len(rows):
        raise InvariantError(f"candidates {values.shape}, ids {ids.shape} for {len(rows)} rows")
    if not all(row.suffices(values.shape[1]) for row in rows):
        raise InvariantError(f"{values.shape[1]} candidates do not suffice for every row")
    sampled = SampleResult([-1] * len(rows))
    if not rows:
        return sampled
    greedy: list[int] = []
    top: dict[int, list[int]] = {}
    with np.errstate(all="ignore"):
        for i, row in enumerate(rows):
            if (forced := row.forced()) is not None:
                sampled.tokens[i] = forced
            elif not row.untouched:
                row.patch_candidates(values[i], ids[i])
        peaks = values.max(axis=1)  # NaN, if there is one
        sound = np.isfinite(peaks).tolist()
        for i, row in enumerate(rows):
            if sampled.tokens[i] >= 0:
                continue
            if not sound[i]:
                sampled.failed[i] = why_failed(float(peaks[i]))
            elif row.route is SamplingPath.GREEDY:
                greedy.append(i)
            else:
                top.setdefault(row.width, []).append(i)
        if greedy:
            _take_likeliest(values, ids, peaks, greedy, sampled.tokens)
        for width, picks in top.items():
            _draw_top(values[picks], ids[picks], picks, [rows[i] for i in picks], width, sampled.tokens)
    for i, (row, token) in enumerate(zip(rows, sampled.tokens, strict=True)):
        if token >= 0:
            take_token(sampled, i, row, token)
    return sampled


def _take_likeliest(
    values: NDArray[np.float32],
    ids: NDArray[np.int32],
    peaks: NDArray[np.float32],
    picks: list[int],
    tokens: list[int],
) -> None:
    if len(picks) < len(peaks):
        values, ids, peaks = values[picks], ids[picks], peaks[picks]
    best = np.where(values == peaks[:, None], ids, np.iinfo(np.int32).max).min(axis=1)
    for i, token in zip(picks, best.tolist(), strict=True):
        tokens[i] = token


def _draw_top(
    values: NDArray[np.float32],
    ids: NDArray[np.int32],
    picks: list[int],
    samplers: list[RowSampler],
    width: int,
    tokens: list[int],
) -> None:
    n = min(width, values.shape[1])
    sorted_values, sorted_ids = sort_candidates(values, ids)
    wide = np.full((len(picks), width), -np.inf)
    wide[:, :n] = sorted_values[:, :n]
    wide_ids = np.zeros((len(picks), width), np.int64)
    wide_ids[:, :n] = sorted_ids[:, :n]
    drawn = draw_tokens(wide, wide_ids, np.full(len(picks), math.nan), samplers)
    for i, token in zip(picks, drawn, strict=True):
        tokens[i] = token
