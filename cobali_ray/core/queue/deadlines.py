"""Deadlines of open requests, soonest first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from cobali_ray.core.queue.text_passes import EmbeddingJob
from cobali_ray.core.request.sequence import Sequence

_SLACK = 64


class Deadlines:
    """A heap that forgets ended requests when they outnumber the open ones."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence | EmbeddingJob]] = []
        self._n_added = 0
        self._n_most = _SLACK

    def add(self, one: Sequence | EmbeddingJob) -> None:
        if one.deadline_s is None:
            return
        self._n_added += 1
        heapq.heappush(self._heap, (one.deadline_s, self._n_added, one))
        if len(self._heap) > self._n_most:
            self._heap = [entry for entry in self._heap if not entry[2].status.ended]
            heapq.heapify(self._heap)
            self._n_most = 2 * len(self._heap) + _SLACK

    def soonest(self) -> float | None:
        """Return the soonest deadline; it may be that of a request that has ended."""
        return self._heap[0][0] if self._heap else None

    def expired(self, now_s: float) -> Iterator[Sequence | EmbeddingJob]:
        """Yield, once each, the open requests whose deadline has passed."""
        while self._heap and self._heap[0][0] <= now_s:
            one = heapq.heappop(self._heap)[2]
            if not one.status.ended:
                yield one
