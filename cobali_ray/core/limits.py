"""What one engine and one tick may do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from cobali_ray.errors import ConfigError

PrefillOrder: TypeAlias = Literal["fcfs", "packed", "shortest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Bounds the scheduler keeps. Counts are tokens unless the name says otherwise."""

    n_slots: int
    n_ctx_slot: int
    """Most tokens of one sequence in the KV cache."""
    n_cells: int
    """KV cells of all slots together; less than n_slots * n_ctx_slot means overcommitted."""
    token_budget: int
    prefill_chunk: int
    prefill_order: PrefillOrder = "fcfs"
    max_queue: int = 128
    """Waiting requests."""
    max_queue_tokens: int = 1 << 20
    """Prompt tokens of the waiting requests."""
    min_prefix: int = 32
    """Shortest shared prefix worth choosing a slot for; 0 switches prefix reuse off."""

    def __post_init__(self) -> None:
        for name in ("n_slots", "n_ctx_slot", "n_cells", "token_budget", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise ConfigError(name, f"must be at least 1, got {getattr(self, name)}")
        for name in ("max_queue", "max_queue_tokens", "min_prefix"):
            if getattr(self, name) < 0:
                raise ConfigError(name, f"must not be negative, got {getattr(self, name)}")
        if self.token_budget < self.n_slots:
            raise ConfigError("token_budget", f"{self.token_budget} cannot feed {self.n_slots} slots")

    @property
    def n_most(self) -> int:
        """Largest number of KV tokens that one request can ever hold."""
        return min(self.n_ctx_slot, self.n_cells)
