"""Normal equations of least squares, solved for values of at least 0."""

from __future__ import annotations

from collections.abc import Sequence


def nonnegative(rows: Sequence[Sequence[float]]) -> list[float]:
    """Solve normal equations, given as rows with the right side appended, for values of at least 0.

    Those that would be negative are 0, and the others solved without: cutting them off after one common
    solution would leave the others wrong.
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
