"""What a scheduler counts, for whoever looks on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from cobali_ray.core.ticktime import Shape


@dataclass(slots=True)
class Counts:
    """Written by the scheduler's thread, read by others. What is not of the last pass only grows."""

    n_ended: int = 0
    n_preempted: int = 0
    n_preempted_class: Counter[int] = field(default_factory=Counter)
    """Preemptions by the class of who was preempted."""
    n_adapter_changes: int = 0
    """Passes that were computed under another adapter than the one before."""
    n_left_queue: int = 0
    n_left_queue_tokens: int = 0
    """Requests and prompt tokens that left the queue for good."""
    n_left_line: Counter[tuple[int, str]] = field(default_factory=Counter)
    n_left_line_tokens: Counter[tuple[int, str]] = field(default_factory=Counter)
    """The same by class and tenant."""

    shape: Shape = field(default_factory=lambda: Shape(0, 0, ()))
    """The pass computed last; likewise all that follow."""
    predicted_s: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Seconds between two tokens of a stream."""
    n_drafted: int = 0
    n_accepted: int = 0
    """Tokens guessed, and those of them that were right."""
