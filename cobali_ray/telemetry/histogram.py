"""Counts per bucket in numpy: cheap to add to, cheap to copy, exact to read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class HistogramView:
    """A copy of a histogram at one moment.

    `counts` has one entry per bound and a last one for everything above; entry i counts values in
    (bounds[i-1], bounds[i]].
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Arithmetic mean; None without values."""
        return self.sum / self.count if self.count else None

    def cumulative(self) -> list[int]:
        """Return counts of values <= each bound, then the count of all."""
        total, out = 0, []
        for n in self.counts:
            total += n
            out.append(total)
        return out

    def quantile(self, q: float) -> float | None:
        """Estimate the q-quantile, 0 < q <= 1; None without values.

        Linear inside the bucket, and the last finite bound for anything above it: what PromQL's
        histogram_quantile does, so that logs and dashboards agree.
        """
        rank, below, low = q * self.count, 0, 0.0
        if not self.count:
            return None
        for bound, n in zip(self.bounds, self.counts, strict=False):
            if n and below + n >= rank:
                return low + (bound - low) * (rank - below) / n
            below += n
            low = bound
        return self.bounds[-1]

    def resampled(self, bounds: Sequence[float]) -> HistogramView:
        """Merge buckets down to `bounds`, each of which must be one of ours (ValueError otherwise)."""
        counts, start = [], 0
        for bound in bounds:
            stop = self.bounds.index(bound) + 1
            counts.append(sum(self.counts[start:stop]))
            start = stop
        return HistogramView(tuple(bounds), (*counts, sum(self.counts[start:])), self.sum)


class Histogram:
    """Bucket counters and their sum in one float64 array, so that one copy holds both.

    `bounds` are inclusive upper bounds, rising. Counts stay exact up to 2**53.
    """

    __slots__ = ("_bounds", "_cells", "_edges")

    def __init__(self, bounds: Sequence[float]) -> None:
        if not bounds or any(a >= b for a, b in pairwise(bounds)):
            raise ValueError(f"bucket bounds must rise, got {bounds}")
        self._bounds = tuple(bounds)
        self._edges = np.array(bounds, dtype=np.float64)
        self._cells = np.zeros(len(bounds) + 2)  # one per bound, the rest, the sum

    def observe(self, value: float) -> None:
        """Count one value."""
        self._cells[bisect_left(self._bounds, value)] += 1
        self._cells[-1] += value

    def observe_many(self, values: Sequence[float] | npt.NDArray[np.float64]) -> None:
        """Count many values at once."""
        array = np.asarray(values, dtype=np.float64)
        added = np.bincount(self._edges.searchsorted(array), minlength=len(self._cells)).astype(np.float64)
        added[-1] = array.sum()
        self._cells += added

    def view(self) -> HistogramView:
        """Return a copy."""
        cells = self._cells.tolist()
        return HistogramView(self._bounds, tuple(int(n) for n in cells[:-1]), cells[-1])
