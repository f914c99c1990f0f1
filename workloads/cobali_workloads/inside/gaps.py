"""How long the device waits between two pieces of work: spans in, gaps and their statistics out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from cobali_ray.core.views.stats import TickStats


class Busy(NamedTuple):
    """A span of time in which the device works, in seconds on one clock."""

    start_s: float
    end_s: float
    after_idle: bool = False
    """Nothing was waiting to be computed before it, so that the gap before it is nobody's fault."""


class Gap(NamedTuple):
    """From the end of one span to the start of the next."""

    start_s: float
    length_s: float


def gaps_of(spans: Iterable[Busy]) -> list[Gap]:
    """Return the gaps between spans in time order; spans that overlap or touch leave none.

    A span that begins while an earlier one still runs closes no gap (kernels on several streams).
    """
    found: list[Gap] = []
    end_s: float | None = None
    for span in sorted(spans):
        if end_s is not None and span.start_s > end_s and not span.after_idle:
            found.append(Gap(end_s, span.start_s - end_s))
        end_s = span.end_s if end_s is None else max(end_s, span.end_s)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GapStats:
    """Gaps in numbers, seconds."""

    n: int
    mean_s: float
    median_s: float
    p75_s: float
    p90_s: float
    p95_s: float
    max_s: float
    busy_share: float
    """Share of the time between first start and last end in which the device works; idle waits left out."""

    @classmethod
    def of(cls, spans: Sequence[Busy]) -> GapStats | None:
        """Describe the gaps between spans, percentiles interpolated; None where there are none."""
        gaps = [gap.length_s for gap in gaps_of(spans)]
        if not gaps:
            return None
        busy_s = sum(end - start for start, end in _merged(spans))
        median, p75, p90, p95 = (float(v) for v in np.quantile(gaps, (0.5, 0.75, 0.9, 0.95)))
        return cls(
            n=len(gaps),
            mean_s=float(np.mean(gaps)),
            median_s=median,
            p75_s=p75,
            p90_s=p90,
            p95_s=p95,
            max_s=max(gaps),
            busy_share=busy_s / (busy_s + sum(gaps)),
        )


def _merged(spans: Sequence[Busy]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end, _ in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def passes_of(ticks: Iterable[TickStats | Mapping[str, Any]]) -> list[Busy]:
    """Return the forward passes of ticks, given as records or as lines of the tick log.

    A pass begins when planning ends and lasts `forward_s`. After a tick that left no request behind, the
    engine waited for work; after a tick id that does not follow, ticks are missing from the log: both
    gaps are nobody's.
    """
    spans: list[Busy] = []
    expected, left = None, 0
    for tick in ticks:
        get = tick.__getitem__ if isinstance(tick, Mapping) else tick.__getattribute__
        start_s = get("started_s") + get("plan_s")
        follows = get("tick_id") == expected and left > 0
        spans.append(Busy(start_s, start_s + get("forward_s"), after_idle=not follows))
        expected = get("tick_id") + 1
        left = get("n_prefilling") + get("n_generating") + get("n_queued")
    return spans


def sampled(gaps: Sequence[Gap], n_most: int) -> list[Gap]:
    """Thin a timeline to at most `n_most` gaps: the longest of each equal part, so that no spike is lost."""
    if len(gaps) <= n_most:
        return list(gaps)
    parts = groupby(enumerate(gaps), key=lambda item: item[0] * n_most // len(gaps))
    return [max((gap for _, gap in part), key=lambda gap: gap.length_s) for _, part in parts]


def window(spans: Sequence[Busy], n_spans: int) -> list[Busy]:
    """Return `n_spans` neighbouring spans from the middle, times counted from the first of them."""
    ordered = sorted(spans)
    at = max(0, (len(ordered) - n_spans) // 2)
    chosen = ordered[at : at + n_spans]
    zero = chosen[0].start_s if chosen else 0.0
    return [Busy(s - zero, e - zero, idle) for s, e, idle in chosen]
