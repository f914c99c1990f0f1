"""Reasoning: whether an answer is still in it, and which token is forced when that took too long."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

from cobali_ray.core.request.stopping import Search, chars

if TYPE_CHECKING:
    from cobali_ray.core.request.request import ReasoningBudget


class _Where(Enum):
    BEFORE = auto()
    INSIDE = auto()
    CLOSING = auto()
    OVER = auto()


class ReasoningMonitor:
    """Watches one answer. White space around the texts that begin and end reasoning does not count.

    Where the budget is spent, the closing tokens are forced one after the other, unless the last token drawn
    took the text that ends reasoning a step further: then the next one may take it on. So nothing is written
    twice, and an answer has at most as many tokens more as that text has bytes.
    """

    def __init__(self, budget: ReasoningBudget, piece: Callable[[int], bytes]) -> None:
        """`piece` returns what a token shows in this answer."""
        self._n_left, self._closing, self._piece = budget.n_tokens, list(budget.closing), piece
        self._start = budget.start.strip().encode()
        self._end = Search(chars((budget.end.strip() or budget.end).encode()))
        self._begun = b""
        self._where = _Where.BEFORE
        if not self._start:
            self._enter(b"")

    @property
    def forced(self) -> int | None:
        """The token that must come next, if there is one."""
        return self._closing[0] if self._where is _Where.CLOSING else None

    def give_up(self) -> None:
        self._where = _Where.OVER

    def take(self, token: int) -> None:
        if self._where is _Where.INSIDE:
            self._n_left -= 1
            self._read(self._piece(token))
        elif self._where is _Where.CLOSING:
            if token == self._closing[0]:
                del self._closing[0]
            else:  # the grammar refused it
                self._closing.clear()
            if not self._closing:
                self._where = _Where.OVER
        elif self._where is _Where.BEFORE:
            begun, start = (self._begun + self._piece(token)).lstrip(), self._start
            if begun.startswith(start):
                self._enter(begun[len(start) :])
            elif not start.startswith(begun):
                self._where = _Where.OVER
            self._begun = begun

    def _enter(self, text: bytes) -> None:
        self._where = _Where.INSIDE
        self._read(text)

    def _read(self, text: bytes) -> None:
        """Look for the end of the reasoning; check whether the budget is spent."""
        before = self._end.n_matched
        if self._end.feed(chars(text)):
            self._where = _Where.OVER
        elif self._n_left <= 0 and self._end.n_matched <= before:
            self._where = _Where.CLOSING
