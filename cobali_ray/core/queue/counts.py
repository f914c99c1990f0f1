"""What a scheduler counts, for telemetry and admission."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from cobali_ray.core.cost.ticktime import TickShape

LineKey: TypeAlias = tuple[int, str]
"""A class and a tenant."""


class TextPass(NamedTuple):
    """What one pass of texts did."""

    n_texts: int = 0
    """Texts whose vectors are done."""
    n_tokens: int = 0
    seconds: float = 0.0


class LineCounts:
    """Requests and their tokens that passed some point, in all and by class and tenant; they only grow."""

    __slots__ = ("n", "n_of", "n_tokens_of")

    def __init__(self) -> None:
        self.n = 0
        self.n_of, self.n_tokens_of = Counter[LineKey](), Counter[LineKey]()

    def add(self, line: LineKey, n: int, n_tokens: int) -> None:
        """Count requests of a line and tokens of theirs."""
        self.n += n
        self.n_of[line] += n
        self.n_tokens_of[line] += n_tokens


@dataclass(slots=True)
class Counts:
    """Written by the scheduler's thread, read by others. Counts that are not of the last pass only grow."""

    n_ended: int = 0
    n_preempted: int = 0
    n_preempted_class: Counter[int] = field(default_factory=Counter)
    """Preemptions by the class of the preempted request."""
    n_adapter_changes: int = 0
    """Passes that were computed under another adapter than the one before."""
    left: LineCounts = field(default_factory=LineCounts)
    """Requests for slots that left the queue for good, and their prompt tokens."""
    texts_left: LineCounts = field(default_factory=LineCounts)
    """Embedding requests that ended, and tokens of texts that were computed or dropped."""

    shape: TickShape = field(default_factory=lambda: TickShape(0, 0, ()))
    """The last pass; so are all fields that follow."""
    predicted_s: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Seconds between two tokens of a stream."""
    ttfts: list[float] = field(default_factory=list)
    """Seconds from arrival to first token, of requests that got theirs in this pass, and not elsewhere."""
    n_drafted: int = 0
    n_accepted: int = 0
    """Draft tokens computed, and those that were accepted."""
    texts: TextPass = field(default_factory=TextPass)
    """The pass of texts in this tick."""
