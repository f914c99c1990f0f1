"""Scaling: when a model needs one engine more, and which of its engines it would rather do without. Pure.

The first engines of a model stay loaded; the others come when the waits predicted for its requests stay too
long. They are chosen only by requests that they save a part of such a wait, so that they fall idle when the
first suffice; and an idle engine lets its model go by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

N_SPANS: Final = 3
"""Seconds in a row, of those that had requests, whose mean wait must be too long. A burst is over before."""
SPAN_S: Final = 1.0
RETRY_S: Final = 60.0
"""How long nothing is tried after an engine could not be loaded."""


class Demand:
    """Watches what is predicted for the requests of one model. Times are seconds on one clock, the caller's.

    if demand.grows(wait_s, now_s):  # for every request, while an engine is missing and none is being loaded
        ...  # load one more
    demand.failed(now_s)  # that could not be done
    """

    def __init__(self, most_wait_s: float) -> None:
        self._most_wait_s = most_wait_s
        self._began_s, self._rests_until_s = -inf, -inf
        self._sum_s, self._n = 0.0, 0
        """Of the waits in the second that began then."""
        self._n_over = 0
        """Seconds before it, in a row, that were too much."""

    def grows(self, wait_s: float, now_s: float) -> bool:
        """Take the wait predicted for a request; say whether one more engine is to be loaded now.

        Means are watched because short prompts pass long ones: some wait little at any load.
        """
        if now_s >= self._began_s + SPAN_S:
            over = self._sum_s > self._n * self._most_wait_s
            self._n_over = self._n_over + 1 if over else 0
            self._began_s, self._sum_s, self._n = now_s, 0.0, 0
        self._sum_s, self._n = self._sum_s + wait_s, self._n + 1
        needed = self._n_over >= N_SPANS and wait_s > self._most_wait_s and now_s >= self._rests_until_s
        if needed:
            self._n_over = 0
        return needed

    def failed(self, now_s: float) -> None:
        self._rests_until_s = now_s + RETRY_S


def handicaps(engine_ids: Sequence[str], n_stay: int, most_wait_s: float) -> dict[str, float]:
    """Return how many seconds an engine beyond those that stay must save a request to be chosen.

    Up to half of the wait that would load it again; the last one most, so that it is the first to fall idle.
    """
    spare = engine_ids[max(n_stay, 1) :]
    return {id_: most_wait_s / 2 * (i + 1) / len(spare) for i, id_ in enumerate(spare)}
