"""Backups: when to write idle slots to disk, so that little is lost if the engine dies. Pure.

What a slot loses goes to host memory and so to disk anyway; an engine that is killed never gets there. So
a slot is written soon after its answer ended, without a place in host memory: blocks that the disk lacks, and
of a model that goes back to states the newest of the text.

llama.cpp copies a slot's cells out as a whole, in the tick thread. An idle engine does so once no request
came for a while, which is longer if the copy takes longer; a busy one now and then, of short slots whose
conversation did not continue. One slot is on its way to the disk at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from cobali_ray.core.cache.host_tier import MOVE_S

QUIET_S = 0.25
"""Seconds that an engine must have been idle."""
BUSY_QUIET_S = 2.0
"""Seconds that a slot must have been idle, in an engine that is busy."""
_IDLE_TIMES = 5.0
"""In times of a slot's copy: how long no request came before it, and how long none is copied after it."""
_BUSY_TIMES = 100.0
"""The same after it, in an engine that is busy."""
_LOOK_S = 0.05
PART_BYTES = 256 << 20
"""Most bytes copied at once: they take memory until they are written."""


class Backups:
    """The slots to be written, in the order in which their sequences ended. `copy_s`: seconds of a copy."""

    def __init__(self) -> None:
        self._ended_s: dict[int, float] = {}
        """When the last answer in each slot ended."""
        self._last_s = self._rests_until_s = -inf

    def ended(self, slot_id: int, now_s: float) -> None:
        """Record that a sequence has left a slot."""
        self._ended_s.pop(slot_id, None)
        self._ended_s[slot_id] = self._last_s = now_s

    def due_s(self, copy_s: Callable[[int], float]) -> float | None:
        """Return when an idle engine is to write one; None where there is none."""
        due_s = min([self._idle_due_s(copy_s(slot_id)) for slot_id in self._ended_s], default=None)
        return None if due_s is None else max(due_s, self._rests_until_s)

    def next(self, now_s: float, copy_s: Callable[[int], float], *, idle: bool) -> int | None:
        """Take the slot to be written now off the list, and return it."""
        if now_s < self._rests_until_s:
            return None
        for slot_id, ended_s in self._ended_s.items():
            takes_s = copy_s(slot_id)
            if idle:
                due = self._idle_due_s(takes_s) <= now_s
            else:
                due = takes_s <= MOVE_S and ended_s + BUSY_QUIET_S <= now_s
            if due:
                del self._ended_s[slot_id]
                self._rests_until_s = now_s + takes_s * (_IDLE_TIMES if idle else _BUSY_TIMES)
                return slot_id
        if not idle:
            self._rests_until_s = now_s + _LOOK_S
        return None

    def again(self, slot_id: int) -> None:
        """Put a slot back that is not wholly written."""
        self._ended_s = {slot_id: self._last_s, **self._ended_s}

    def _idle_due_s(self, takes_s: float) -> float:
        return self._last_s + max(QUIET_S, _IDLE_TIMES * takes_s)
