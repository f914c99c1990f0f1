"""Whose line is next, and how many may be asked at once. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from cobali_ray.core.views.stats import LoadView

AHEAD: Final = 1 / 8
"""Lines that may wait at an engine for a slot, as a share of those that have one, and one more: so that a
slot that becomes free is not idle until the next line is there."""
MAX_AT_ONCE: Final = 256
TEXTS_AT_ONCE: Final = 4
"""Requests for vectors, which take no slot."""


class Candidate(NamedTuple):
    """A batch whose next line could be asked now."""

    batch_id: str
    tenant: str
    weight: float
    present: bool
    """Whether an engine holds the model of that line."""


class Turns:
    """Shares what is free: between tenants by weight, and between the batches of one tenant evenly.

    What is counted are lines that are being answered; of equals the one goes first that waited longest.
    Models that would have to be loaded wait for those that are.
    """

    def __init__(self) -> None:
        self._of_batch: Counter[str] = Counter()
        self._of_tenant: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        self._n = 0

    def next(self, candidates: Iterable[Candidate]) -> Candidate | None:
        """Return whose line is next."""
        return min(candidates, key=self._rank, default=None)

    def _rank(self, candidate: Candidate) -> tuple[bool, float, int, int, int]:
        return (
            not candidate.present,
            self._of_tenant[candidate.tenant] / candidate.weight,
            self._last.get(candidate.tenant, 0),
            self._of_batch[candidate.batch_id],
            self._last.get(candidate.batch_id, 0),
        )

    def begin(self, candidate: Candidate) -> None:
        """Note that a line of it is being answered."""
        self._n += 1
        self._of_tenant[candidate.tenant] += 1
        self._of_batch[candidate.batch_id] += 1
        self._last[candidate.tenant] = self._last[candidate.batch_id] = self._n

    def end(self, candidate: Candidate) -> None:
        """Note that it no longer is."""
        self._of_tenant[candidate.tenant] -= 1
        self._of_batch[candidate.batch_id] -= 1

    def forget(self, batch_id: str) -> None:
        """Forget a batch that is over."""
        self._of_batch.pop(batch_id, None)
        self._last.pop(batch_id, None)


@dataclass(slots=True)
class Room:
    """How many lines of one model may be asked at once: as many as live traffic leaves slots."""

    fixed: int | None = None
    """For requests that take no slot: so many, whatever is free."""
    n_open: int = 0
    """Lines that are being answered."""
    paused_until_s: float = 0.0
    """Until when nothing more is asked, because it was refused."""
    _views: Sequence[LoadView | None] = ()
    _most: int = 1

    def free(self, views: Sequence[LoadView | None], now_s: float) -> int:
        """Return how many more lines may be asked; `views` are the latest of the engines that are present.

        Others leave the slots that are free and those that these lines have; requests that wait count
        against it. Where no engine is present, one line is asked, and has the model loaded.
        """
        if now_s < self.paused_until_s:
            return 0
        if self.fixed is not None:
            return self.fixed - self.n_open
        if len(views) != len(self._views) or any(a is not b for a, b in zip(views, self._views, strict=True)):
            self._views = tuple(views)
            loads = [view for view in views if view is not None]
            active = [view for view in loads if not view.paused] or loads
            left = max(sum(view.n_free for view in active) + self.n_open, 0)
            most = left + 1 + int(left * AHEAD) if left else 0
            self._most = min(most, MAX_AT_ONCE) if loads else 1
        return self._most - self.n_open
