"""How long a tick takes, learned from the ticks that were.

    t = c0 + c1 * n_decode + c2 * context + entry + c3 * chunk + c4 * padded chunk * depth

The first three terms are a decode tick's, fitted on ticks without prefill; the rest is what prefill adds,
fitted on what those leave over. `entry` has two values: for prefill beside decode tokens (on split KV a
second micro-batch) and for a tick of its own. Attention may compute in whole tiles, and chunks shorter than
one by another kernel (see `Grain`): padded is what it really computes, and short chunks have a c4 of their
own. Two small fits instead of one, because long stretches of
pure decode say nothing about prefill and would let a common fit drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from cobali_ray.core.limits import Grain

FORGET = 0.99
"""Weight of a tick relative to the next one: a memory of about 100 ticks."""
_OUTLIER = 4.0
_N_TRUST = 12
_SPREAD_STEP = 0.02
_ROW_STEP = 0.1
_PULL = 1e-3
_CONTEXT_SCALE, _CHUNK_SCALE, _DEPTH_SCALE, _DECODE_SCALE = 1 / 8192, 1 / 256, 1 / 4096, 1 / 16


class Shape(NamedTuple):
    """What a tick computes."""

    n_decode: int
    context: int
    """Cells that the decode tokens' attention goes over: those cached before them, or more, see runs.py."""
    chunks: tuple[tuple[int, int], ...]
    """(start, length) of each prefill span."""
    n_scored: int = 0
    """Rows computed for logprobs of prompts."""


class LeastSquares:
    """Least squares over a fading past, with weights of at least 0.

    Kept as decayed normal equations and solved at each observation with a pull towards the last weights,
    so that directions in which nothing varies stay where they are instead of drifting (Ljung, System
    Identification, chapter 11, on regularised forgetting). Residuals beyond four mean absolute residuals
    count as four: another process's burst must not rewrite the model.
    """

    __slots__ = ("_forget", "_left", "_right", "_spread", "n_seen", "weights")

    def __init__(self, n: int, forget: float = FORGET) -> None:
        self.weights = [0.0] * n
        self._forget = forget
        self.n_seen = 0
        self._spread = 0.0
        self._left = [[0.0] * n for _ in range(n)]
        self._right = [0.0] * n

    def predict(self, x: Sequence[float]) -> float:
        """Return the fitted value."""
        return sum([w * v for w, v in zip(self.weights, x, strict=True)])

    def learn(self, x: Sequence[float], y: float) -> None:
        """Take one observation."""
        residual = y - self.predict(x)
        if self.n_seen >= _N_TRUST:
            most = _OUTLIER * self._spread
            self._spread += _SPREAD_STEP * (abs(residual) - self._spread)
            y += min(max(residual, -most), most) - residual
        elif self.n_seen > len(x):  # the first residuals are the prior's fault, not noise
            self._spread += (abs(residual) - self._spread) / (self.n_seen - len(x))
        self.n_seen += 1
        for i, (row, v) in enumerate(zip(self._left, x, strict=True)):
            for j, u in enumerate(x):
                row[j] = self._forget * row[j] + v * u
            self._right[i] = self._forget * self._right[i] + v * y
        self._fit()

    def _fit(self) -> None:
        """Solve for weights of at least 0: those that would be negative are 0, and the others fitted without.

        Cutting them off after one common solution would leave the others wrong, and since each solution is
        pulled towards the last one, the error would grow with every observation.
        """
        free = list(range(len(self.weights)))
        while True:
            rows = [
                [
                    *(self._left[i][j] + _PULL * (i == j) for j in free),
                    self._right[i] + _PULL * self.weights[i],
                ]
                for i in free
            ]
            solution = _solve(rows)
            kept = [i for i, weight in zip(free, solution, strict=True) if weight > 0]
            if len(kept) == len(free):
                break
            free = kept
        weights = [0.0] * len(self.weights)
        for i, weight in zip(free, solution, strict=True):
            weights[i] = weight
        self.weights = weights


def _solve(rows: list[list[float]]) -> list[float]:
    """Solve a symmetric positive definite system given as rows with the right side appended."""
    n = len(rows)
    for i in range(n):
        pivot = rows[i]
        for other in rows[i + 1 :]:
            share = other[i] / pivot[i]
            for j in range(i, n + 1):
                other[j] -= share * pivot[j]
    solution = [0.0] * n
    for i in reversed(range(n)):
        row = rows[i]
        solution[i] = (row[n] - sum([row[j] * solution[j] for j in range(i + 1, n)])) / row[i]
    return solution


class TickTimeModel:
    """Predicts a tick's time from its shape and finds the longest chunk that fits a time. Seconds."""

    def __init__(self, grain: Grain | None = None, forget: float = FORGET) -> None:
        """`forget` 1: every tick counts alike."""
        self._grain = grain or Grain()
        self._decode = LeastSquares(3, forget)
        self._prefill = LeastSquares(5, forget)
        self.longest_seen = 0
        """Most prefill tokens seen in one tick."""
        self.row_s = 0.0
        """What a row for the logprob of a prompt's token adds, as a mean of the last ticks that had some."""

    @property
    def knows_decode(self) -> bool:
        """Whether enough pure decode ticks were seen to trust a prediction."""
        return self._decode.n_seen >= _N_TRUST // 2

    @property
    def knows_prefill(self) -> bool:
        """Whether enough ticks with prefill were seen."""
        return self._prefill.n_seen >= _N_TRUST // 3

    @property
    def weights(self) -> tuple[list[float], list[float]]:
        """What was fitted: of ticks that only decode, and of what prefill adds; to be kept and set again."""
        return self._decode.weights, self._prefill.weights

    @weights.setter
    def weights(self, weights: tuple[list[float], list[float]]) -> None:
        self._decode.weights, self._prefill.weights = weights

    @property
    def token_s(self) -> tuple[float, float]:
        """Seconds per prompt token of a long chunk, and per token and position of its depth."""
        return self._chunk_weights(short=False)

    def decode_s(self, n_decode: int, context: int) -> float:
        """Return the time of a tick that only decodes."""
        return self._decode.predict(_decode_row(n_decode, context)) if n_decode else 0.0

    def runs_s(self, rows: Sequence[int]) -> float:
        """Return the time of decode passes with so many rows each; 0: too little is known."""
        return sum([self.decode_s(n, 0) for n in rows]) if self.knows_decode else 0.0

    def entry_s(self, *, mixed: bool) -> float:
        """Return what prefill costs before its first token, beside decode tokens or alone."""
        return self._prefill.weights[0 if mixed else 1]

    def chunk_s(self, start: int, length: int, *, mixed: bool = False) -> float:
        """Return what computing `length` prompt tokens from position `start` adds."""
        padded = self._grain.padded(length, mixed=mixed)
        per_token, per_depth = self._chunk_weights(short=not padded)
        return length * per_token + (padded or length) * per_depth * (start + length / 2)

    def longest_chunk(self, start: int, seconds: float, *, mixed: bool = False, scored: bool = False) -> int:
        """Return the largest chunk from `start` that takes at most `seconds`; solves `chunk_s`.

        A chunk of whole steps if one fits, else one that is short enough for the other kernel. `scored`: each
        of its tokens has a row.
        """
        if seconds <= 0:
            return 0
        row_s = self.row_s if scored else 0.0
        if whole := self._grain.whole(self._solve(start, seconds, row_s, short=False), mixed=mixed):
            return whole
        most = self._grain.least - 1 + (self._grain.beside if mixed else 0)
        return min(most, self._solve(start, seconds, row_s, short=True))

    def _solve(self, start: int, seconds: float, row_s: float, *, short: bool) -> int:
        per_token, per_depth = self._chunk_weights(short=short)
        a = per_depth / 2
        b = per_token + row_s + per_depth * start
        if a <= 0:
            return int(min(seconds / b, 1e9)) if b > 0 else 1 << 30
        return int((sqrt(b * b + 4 * a * seconds) - b) / (2 * a))

    def _chunk_weights(self, *, short: bool) -> tuple[float, float]:
        """Return seconds per token, and per token and position of its depth."""
        _, _, per_token, whole, own = self._prefill.weights
        per_depth = max(own, whole) if short else whole  # a short chunk is never the cheaper kind
        return per_token * _CHUNK_SCALE, per_depth * _CHUNK_SCALE * _DEPTH_SCALE

    def predict(self, shape: Shape) -> float:
        """Return the time of a tick; 0 while nothing is known."""
        seconds = self.decode_s(shape.n_decode, shape.context)
        if shape.chunks:
            mixed = shape.n_decode > 0
            seconds += self.entry_s(mixed=mixed)
            seconds += sum([self.chunk_s(start, length, mixed=mixed) for start, length in shape.chunks])
            seconds += shape.n_scored * self.row_s
        return seconds

    def learn(self, shape: Shape, seconds: float) -> None:
        """Take one finished tick."""
        if not shape.chunks:
            self._decode.learn(_decode_row(shape.n_decode, shape.context), seconds)
            return
        if shape.n_decode and not self.knows_decode:
            return
        if shape.n_scored and self.knows_prefill:
            row_s = max(self.row_s + (seconds - self.predict(shape)) / shape.n_scored, 0.0)
            self.row_s += _ROW_STEP * (row_s - self.row_s)
            return
        mixed = shape.n_decode > 0
        n_chunk, whole, own = 0, 0.0, 0.0
        for start, length in shape.chunks:
            n_chunk += length
            depth = (start + length / 2) * _CHUNK_SCALE * _DEPTH_SCALE
            if start and self._grain.ragged(length, mixed=mixed):
                return  # its tiles are cut in pieces, which says little about whole ones
            if padded := self._grain.padded(length, mixed=mixed):
                whole += padded * depth
            else:
                own += length * depth
        row = (float(mixed), float(not mixed), n_chunk * _CHUNK_SCALE, whole, own)
        self._prefill.learn(row, seconds - self.decode_s(shape.n_decode, shape.context))
        self.longest_seen = max(self.longest_seen, n_chunk)


def _decode_row(n_decode: int, context: int) -> tuple[float, float, float]:
    return (1.0, n_decode * _DECODE_SCALE, context * _CONTEXT_SCALE)
