"""Lives: the open requests by reference, and a ring of those that ended."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from cobali_ray.core.request.events import End
from cobali_ray.core.request.life import Life, ended_life, life_of
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.core.views.progress import named
from cobali_ray.core.views.stats import TickStats


class LivesView(NamedTuple):
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
    """Written by one thread; others read it under the collector's version number."""

    def __init__(self, ring: int) -> None:
        self._open: dict[str, Sequence] = {}
        self._ended: deque[tuple[int, Life]] = deque(maxlen=ring)
        """The last that ended, each with its tick."""

    def enter(self, sequence: Sequence) -> None:
        self._open[sequence.request_id] = sequence

    def end(self, end: End, tick_id: int) -> Sequence | None:
        """Record a request that ended in a tick, and return its sequence; None if it was never seen."""
        if (sequence := self._open.pop(end.request_id, None)) is not None:
            self._ended.append((tick_id, ended_life(sequence, end)))
        return sequence

    def open(self) -> list[Sequence]:
        """Return the open requests, oldest first."""
        return list(self._open.values())

    def find(self, name: str, tenant: str) -> list[Life]:
        """Return a tenant's requests of this name, see `named`: the open ones, else those that ended last."""

        def matches(request_id: str, x_request_id: str, of_tenant: str) -> bool:
            return of_tenant == tenant and named(request_id, x_request_id, name)

        running = [
            life_of(sequence)
            for sequence in self.open()
            if matches(sequence.request_id, sequence.request.x_request_id, sequence.account.tenant)
        ]
        ended = [life for _, life in reversed(list(self._ended))]
        return running + [life for life in ended if matches(life.request_id, life.x_request_id, life.tenant)]

    def ended(self, first: int, before: int) -> list[Life]:
        """Return the requests that ended in the ticks `first .. before`, oldest first."""
        return [life for tick_id, life in list(self._ended) if first <= tick_id < before]
