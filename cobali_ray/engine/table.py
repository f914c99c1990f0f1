"""RequestTable: the running sequences as arrays, for a Selector to choose from."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend.select import Column, Requests, empty_requests
from cobali_ray.core.sequence import Sequence

SlotIds: TypeAlias = NDArray[np.intp] | Seq[int]


class RequestTable:
    """One column per slot, derived from the sequence in it: the sequence is the truth, nobody asks this.

    Who decodes moves in all columns at once, by `advance` and `sampled`; whatever else happens to a sequence
    rewrites its column. `Layout` and the engine call these where they change the sequence itself.
    """

    def __init__(self, n_slots: int) -> None:
        self.requests = empty_requests(n_slots)
        self.requests[Column.SLOT_ID] = np.arange(n_slots)
        self.prefilling: set[int] = set()
        """Slots whose sequence has more to compute than the token sampled last."""
        self._n_pending = self.requests[Column.N_PENDING]
        self._token: NDArray[np.int32] = self.requests[Column.TOKEN]
        self._n_computed = self.requests[Column.N_COMPUTED]
        self._n_ever = np.zeros(n_slots, np.int64)
        """Tokens that are computed at most: the last one of an answer is not."""

    def renew(self, sequence: Sequence) -> None:
        """Write a running sequence's column anew."""
        slot_id, decoding = sequence.slot_id, sequence.decoding
        self.requests[: Column.SLOT_ID, slot_id] = (
            1, decoding, sequence.n_pending, sequence.tokens[-1], sequence.n_computed,
        )  # fmt: skip
        self._n_ever[slot_id] = sequence.n_most - 1
        if decoding:
            self.prefilling.discard(slot_id)
        else:
            self.prefilling.add(slot_id)

    def clear(self, slot_id: int) -> None:
        """Empty the column of a slot that was taken back."""
        self.requests[: Column.SLOT_ID, slot_id] = 0
        self.prefilling.discard(slot_id)

    def stop(self, slot_id: int) -> None:
        """Let a sequence that ended while its token is in flight take part in no further tick."""
        self._n_pending[slot_id] = 0

    def advance(self, slot_ids: SlotIds) -> None:
        """Note that these decoding slots' tokens are being computed; their next ones are in flight."""
        self._n_computed[slot_ids] += 1

    def sampled(self, slot_ids: SlotIds, tokens: Seq[int]) -> None:
        """Write the tokens that were in flight."""
        self._token[slot_ids] = tokens

    def tokens(self, slot_ids: NDArray[np.intp]) -> NDArray[np.int32]:
        """Return the token known last of each of these slots."""
        return self._token[slot_ids]

    def ahead(self) -> Requests:
        """Return the table of the next tick, as if every token in flight let its stream go on."""
        requests = self.requests.copy()
        requests[Column.N_PENDING] *= self._n_computed < self._n_ever
        return requests
