"""How long a tick takes, learned from the ticks that were.

    t = c0 + c1 * n_decode + c2 * context + entry + c3 * chunk + c4 * chunk * depth

The first three terms are a decode tick's, fitted on ticks without prefill; the rest is what prefill adds,
fitted on what those leave over. `entry` has two values: for prefill beside decode tokens (on split KV a
second micro-batch) and for a tick of its own. Two small fits instead of one, because long stretches of
pure decode say nothing about prefill and would let a common fit drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

FORGET = 0.99
"""Weight of a tick relative to the next one: a memory of about 100 ticks."""
_OUTLIER = 4.0
_N_TRUST = 12
_MOST_VARIANCE = 1e4
_CONTEXT_SCALE, _CHUNK_SCALE, _DEPTH_SCALE, _DECODE_SCALE = 1 / 8192, 1 / 256, 1 / 4096, 1 / 16


class Shape(NamedTuple):
    """What a tick computes."""

    n_decode: int
    context: int
    """Tokens cached before the decode tokens, over all decoding slots."""
    chunks: tuple[tuple[int, int], ...]
    """(start, length) of each prefill span."""
    n_skipped: int = 0
    """Decoding slots that are not in the tick."""


class LeastSquares:
    """Recursive least squares with forgetting; weights stay at least 0, outliers are cut.

    Source: Ljung, System Identification, chapter 11. Residuals beyond four mean absolute residuals count
    as four: another process's burst must not rewrite the model.
    """

    __slots__ = ("_p", "_spread", "n_seen", "weights")

    def __init__(self, n: int) -> None:
        self.weights = [0.0] * n
        self.n_seen = 0
        self._spread = 0.0
        self._p = [[_MOST_VARIANCE * (i == j) for j in range(n)] for i in range(n)]

    def predict(self, x: Sequence[float]) -> float:
        """Return the fitted value."""
        return sum([w * v for w, v in zip(self.weights, x, strict=True)])

    def learn(self, x: Sequence[float], y: float) -> None:
        """Take one observation."""
        p = self._p
        px = [sum([a * b for a, b in zip(row, x, strict=True)]) for row in p]
        denominator = FORGET + sum([a * b for a, b in zip(px, x, strict=True)])
        residual = y - self.predict(x)
        if self.n_seen >= _N_TRUST:
            most = _OUTLIER * self._spread
            clipped = min(max(residual, -most), most)
        else:
            clipped = residual
        weight = 1 / _N_TRUST if self.n_seen < _N_TRUST else 0.02
        # The first residuals are the prior's fault, not noise.
        self._spread += weight * (abs(residual) - self._spread) if self.n_seen > len(x) else 0.0
        self.n_seen += 1
        gain = clipped / denominator
        self.weights = [max(w + gain * v, 0.0) for w, v in zip(self.weights, px, strict=True)]
        for i, row in enumerate(p):
            for j in range(len(row)):
                row[j] = (row[j] - px[i] * px[j] / denominator) / FORGET
        worst = max(row[i] for i, row in enumerate(p))
        if worst > _MOST_VARIANCE:
            shrink = _MOST_VARIANCE / worst
            self._p = [[v * shrink for v in row] for row in p]


class TickTimeModel:
    """Predicts a tick's time from its shape and finds the longest chunk that fits a time. Seconds."""

    def __init__(self) -> None:
        self._decode = LeastSquares(3)
        self._prefill = LeastSquares(4)
        self.longest_seen = 0
        """Most prefill tokens seen in one tick."""

    @property
    def knows_decode(self) -> bool:
        """Whether enough pure decode ticks were seen to trust a prediction."""
        return self._decode.n_seen >= _N_TRUST // 2

    @property
    def knows_prefill(self) -> bool:
        """Whether enough ticks with prefill were seen."""
        return self._prefill.n_seen >= _N_TRUST // 3

    def decode_s(self, n_decode: int, context: int) -> float:
        """Return the time of a tick that only decodes."""
        return self._decode.predict(_decode_row(n_decode, context)) if n_decode else 0.0

    def entry_s(self, *, mixed: bool) -> float:
        """Return what prefill costs before its first token, beside decode tokens or alone."""
        return self._prefill.weights[0 if mixed else 1]

    def chunk_s(self, start: int, length: int) -> float:
        """Return what computing `length` prompt tokens from position `start` adds."""
        _, _, per_token, per_depth = self._prefill.weights
        depth = start + length / 2
        return length * (per_token * _CHUNK_SCALE + per_depth * _CHUNK_SCALE * _DEPTH_SCALE * depth)

    def longest_chunk(self, start: int, seconds: float) -> int:
        """Return the largest chunk from `start` that takes at most `seconds`; solves `chunk_s`."""
        if seconds <= 0:
            return 0
        _, _, per_token, per_depth = self._prefill.weights
        a = per_depth * _CHUNK_SCALE * _DEPTH_SCALE / 2
        b = per_token * _CHUNK_SCALE + 2 * a * start
        if a <= 0:
            return int(min(seconds / b, 1e9)) if b > 0 else 1 << 30
        return int((sqrt(b * b + 4 * a * seconds) - b) / (2 * a))

    def predict(self, shape: Shape) -> float:
        """Return the time of a tick; 0 while nothing is known."""
        seconds = self.decode_s(shape.n_decode, shape.context)
        if shape.chunks:
            seconds += self.entry_s(mixed=shape.n_decode > 0)
            seconds += sum([self.chunk_s(start, length) for start, length in shape.chunks])
        return seconds

    def learn(self, shape: Shape, seconds: float) -> None:
        """Take one finished tick."""
        if not shape.chunks:
            self._decode.learn(_decode_row(shape.n_decode, shape.context), seconds)
            return
        if shape.n_decode and not self.knows_decode:
            return
        n_chunk = sum([length for _, length in shape.chunks])
        depth = sum([length * (start + length / 2) for start, length in shape.chunks])
        mixed = float(shape.n_decode > 0)
        row = (mixed, 1.0 - mixed, n_chunk * _CHUNK_SCALE, depth * _CHUNK_SCALE * _DEPTH_SCALE)
        self._prefill.learn(row, seconds - self.decode_s(shape.n_decode, shape.context))
        self.longest_seen = max(self.longest_seen, n_chunk)


def _decode_row(n_decode: int, context: int) -> tuple[float, float, float]:
    return (1.0, n_decode * _DECODE_SCALE, context * _CONTEXT_SCALE)
