"""Backend: the little the engine needs of a model."""

from __future__ import annotations

from typing import Protocol

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.sampling import RowSampler, Sampled


class Backend(Protocol):
    """A model with a KV cache of `n_slots` sequences. One thread calls it."""

    n_slots: int
    n_vocab: int
    n_ctx_slot: int
    """Most tokens of one slot."""
    n_cells: int
    """KV cells of all slots together."""
    n_batch: int
    """Most tokens of one forward pass."""
    end_tokens: frozenset[int]
    overlaps: bool
    """Whether `forward` returns before the pass is computed, so that host work can hide behind it."""

    def forward(self, batch: TickBatch) -> None:
        """Compute the batch's tokens and remember them in the cache.

        Raises:
            CacheFullError: no room; nothing was computed, try again with less.
            SlotFaultError: that slot's span breaks a rule; nothing was computed.
            BackendError: anything else; what the cache holds is unknown, call `clear`.
        """
        ...

    def wait(self) -> None:
        """Return once the last forward pass is computed."""
        ...

    def sample(self, rows: list[RowSampler]) -> Sampled:
        """Draw one token per flagged row of the last forward pass, in batch order."""
        ...

    def keep(self, slot_id: int, n_keep: int) -> None:
        """Cut a slot's cache to its first `n_keep` tokens; 0 frees it."""
        ...

    def clear(self) -> None:
        """Forget every slot."""
        ...

    def piece(self, token_id: int) -> bytes:
        """Return the bytes that a token shows; control tokens show none."""
        ...

    def n_reused(self) -> int:
        """Return how many forward passes reused the compute graph, since the start."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...
