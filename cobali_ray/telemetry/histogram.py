"""Counts per bucket: cheap to add to, cheap to copy, exact to read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt
from prometheus_client.samples import Exemplar


@dataclass(frozen=True, slots=True)
class HistogramView:
    """A copy of a histogram at one moment.

    `counts` has one entry per bound and a last one for everything above; entry i counts values in
    (bounds[i-1], bounds[i]].
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    exemplars: Mapping[int, Exemplar] = field(default_factory=dict)
    """The last value of each bucket that came with labels, by the bucket's place in `counts`."""

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Return counts of values <= each bound, then the count of all."""
        return list(accumulate(self.counts))

    def resampled(self, bounds: Sequence[float]) -> HistogramView:
        """Merge buckets down to `bounds`, each of which must be one of ours (ValueError otherwise)."""
        counts, start = [], 0
        for bound in bounds:
            stop = self.bounds.index(bound) + 1
            counts.append(sum(self.counts[start:stop]))
            start = stop
        return HistogramView(tuple(bounds), (*counts, sum(self.counts[start:])), self.sum)


class Histogram:
    """Counts per bucket and the sum of all values. `bounds` are inclusive upper bounds, rising."""

    __slots__ = ("_bounds", "_counts", "_edges", "_exemplars", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._edges = tuple(bounds), np.array(bounds, dtype=np.float64)
        self._counts, self._sum = [0] * (len(bounds) + 1), 0.0
        self._exemplars: dict[int, Exemplar] = {}

    def observe(self, value: float, labels: dict[str, str] | None = None) -> None:
        """Count a value; with `labels` it is its bucket's exemplar, until another comes."""
        place = bisect_left(self._bounds, value)
        self._counts[place] += 1
        self._sum += value
        if labels:
            self._exemplars[place] = Exemplar(labels, value)

    def observe_many(self, values: Sequence[float] | npt.NDArray[np.float64]) -> None:
        array = np.asarray(values, dtype=np.float64)
        for place, n in enumerate(np.bincount(self._edges.searchsorted(array)).tolist()):
            if n:
                self._counts[place] += n
        self._sum += float(array.sum())

    def view(self) -> HistogramView:
        return HistogramView(self._bounds, tuple(self._counts), self._sum, dict(self._exemplars))
