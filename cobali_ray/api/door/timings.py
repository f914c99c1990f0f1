"""What a client waits for, of each choice and of a whole call, in seconds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple


class Pace:
    """The times of one choice, in seconds from the arrival of the HTTP request."""

    __slots__ = ("_gaps_s", "_last_s", "e2e_s", "progress", "ttft_s")

    def __init__(self, progress: Sequence[str] = ()) -> None:
        self.progress: dict[str, dict[str, Any] | None] = dict.fromkeys(progress)
        """What its client asked to know of the time before, by name; None for what there was not."""
        self.ttft_s: float | None = None
        """To its first text; None before."""
        self.e2e_s: float | None = None
        """To its end; None before."""
        self._last_s = 0.0
        self._gaps_s = array("d")

    def speak(self, now_s: float) -> None:
        if self.ttft_s is None:
            self.ttft_s = now_s
        else:
            self._gaps_s.append(now_s - self._last_s)
        self._last_s = now_s

    def end(self, now_s: float, *, spoke: bool) -> None:
        """Note its end; `spoke` even if none of its tokens had text."""
        self.e2e_s = now_s
        if spoke and self.ttft_s is None:
            self.ttft_s = now_s

    def itl(self) -> dict[str, float | None]:
        """Return the median, the 99th percentile and the longest of its gaps; None where there is none."""
        gaps = sorted(self._gaps_s)
        shares = {"itl_p50_s": 0.5, "itl_p99_s": 0.99, "itl_max_s": 1.0}
        return {name: gaps[ceil(share * len(gaps)) - 1] if gaps else None for name, share in shares.items()}


class Timings(NamedTuple):
    """What the client waits for, in seconds from the arrival of its HTTP request."""

    ttft_s: float | None
    """To the first text: ready to be sent, or here for an answer in one piece; None before."""
    e2e_s: float
    """To now, or to the end of the answer."""
    paces: Sequence[Pace] = ()
    """One per choice; none where no text is generated."""
