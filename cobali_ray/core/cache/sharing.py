"""Sharing: which cells belong to several slots at once, where a copied prefix takes no new cells.

Slots share beginnings only, so what they share is a tree: a run of cells that several slots own, then runs
that fewer of them own, then what each computed alone, which is not noted: a slot that shares nothing costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class SharedCells:
    """Cells of the tokens `start .. end` of every slot that owns them."""

    start: int
    end: int
    owners: set[int]


class Sharing:
    """The books of shared cells."""

    def __init__(self) -> None:
        self._runs: dict[int, list[SharedCells]] = {}
        """Of each slot that shared cells, from its first token on without a gap."""

    def share(self, donor_id: int, slot_id: int, n: int) -> None:
        """Let a slot that shares nothing also own the first `n` cells of another."""
        self._split(donor_id, n)
        runs = self._runs.setdefault(donor_id, [])
        n_noted = runs[-1].end if runs else 0
        if n_noted < n:
            runs.append(SharedCells(n_noted, n, {donor_id}))
        self._runs[slot_id] = [run for run in runs if run.end <= n]
        for run in self._runs[slot_id]:
            run.owners.add(slot_id)

    def cut(self, slot_id: int, n: int) -> None:
        """Take all but its first `n` cells from a slot; other owners keep them."""
        self._split(slot_id, n)
        while (runs := self._runs.get(slot_id)) and runs[-1].start >= n:
            runs.pop().owners.remove(slot_id)
            if not runs:
                del self._runs[slot_id]

    def n_common(self, slot_id: int) -> int:
        """Return how many of a slot's first cells other slots own, too."""
        return max([run.end for run in self._runs.get(slot_id, ()) if len(run.owners) > 1], default=0)

    def n_twice(self, among: Callable[[int], bool] | None = None) -> int:
        """Return by how much the sum of the cells of all slots, or of these, exceeds the cells they take."""
        n, seen = 0, set[int]()
        for slot_id, runs in self._runs.items():
            if among is not None and not among(slot_id):
                continue
            for run in runs:
                n += (run.end - run.start) * (id(run) in seen)
                seen.add(id(run))
        return n

    def _split(self, slot_id: int, n: int) -> None:
        """Split a slot's shared cells at `n`, for all their owners."""
        whole = next((run for run in self._runs.get(slot_id, ()) if run.start < n < run.end), None)
        if whole is None:
            return
        rest = SharedCells(n, whole.end, set(whole.owners))
        whole.end = n
        for owner in whole.owners:
            runs = self._runs[owner]
            runs.insert(runs.index(whole) + 1, rest)
