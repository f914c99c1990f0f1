"""TickSpans: who computed what in one tick, kept as the plan already held it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cobali_ray.core.plan.plan import Span

PREFILL, DECODE = 0, 1
"""The kinds of span."""


class Ints(Protocol):
    """An array of whole numbers; the core knows no more of it."""

    def __len__(self) -> int: ...
    def tolist(self) -> list[int]: ...


class TickSpans(NamedTuple):
    """The spans of a finished tick by reference: nothing is made of them before somebody looks.

    A tick that only decodes names its slots and where each stood; any other names its plan, and which slots
    of it were prefilling. Nobody writes to the arrays afterwards.
    """

    plan: tuple[Span, ...] = ()
    prefilling: frozenset[int] = frozenset()
    slot_ids: Ints | None = None
    starts: Ints | None = None

    def rows(self) -> list[tuple[int, int, int, int]]:
        """Return (slot_id, start, length, kind) of each span, in slot order."""
        if self.slot_ids is None or self.starts is None:
            own = self.prefilling
            return sorted([(i, start, n, PREFILL if i in own else DECODE) for i, start, n, _ in self.plan])
        slots, starts = self.slot_ids.tolist(), self.starts.tolist()
        return sorted([(i, start, 1, DECODE) for i, start in zip(slots, starts, strict=True)])


NO_SPANS = TickSpans()
