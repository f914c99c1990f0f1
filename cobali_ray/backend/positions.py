"""Positions: where llama.cpp has the tokens of each slot, if images take fewer positions than rows.

Such a model (M-RoPE) has all rows of an image at one position, in two further dimensions, and goes on behind
it after as many positions as the image is high or wide. Everybody else counts tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class _Jump(NamedTuple):
    end: int
    """The token from which on it holds."""
    n_saved: int
    """Positions that the rows before it did not take."""


class Positions:
    """The images of each slot, and what they do to the tokens behind them."""

    def __init__(self, n_slots: int) -> None:
        self._jumps: list[list[_Jump]] = [[] for _ in range(n_slots)]
        self.saved = np.zeros(n_slots, np.int32)
        """How far the next token of each slot is behind its number."""
        self.plain = True
        """Whether no slot has any, so that every token is at its number."""

    def of(self, slot_id: int, n: int) -> int:
        """Return the position of a slot's token with this number."""
        return n - sum([jump.n_saved for jump in self._jumps[slot_id] if jump.end <= n])

    def note(self, slot_id: int, end: int, n_saved: int) -> None:
        """Note that a slot's tokens up to `end` now close with an image that saved so many positions."""
        if n_saved:
            self._jumps[slot_id].append(_Jump(end, n_saved))
            self._count(slot_id)

    def cut(self, slot_id: int, n_keep: int) -> None:
        """Keep what lies in a slot's first tokens."""
        if self._jumps[slot_id]:
            self._jumps[slot_id] = [jump for jump in self._jumps[slot_id] if jump.end <= n_keep]
            self._count(slot_id)

    def copy(self, donor_id: int, slot_id: int, n_keep: int) -> None:
        """Note that a slot has the first tokens of another."""
        self._jumps[slot_id] = list(self._jumps[donor_id])
        self._count(slot_id)
        self.cut(slot_id, n_keep)

    def clear(self) -> None:
        """Forget every slot."""
        self.__init__(len(self._jumps))  # type: ignore[misc]

    def shifted(self, slots: NDArray[np.int32], numbers: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the positions of the next tokens of slots, given their numbers."""
        return numbers - self.saved.take(slots)

    def _count(self, slot_id: int) -> None:
        self.saved[slot_id] = sum([jump.n_saved for jump in self._jumps[slot_id]])
        self.plain = not self.saved.any()
