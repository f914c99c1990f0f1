"""Forecast of how long requests wait for a slot, from the lengths of the last answers. Pure.

Nobody knows when an answer ends. The lengths of the last ones say how many tokens those under way may still
get: of those that were longer than it is already, one is as likely as another. So the slots are played to
their ends some times over with lengths drawn from these, and a wait is the median of these games. A game
counts in ticks, in each of which every stream gets a token, and a tick takes longer while there are prompts
to compute: those of sequences in slots, and then of those that get one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from heapq import heapify, heapreplace
from statistics import median
from typing import Final, NamedTuple

from cobali_ray.core.cost.ticktime import EnginePace
from cobali_ray.core.request.events import RequestStats

N_ANSWERS: Final = 64
"""The last answers that count."""
MIN_ANSWERS: Final = 4
"""With fewer there is no forecast."""
N_GAMES: Final = 32


class Stayer(NamedTuple):
    """A sequence in a slot, as far as it matters when the slot will be free."""

    n_output: int
    n_left: int
    """Most output tokens that are still to come."""
    n_prompt: int = 0
    """Tokens of its prompt that are still to compute."""
    sure: bool = False
    """Whether it continues to its limit: no end token ends it."""


class AnswerLengths:
    """The last answers of an engine: their lengths, and how much of their prompts was computed."""

    def __init__(self, n_games: int = N_GAMES) -> None:
        self._answers: deque[RequestStats] = deque(maxlen=N_ANSWERS)
        self._n_games, self._draw = n_games, 0

    @property
    def lengths(self) -> Seq[int]:
        """Return the output tokens that answers had, ascending."""
        return sorted([answer.n_output for answer in self._answers])

    def note(self, stats: RequestStats) -> None:
        """Record an answer that ended by itself."""
        self._answers.append(stats)

    def waits_s(
        self, stayers: Seq[Stayer], n_prompts: Seq[int], pace: EnginePace | None
    ) -> list[float] | None:
        """Return how long each waiting request will wait; None: too little is known. See `games_s`."""
        games = self.games_s(stayers, n_prompts, pace)
        return None if games is None else [median(waits) for waits in games]

    def games_s(
        self, stayers: Seq[Stayer], n_prompts: Seq[int], pace: EnginePace | None
    ) -> list[list[float]] | None:
        """Return how long each waiting request waits in each game; None: too little is known.

        `n_prompts` has the lengths of their prompts, in the order in which they get slots, and `stayers`
        are in the order in which their prompts are computed. While any prompt is, all ticks are full ones.
        """
        if len(self._answers) < MIN_ANSWERS or not stayers or pace is None:
            return None
        lengths = self.lengths
        n_prompt = sum([answer.n_prompt for answer in self._answers])
        computed = 1 - sum([answer.n_cached for answer in self._answers]) / max(n_prompt, 1)
        # Right drafts are more than a token a tick.
        tpots_s = [answer.tpot_s for answer in self._answers if answer.tpot_s is not None]
        token_s = median(tpots_s or [pace.tick_s])
        tick_s, full_tick_s = min(pace.tick_s, token_s), pace.full_tick_s
        longer = [_longer(stayer, lengths) for stayer in stayers]
        prompts_s = [computed * n * pace.token_s for n in n_prompts]
        games: list[list[float]] = [[] for _ in n_prompts]
        self._draw = 1
        for _ in range(self._n_games):
            at_s, at_tick, prefill_s = 0.0, 0.0, 0.0
            ends = list[float]()
            for stayer, some in zip(stayers, longer, strict=True):
                prefill_s += stayer.n_prompt * pace.token_s
                ends.append(self._of(some) + (prefill_s / full_tick_s if stayer.n_prompt else 0))
            heapify(ends)
            for prompt_s, waits in zip(prompts_s, games, strict=True):
                n_ticks = ends[0] - at_tick
                full_s = min(prefill_s, n_ticks * full_tick_s)
                at_s += full_s + (n_ticks - full_s / full_tick_s) * tick_s
                waits.append(at_s)
                at_tick, prefill_s = ends[0], prefill_s - full_s + prompt_s
                heapreplace(ends, at_tick + prefill_s / full_tick_s + self._of(lengths))
        return games

    def _of(self, values: Seq[float]) -> float:
        """Draw a value: the same ones in every forecast, so that it changes only if its inputs do."""
        self._draw = (1103515245 * self._draw + 12345) & 0x7FFFFFFF
        return values[(self._draw >> 8) % len(values)]


def _longer(stayer: Stayer, lengths: Seq[int]) -> list[int]:
    """Return how many tokens may be left of an answer, by the answers that were longer."""
    if stayer.sure:
        return [stayer.n_left]
    left = [min(n - stayer.n_output, stayer.n_left) for n in lengths if n > stayer.n_output]
    # Longer than all: it is as likely to end soon as to become twice as long.
    return left or [min(max(stayer.n_output // 2, 1), stayer.n_left)]
