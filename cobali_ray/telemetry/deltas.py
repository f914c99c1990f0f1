"""What is new between two snapshots, for meters that count for themselves."""

from __future__ import annotations

from cobali_ray.telemetry.histogram import HistogramView


def new_values(before: HistogramView | None, now: HistogramView, *, n_most: int) -> list[float]:
    """Return a value in the middle of its bucket for each that came since `before`; None is an empty one.

    Above the last bound there is no middle: those count as twice the bound. Of more than `n_most` values,
    every second (third, ...) one, so that percentiles stay what they are.
    """
    counts = before.counts if before else (0,) * len(now.counts)
    edges = (0.0, *now.bounds, now.bounds[-1] * 3)
    values = [
        (edges[i] + edges[i + 1]) / 2
        for i, (n, m) in enumerate(zip(now.counts, counts, strict=True))
        for _ in range(n - m)
    ]
    return values[:: -(-len(values) // n_most) or 1]
