"""How long those who wait for a slot will wait, told by how long answers were lately. Pure.

Nobody knows when an answer ends. The lengths of the last ones say how long those under way may still take:
of those that were longer than it is already, one is as likely as another. So the slots are played to their
ends some times over with lengths drawn from these, and a wait is what half of the games stay below.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from heapq import heapify, heapreplace
from statistics import median
from typing import Final, NamedTuple

from cobali_ray.core.request.events import RequestStats

N_ANSWERS: Final = 64
"""The last answers that count."""
MIN_ANSWERS: Final = 4
"""Fewer say nothing."""
N_GAMES: Final = 32


class Stayer(NamedTuple):
    """Who has a slot, as far as it says when that will be free."""

    n_output: int
    n_left: int
    """Most output tokens that are still to come."""
    prefill_s: float = 0.0
    """How long its prompt still takes."""
    sure: bool = False
    """Whether it goes on to its limit: no end token ends it."""


class AnswerLengths:
    """The last answers of an engine: their lengths and their pace."""

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=N_ANSWERS)
        self._token_s: deque[float] = deque(maxlen=N_ANSWERS // 4)
        self._prefill_s: deque[float] = deque(maxlen=N_ANSWERS // 4)
        self._draw = 0

    def note(self, stats: RequestStats) -> None:
        """Take an answer that ended by itself."""
        self._lengths.append(stats.n_output)
        if stats.tpot_s is not None:
            self._token_s.append(stats.tpot_s)
        if stats.prefill_s is not None:
            self._prefill_s.append(stats.prefill_s)

    def waits_s(self, stayers: Iterable[Stayer], n_waiting: int) -> list[float] | None:
        """Return how long each of those who wait will, in their order; None: too little is known."""
        stayers = list(stayers)
        if len(self._lengths) < MIN_ANSWERS or not self._token_s or not stayers:
            return None
        lengths, token_s = sorted(self._lengths), median(self._token_s)
        prefill_s = median(self._prefill_s) if self._prefill_s else 0.0
        longer = [_longer(one, lengths) for one in stayers]
        games: list[list[float]] = [[] for _ in range(n_waiting)]
        self._draw = 1
        for _ in range(N_GAMES):
            free_s = [
                one.prefill_s + token_s * self._of(some)
                for one, some in zip(stayers, longer, strict=True)
            ]  # fmt: skip
            heapify(free_s)
            for waits in games:
                wait_s = free_s[0]
                waits.append(wait_s)
                heapreplace(free_s, wait_s + prefill_s + token_s * self._of(lengths))
        return [median(waits) for waits in games]

    def _of(self, values: Seq[float]) -> float:
        """Draw one: the same ones in every forecast, so that it changes only as what it is made of does."""
        self._draw = (1103515245 * self._draw + 12345) & 0x7FFFFFFF
        return values[(self._draw >> 8) % len(values)]


def _longer(one: Stayer, lengths: Seq[int]) -> list[int]:
    """Return how many tokens may be left of an answer, by the answers that were longer."""
    if one.sure:
        return [one.n_left]
    left = [min(n - one.n_output, one.n_left) for n in lengths if n > one.n_output]
    # Longer than all: it is as likely to end soon as to become twice as long.
    return left or [min(max(one.n_output // 2, 1), one.n_left)]
