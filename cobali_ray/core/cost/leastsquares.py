"""Least squares over a fading past: what embedding passes take is learned with it."""

from __future__ import annotations

from collections.abc import Sequence

FORGET = 0.99
"""Weight of an observation relative to the next one: a memory of about 100."""
_OUTLIER = 4.0
_N_TRUST = 12
_SPREAD_STEP = 0.02
_PULL = 1e-3


class LeastSquares:
    """Least squares over a fading past, with weights of at least 0.

    Kept as decayed normal equations and solved at each observation with a pull towards the last weights,
    so that directions in which nothing varies stay where they are instead of drifting (Ljung, System
    Identification, chapter 11, on regularised forgetting). Residuals beyond four mean absolute residuals
    count as four: another process's burst must not rewrite the model.
    """

    __slots__ = ("_left", "_right", "_spread", "n_seen", "weights")

    def __init__(self, n: int) -> None:
        self.weights = [0.0] * n
        self.n_seen = 0
        self._spread = 0.0
        self._left = [[0.0] * n for _ in range(n)]
        self._right = [0.0] * n

    def predict(self, x: Sequence[float]) -> float:
        return sum([w * v for w, v in zip(self.weights, x, strict=True)])

    def learn(self, x: Sequence[float], y: float) -> None:
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
                row[j] = FORGET * row[j] + v * u
            self._right[i] = FORGET * self._right[i] + v * y
        self._fit()

    def _fit(self) -> None:
        """Solve for weights of at least 0: those that would be negative are 0, and the others fitted without.

        Cutting them off after one common solution would leave the others wrong, and since each solution is
        pulled towards the last one, the error would grow with every observation.
        """
        n = len(self.weights)
        rows = [
            [
                *(self._left[i][j] + _PULL * (i == j) for j in range(n)),
                self._right[i] + _PULL * self.weights[i],
            ]
            for i in range(n)
        ]
        self.weights = nonnegative(rows)


def nonnegative(rows: Sequence[Sequence[float]]) -> list[float]:
    """Solve normal equations, given as rows with the right side appended, for values of at least 0.

    Those that would be negative are 0, and the others solved without.
    """
    free = list(range(len(rows)))
    while True:
        solution = _solve([[*(rows[i][j] for j in free), rows[i][-1]] for i in free])
        kept = [i for i, value in zip(free, solution, strict=True) if value > 0]
        if len(kept) == len(free):
            break
        free = kept
    values = [0.0] * len(rows)
    for i, value in zip(free, solution, strict=True):
        values[i] = value
    return values


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
