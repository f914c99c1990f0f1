"""The likeliest tokens of each row, picked on the device by llama.cpp's own top_k: one chain per slot.

Whether they are picked there or whole rows are copied is decided pass by pass. `RowSampler.suffices` says for
which requests the candidates are enough; that changes only when a grammar begins to hold, which is looked at
before each pass. The engine names a slot's `RowSampler` when it is assigned (`Backend.expect`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from cobali_ray.backend.row_sampler import RowSampler
from cobali_ray.errors import BackendError

_log = structlog.get_logger(__name__)

N_CANDIDATES = 128
"""Room for every usual top_k (20 to 100) beside banned end tokens; 64 was no faster."""
PATIENCE = 256
"""Sampled passes without need of a whole row before the device picks again."""
MAX_PATIENCE = 1 << 16


class Attachment:
    """Whether the sampler chains are attached to the context.

    Every change makes llama.cpp plan its memory anew, so they are rare: the first pass that needs a whole row
    detaches the chains, and they come back after `patience` passes without such a need. Where that proves
    wrong sooner than it took, it takes twice as long the next time: under a mixed load the changes die out.
    """

    def __init__(self, patience: int = PATIENCE) -> None:
        self.attached = True
        self._least_patience = self._patience = patience
        self._n_quiet = 0

    def decide(self, *, whole: bool) -> bool:
        """Say whether the chains shall be attached in the coming pass, given that it needs whole rows."""
        if not whole:
            self._n_quiet += 1
            if not self.attached and self._n_quiet > self._patience:
                self.attached, self._n_quiet = True, 0
            return self.attached
        if self.attached:
            early = self._n_quiet < self._patience
            self._patience = min(2 * self._patience, MAX_PATIENCE) if early else self._least_patience
            self.attached = False
        self._n_quiet = 0
        return False


class DeviceCandidates:
    """The sampler chains of a context, each exactly [top_k]; what is done with the candidates is ours.

    While all chains are attached, llama.cpp copies `n` logits and ids of each row to the host instead of
    the row. If one row's slot has no chain, it copies all rows of the pass whole. So the chains are all
    attached or all detached, by what the requests in the coming pass need.
    """

    def __init__(self, lc: Any, *, n_slots: int, n_vocab: int) -> None:
        self._lc, self._n_slots, self._n_vocab = lc, n_slots, n_vocab
        self.n = min(N_CANDIDATES, n_vocab)
        self._attachment = Attachment()
        self._chains = self._new_chains()
        self._whole = set(range(n_slots))
        """Slots whose rows are needed whole."""
        self._free: dict[int, RowSampler] = {}
        """Slots whose rows are needed whole as soon as a grammar begins to hold."""

    @property
    def attached(self) -> bool:
        """Whether the last pass came with candidates instead of rows."""
        return self._attachment.attached

    def configure(self, params: Any) -> None:
        """Put the chains into the parameters of a context that is to be made."""
        lc = self._lc
        configs = (lc.llama_sampler_seq_config * self._n_slots)()
        for slot_id, chain in enumerate(self._chains):
            configs[slot_id].seq_id = slot_id
            configs[slot_id].sampler = ctypes.cast(chain, ctypes.c_void_p)
        params.samplers, params.n_samplers = configs, self._n_slots

    def expect(self, slot_id: int, row: RowSampler) -> None:
        """Note what a slot's next rows are for."""
        self._free.pop(slot_id, None)
        if row.suffices(self.n):
            self._whole.discard(slot_id)
            if row.matcher is not None:
                self._free[slot_id] = row
        else:
            self._whole.add(slot_id)

    def prepare(self, context: Any, sampled: Collection[int]) -> None:
        """Attach or detach the chains as the coming pass needs, which gives rows of these slots, if any."""
        if not sampled:
            return
        for slot_id in [slot_id for slot_id, row in self._free.items() if not row.suffices(self.n)]:
            del self._free[slot_id]
            self._whole.add(slot_id)
        before = self.attached
        attached = self._attachment.decide(whole=not self._whole.isdisjoint(sampled))
        if attached and not before:
            self._attach(context)
        elif before and not attached:
            self.detach(context)
        if attached != before:
            _log.info("device_sampling", attached=attached)

    def _attach(self, context: Any) -> None:
        self.close()  # a chain can be attached only once
        self._chains = self._new_chains()
        for slot_id, chain in enumerate(self._chains):
            self._lc.llama_set_sampler(context, slot_id, chain)

    def detach(self, context: Any) -> None:
        """Let the context forget the chains."""
        for slot_id in range(self._n_slots):
            self._lc.llama_set_sampler(context, slot_id, None)

    def read(self, context: Any, n_rows: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Copy logits and token ids, both (rows, n), of the last pass; in no order within a row."""
        lc = self._lc
        if not self.picks(context, n_rows):
            raise BackendError(f"llama.cpp gave no {self.n} candidates")
        values = lc.llama_get_sampled_logits_ith(context, -n_rows)
        ids = lc.llama_get_sampled_candidates_ith(context, -n_rows)
        shape = (n_rows, self._n_vocab)  # llama.cpp leaves the rest of each row unused
        return (
            np.ctypeslib.as_array(values, shape)[:, : self.n].copy(),
            np.ctypeslib.as_array(ids, shape)[:, : self.n].copy(),
        )

    def picks(self, context: Any, n_rows: int) -> bool:
        """Tell whether the last pass, of `n_rows` rows, came with candidates in the right number."""
        lc = self._lc
        n_logits = int(lc.llama_get_sampled_logits_count_ith(context, -n_rows))
        return self.n == n_logits == int(lc.llama_get_sampled_candidates_count_ith(context, -n_rows))

    def close(self) -> None:
        """Free the chains; the context must be freed or have forgotten them."""
        for chain in self._chains:
            self._lc.llama_sampler_free(chain)
        self._chains = []

    def _new_chains(self) -> list[Any]:
        return [self._new_chain() for _ in range(self._n_slots)]

    def _new_chain(self) -> Any:
        lc = self._lc
        chain = lc.llama_sampler_chain_init(lc.llama_sampler_chain_default_params())
        lc.llama_sampler_chain_add(chain, lc.llama_sampler_init_top_k(self.n))
        return chain
