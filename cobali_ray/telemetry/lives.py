"""Lives: the open requests by reference, and a ring of those that ended."""

from __future__ import annotations

from typing import NamedTuple

from cobali_ray.core.events import End
from cobali_ray.core.life import Life, ended_life, life_of
from cobali_ray.core.sequence import Sequence
from cobali_ray.core.stats import TickStats


class Seen(NamedTuple):
    """What a reader takes away: records by reference, to be made into something elsewhere."""

    ticks: list[TickStats]
    """Oldest first."""
    open: list[Sequence]
    ended: list[Life]
    next: int
    """The id of the tick that is recorded next."""

    def lives(self) -> list[Life]:
        """Return the requests: those that ended, then the open ones as they are now."""
        return [*self.ended, *(life_of(sequence) for sequence in self.open)]


class Lives:
    """Written by one thread; who reads from another does so under the collector's version number."""

    def __init__(self, ring: int) -> None:
        self._open: dict[str, Sequence] = {}
        self._ring: list[tuple[int, Life] | None] = [None] * ring
        self._n_ended = 0

    def enter(self, sequence: Sequence) -> None:
        """Remember an open request."""
        self._open[sequence.request_id] = sequence

    def end(self, end: End, tick_id: int) -> None:
        """Keep what was of a request that ended in a tick; one that was never seen is none of ours."""
        sequence = self._open.pop(end.request_id, None)
        if sequence is not None:
            self._ring[self._n_ended % len(self._ring)] = (tick_id, ended_life(sequence, end))
            self._n_ended += 1

    def open(self) -> list[Sequence]:
        """Return the open requests, oldest first."""
        return list(self._open.values())

    def ended(self, first: int, before: int) -> list[Life]:
        """Return who ended in the ticks `first .. before`, oldest first."""
        size, found = len(self._ring), []
        for i in range(self._n_ended - 1, max(self._n_ended - size, 0) - 1, -1):
            record = self._ring[i % size]
            if record is None or record[0] < first:
                break
            if record[0] < before:
                found.append(record[1])
        return found[::-1]
