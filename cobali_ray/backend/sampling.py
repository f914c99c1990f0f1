"""Logits rows to token ids, vectorised over the rows of one tick."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend.candidates import runs, top_candidates, widen
from cobali_ray.backend.logprobs import RawRow, TokenLogprobs, measure_rows
from cobali_ray.backend.patches import Change
from cobali_ray.backend.row_sampler import RowSampler, SamplingPath, draw_tokens
from cobali_ray.backend.whole_row import (
    Candidates,
    draw_whole,
    masses,
    n_scratch,
    open_candidates,
    stack,
)
from cobali_ray.errors import CobaliError, InternalError, InvalidParameterError, InvariantError

if TYPE_CHECKING:
    from cobali_ray.backend.grammar import Matcher

__all__ = ["BROKEN", "RowSampler", "SampleResult", "TokenLogprobs", "sample_rows"]

_MASKED = "no token is left to draw: every logit is -inf"
_NOTHING_FITS = ": with other fields that exclude tokens it leaves none that the grammar or schema allows"
BROKEN = "the model gave a logit that is NaN or +inf"
_EIGHT = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_BOUNDS = np.where(_EIGHT, np.float32(np.inf), np.float32(-np.inf))
"""For each byte of a mask, the least upper bounds of eight logits: none, or -inf."""


@dataclass(slots=True)
class SampleResult:
    """What one call of `sample_rows` drew; rows are named by their number in the tick."""

    tokens: list[int]
    """One per row; -1 where the row failed."""
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """For the rows whose `n_logprobs` is not None."""
    failed: dict[int, CobaliError] = field(default_factory=dict)
    """Rows that have no token to give, and why; their samplers are unchanged."""
    complete: list[int] = field(default_factory=list)
    """Rows whose token completes what their grammar allows."""
    n_each: list[int] | None = None
    """How many tokens each row has, where there were drafts: those of a row come one after another, and the
    others above name tokens by their place there. None: one each."""
    scored: list[list[TokenLogprobs] | None] = field(default_factory=list)
    """How likely the tokens of each prompt with logprobs are; None: its logits are broken."""


def why_failed(peak: float) -> InternalError:
    """Return why a row whose largest logit is not finite gives no token."""
    return InternalError(_MASKED if peak == -math.inf else BROKEN)


def restrict(row: NDArray[np.float32], mask: NDArray[np.uint8]) -> None:
    """Make all logits of a row -inf whose bit in a matcher's mask is 0; a NaN stays one.

    Without a branch per logit: of 152 thousand a masked copy takes 40 to 650 microseconds, this 40.
    """
    bounds = _BOUNDS.take(mask, axis=0, mode="clip")
    np.minimum(row, bounds.reshape(-1)[: len(row)], out=row)


def sample_rows(logits: NDArray[np.float32], rows: Sequence[RowSampler]) -> SampleResult:
    """Draw one token per row and update each row's sampler once.

    `logits` is (rows, n_vocab), float32; it is changed in place and not kept. What is drawn for a row is, bit
    for bit, a matter of that row and its sampler alone, not of the rows beside it. Ties go to the lower id.
    `temperature` 0 takes the likeliest token, whatever the truncations say.

    A row with a grammar is drawn like any other. Only if its grammar refuses the token, all that it refuses
    is taken out of the row and the next random number draws again: without truncations that is exactly the
    model's distribution given that the grammar allows it. A row whose next token is forced is not drawn.
    """
    if logits.ndim != 2 or logits.shape[0] != len(rows) or logits.dtype != np.float32:
        raise InvariantError(f"{logits.dtype} logits of shape {logits.shape} for {len(rows)} rows")
    sampled = SampleResult([-1] * len(rows))
    if not rows:
        return sampled
    with np.errstate(all="ignore"):  # infinities are judged where they matter, not where they arise
        _Draw(logits, rows, sampled).run()
    return sampled


def take_token(sampled: SampleResult, i: int, row: RowSampler, token: int) -> None:
    """Note the token drawn for row `i`, with the row and its grammar."""
    if row.matcher is not None:
        row.matcher.take(token)
        if (problem := row.matcher.problem) is not None:
            sampled.tokens[i], sampled.failed[i] = -1, problem
            return
        if row.matcher.complete:
            sampled.complete.append(i)
    row.take(token)


class _Draw:
    """The rows of one call, on their way to tokens."""

    def __init__(
        self, logits: NDArray[np.float32], rows: Sequence[RowSampler], sampled: SampleResult
    ) -> None:
        self._logits, self._rows, self._sampled = logits, rows, sampled
        self._scratch: NDArray[np.float32] | None = None

    def run(self) -> None:
        rows, logits, tokens = self._rows, self._logits, self._sampled.tokens
        with_logprobs = [(i, k) for i, row in enumerate(rows) if (k := row.params.n_logprobs) is not None]
        raw = measure_rows(logits, with_logprobs, self._scratch_row()) if with_logprobs else {}
        undo = {}
        sound: list[int] = []
        for i, row in enumerate(rows):
            if i in raw and math.isnan(raw[i].log_total):
                self._fail(i, float(logits[i].max()))
                continue
            if (forced := row.forced()) is not None:
                tokens[i] = forced
                continue
            if not row.untouched and (changes := row.patch(logits[i])):
                undo[i] = changes
            sound.append(i)
        self._draw(sound)
        bound = [(i, matcher) for i in sound if tokens[i] >= 0 and (matcher := rows[i].matcher)]
        if refused := [(i, matcher) for i, matcher in bound if not matcher.allows(tokens[i])]:
            self._draw_allowed(refused, undo)
        for i, row_raw in raw.items():
            self._report(i, row_raw, undo.get(i, []))
        for i, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            if token >= 0:
                take_token(self._sampled, i, row, token)

    def _draw(self, picks: list[int]) -> None:
        """Draw a token for each of these rows, by their routes."""
        rows = self._rows
        greedy: list[int] = []
        top: dict[int, list[int]] = {}
        opened: list[int] = []
        for i in picks:
            row = rows[i]
            if row.route is SamplingPath.GREEDY:
                greedy.append(i)
            elif row.route is SamplingPath.TOP:
                top.setdefault(row.width, []).append(i)
            elif row.route is SamplingPath.OPEN:
                opened.append(i)
            else:
                self._draw_whole(i)
        if greedy:
            self._take_likeliest(greedy)
        for width, members in top.items():
            self._draw_top(width, members)
        if opened:
            self._draw_open(opened)

    def _draw_allowed(self, refused: list[tuple[int, Matcher]], undo: dict[int, list[Change]]) -> None:
        """Draw again for rows whose grammar refused their token, from what it allows."""
        tokens, failed = self._sampled.tokens, self._sampled.failed
        sound = []
        for i, matcher in refused:
            tokens[i] = -1
            mask = matcher.mask()
            if (problem := matcher.problem) is not None:
                failed[i] = problem
                continue
            with self._rows[i].cut_anew(self._logits[i], undo.get(i, [])):
                restrict(self._logits[i], mask)
            sound.append((i, matcher))
        self._draw([i for i, _ in sound])
        for i, matcher in sound:
            if str(failed.get(i)) == _MASKED and matcher.may_end:
                # Only an end may follow, and the request has banned it: the answer ends all the same.
                del failed[i]
                tokens[i] = matcher.end_token
            elif str(failed.get(i)) == _MASKED:
                failed[i] = InvalidParameterError("allowed_token_ids", _NOTHING_FITS)

    def _scratch_row(self) -> NDArray[np.float32]:
        if self._scratch is None:
            self._scratch = np.zeros(n_scratch(self._logits.shape[1]), np.float32)
        return self._scratch

    def _fail(self, i: int, peak: float) -> None:
        self._sampled.failed[i] = why_failed(peak)

    def _take_likeliest(self, picks: list[int]) -> None:
        tokens = self._sampled.tokens
        for _, first, last in runs(picks):
            part = self._logits[first:last]
            best = part.argmax(axis=1)  # the first NaN, if there is one
            peaks = part[np.arange(last - first), best]
            tokens[first:last] = best.tolist()
            if not np.isfinite(peaks).all():
                for at in np.flatnonzero(~np.isfinite(peaks)).tolist():
                    tokens[first + at] = -1
                    self._fail(first + at, float(peaks[at]))

    def _draw_whole(self, i: int) -> None:
        row, sampler, scratch = self._logits[i], self._rows[i], self._scratch_row()
        peak = float(row.max())
        if not math.isfinite(peak):
            self._fail(i, peak)
            return
        sums = masses(row, peak, sampler.chain.temperature, scratch)
        self._sampled.tokens[i] = draw_whole(sums, scratch, sampler.uniform())

    def _draw_top(self, width: int, picks: list[int]) -> None:
        values, ids, sound = top_candidates(self._logits, picks, width)
        if not sound.all():
            for at in np.flatnonzero(~sound).tolist():
                self._fail(picks[at], float(self._logits[picks[at]].max()))
            picks = [i for i, good in zip(picks, sound.tolist(), strict=True) if good]
            values, ids = values[sound], ids[sound]
        if picks:
            self._draw_chain(picks, values, ids, np.full(len(picks), np.nan))

    def _draw_open(self, picks: list[int]) -> None:
        widths: dict[int, list[tuple[int, Candidates]]] = {}
        for i in picks:
            peak = float(self._logits[i].max())
            if not math.isfinite(peak):
                self._fail(i, peak)
                continue
            candidates = open_candidates(self._logits[i], self._rows[i], peak, self._scratch_row())
            widths.setdefault(widen(len(candidates[1])), []).append((i, candidates))
        for width, members in widths.items():
            step = max(1, (1 << 16) // width)  # matrices that stay in the cache
            for begin in range(0, len(members), step):
                part = members[begin : begin + step]
                self._draw_chain([i for i, _ in part], *stack([candidates for _, candidates in part], width))

    def _draw_chain(
        self,
        picks: list[int],
        values: NDArray[np.float64],
        ids: NDArray[np.int64],
        mass: NDArray[np.float64],
    ) -> None:
        drawn = draw_tokens(values, ids, mass, [self._rows[i] for i in picks])
        for i, token in zip(picks, drawn, strict=True):
            self._sampled.tokens[i] = token

    def _report(self, i: int, raw: RawRow, changes: list[Change]) -> None:
        """Give row `i` its logprobs; the drawn token's logit is read after the changes are undone."""
        token = self._sampled.tokens[i]
        if token < 0:
            return
        for ids, before in reversed(changes):
            self._logits[i, ids] = before
        logprob = float(self._logits[i, token]) - raw.log_total
        self._sampled.logprobs[i] = TokenLogprobs(logprob, raw.top)
