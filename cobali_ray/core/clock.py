"""Time comes from a Clock, so that tests own it."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A monotonic clock."""

    def now(self) -> float:
        """Return seconds since an arbitrary, fixed moment."""
        ...
