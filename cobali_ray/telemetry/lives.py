"""Lives: the open requests by reference, and a ring of those that ended."""

from __future__ import annotations

from typing import NamedTuple

from cobali_ray.core.request.events import End
from cobali_ray.core.request.life import Life, ended_life, life_of
from cobali_ray.core.request.lifecycle import Status
from cobali_ray.core.request.request import TraceLink
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
    """Written by one thread; who reads from another does so under the collector's version number."""

    def __init__(self, ring: int) -> None:
        self._open: dict[str, Sequence] = {}
        self._silent: dict[tuple[int, str], dict[str, Sequence]] = {}
        """Of those, who has no first token yet, as far as was told, by class and tenant. Not for readers."""
        self._ring: list[tuple[int, Life] | None] = [None] * ring
        self._n_ended = 0

    def enter(self, sequence: Sequence) -> None:
        self._open[sequence.request_id] = sequence
        if not sequence.request.sent_tokens:  # else its first token came elsewhere
            self._silent.setdefault(_line(sequence), {})[sequence.request_id] = sequence

    def first_tokens(self) -> list[float]:
        """Return the TTFT of each open request that has got its first token since the last call."""
        spoke = []
        for line in self._silent.values():
            for sequence in line.values():
                if sequence.first_token_s is not None:
                    spoke.append(sequence)
                elif sequence.assigned_s is None and sequence.status is Status.QUEUED:
                    break  # in a line slots are given in the order of arrival: the rest of it has none either
        for sequence in spoke:
            self._hear(sequence)
        return [s.first_token_s - s.arrived_s for s in spoke if s.first_token_s is not None]

    def whose(self, request_id: str) -> tuple[str, int]:
        """Return tenant and class of an open request; of one that was never seen, nobody's."""
        sequence = self._open.get(request_id)
        return ("", 0) if sequence is None else (sequence.account.tenant, sequence.priority)

    def trace_of(self, request_id: str) -> TraceLink | None:
        """Return where an open request belongs in a distributed trace; None if in none."""
        sequence = self._open.get(request_id)
        return None if sequence is None else sequence.request.trace

    def end(self, end: End, tick_id: int) -> float | None:
        """Keep what was of a request that ended in a tick; one that was never seen is none of ours.

        Returns its TTFT unless `first_tokens` told it: the first token may have come in its last tick.
        """
        sequence = self._open.pop(end.request_id, None)
        told = sequence is not None and not self._hear(sequence)
        if sequence is not None:
            self._ring[self._n_ended % len(self._ring)] = (tick_id, ended_life(sequence, end))
            self._n_ended += 1
        return None if told else end.stats.ttft_s

    def _hear(self, sequence: Sequence) -> bool:
        """Take somebody from among the silent; say whether it was one of them."""
        line = self._silent.get(_line(sequence), {})
        known = line.pop(sequence.request_id, None) is not None
        if known and not line:
            del self._silent[_line(sequence)]
        return known

    def open(self) -> list[Sequence]:
        """Return the open requests, oldest first."""
        return list(self._open.values())

    def find(self, asked: str, tenant: str) -> list[Life]:
        """Return a tenant's requests of this name, see `named`: the open ones, else those that ended last."""
        found = [
            life_of(one)
            for one in self._open.values()
            if one.account.tenant == tenant and named(one.request_id, one.request.x_request_id, asked)
        ]
        size = len(self._ring)
        for i in range(self._n_ended - 1, max(self._n_ended - size, 0) - 1, -1):
            record = self._ring[i % size]
            if record is None:
                break
            life = record[1]
            if life.tenant == tenant and named(life.request_id, life.x_request_id, asked):
                found.append(life)
        return found

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


def _line(sequence: Sequence) -> tuple[int, str]:
    return sequence.priority, sequence.account.tenant
