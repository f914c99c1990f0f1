"""Pauses: the time between ticks, which is idle time or a gap between two forward passes."""

from __future__ import annotations

from cobali_ray.core.views.stats import TickStats


class Pauses:
    """Moments are seconds on the engine's clock. Written by one thread."""

    def __init__(self, since_s: float | None) -> None:
        """`since_s`: since when there is nothing to do; None counts no idle time before the first tick."""
        self._idle_s = 0.0
        self._idle_since = since_s
        self._forward_end: float | None = None
        self._tick_end: float | None = None

    def add(self, stats: TickStats, *, out_of_work: bool) -> float | None:
        """Take a tick, after which there may be no more work. Returns the gap between passes before it."""
        forward_start, gap = stats.started_s + stats.plan_s, None
        if self._idle_since is not None:
            self._idle_s += max(0.0, stats.started_s - self._idle_since)
        elif self._forward_end is not None:
            gap = max(0.0, forward_start - self._forward_end)
        self._forward_end = forward_start + stats.forward_s
        self._tick_end = stats.started_s + stats.total_s
        self._idle_since = self._tick_end if out_of_work else None
        return gap

    def begin(self) -> None:
        """Note that work ran out after the last tick."""
        if self._idle_since is None:
            self._idle_since = self._tick_end

    def idle_s(self, now_s: float | None) -> float:
        """Return the time without work; without a clock, of pauses that have ended."""
        since_s = self._idle_since
        if now_s is None or since_s is None:
            return self._idle_s
        return self._idle_s + max(0.0, now_s - since_s)

    def age_s(self, now_s: float) -> float:
        """Return the time since the last tick while there is work, 0 otherwise."""
        end_s = self._tick_end
        return 0.0 if end_s is None or self._idle_since is not None else max(0.0, now_s - end_s)
