"""LlamaSlots: a context of llama.cpp, and what its slots hold: computed, cut, copied, saved and restored."""

from __future__ import annotations

import ctypes
import os
import re
from array import array
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from cobali_ray.backend import library
from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.cells import CellLayout, Cells, alone, beside
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.head import DraftHead
from cobali_ray.backend.image_pass import ImagePasses
from cobali_ray.backend.params import attends, forgets
from cobali_ray.backend.port import State
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.limits import PLAIN_CELL_TYPES
from cobali_ray.errors import BackendError, CacheFullError

_log = structlog.get_logger(__name__)
_NO_ROOM = 1
_NOT_ROTATED = re.compile(r"\s*[+-]?0*[1-9]")
"""What C reads as a number other than 0."""
_PARTIAL_HEAD = 8
"""Bytes in front of a state without cells that one with cells has at its start: a magic number, the slot."""
_PROBE = array("i", [0] * 5)


class LlamaSlots:
    """The part of a LlamaBackend that knows its sequences and their cells; the rest is in llama.py."""

    _lc: Any
    _model: Any
    _context: Any
    _head: DraftHead | None
    max_draft: int

    def _open_slots(self, config: LlamaConfig) -> None:
        """Begin with empty slots in a new context."""
        lc = self._lc
        self._windows = lc.llama_model_n_swa(self._model) > 0
        self._forgets, self._attends = forgets(lc, self._model, config), attends(lc, self._model)
        self._memory = lc.llama_get_memory(self._context)
        self.n_slots = config.n_slots
        self.n_batch = int(lc.llama_n_batch(self._context))
        self._images = ImagePasses(lc, self._context, n_slots=self.n_slots, n_batch=self.n_batch)
        self.n_ctx_slot = min(config.n_ctx, int(lc.llama_n_ctx_seq(self._context)))
        n_cells = int(lc.llama_n_ctx(self._context))
        self.n_cells = min(n_cells, config.kv_cells or n_cells)
        # A state lacks the cells that left a window; DeepSeek V4's windows are in its file alone.
        name = library.metadata(lc, self._model, "general.architecture")
        named = library.metadata(lc, self._model, f"{name}.attention.sliding_window")
        odd = named not in {"", "0"} and not self._attends
        self.keeps_states = not odd and (not self._attends or self._forgets)
        self.cuts_tails = self._attends and not self._forgets
        self.states_alone = bool(lc.llama_model_is_recurrent(self._model))
        self.copies = self.cuts_tails or self.keeps_states
        self.shares = self.copies and config.unified
        self.dense = not config.unified and not odd and (self._forgets or not self._windows)
        self._n_cached = np.zeros(config.n_slots, np.int32)
        self._seq_ids = np.arange(config.n_slots, dtype=np.int32)
        """What llama.cpp calls each slot at present."""
        self._raw: dict[int, tuple[Any, NDArray[np.int32], TickBatch]] = {}
        self._unified, self._reproducible = config.unified, config.reproducible
        self._copy_flags = lc.LLAMA_STATE_SEQ_FLAGS_ON_DEVICE
        if not {config.type_k, config.type_v} <= PLAIN_CELL_TYPES:
            # llama.cpp counts blocks of quantised numbers as numbers there, and copies one part in 32.
            self._copy_flags = lc.LLAMA_STATE_SEQ_FLAGS_NONE
        self._layout: CellLayout | None = None
        self._layout_read = False
        self._state_bytes = 0
        self._state = np.empty(0, np.uint8)

    def _decode(self, batch: TickBatch) -> None:
        raw = self._raw_batch(batch)
        library.forget_errors()
        self._check_code(self._lc.llama_decode(self._context, raw), batch.n_tokens)
        self._n_cached += np.bincount(batch.slot[: batch.n_tokens], minlength=self.n_slots)

    def _check_code(self, code: int, n_tokens: int) -> None:
        if code == _NO_ROOM and self._unified:  # a split slot that passed the check has room
            raise CacheFullError(f"llama.cpp found no room for {n_tokens} tokens")
        if code != 0:
            raise BackendError(f"llama_decode returned {code}: {library.errors()}")

    def _raw_batch(self, batch: TickBatch) -> Any:
        """Return a batch as llama.cpp reads it, over the arrays' memory, made once per TickBatch."""
        if id(batch) not in self._raw:
            seq = np.zeros(len(batch.token), np.int32)
            raw = library.raw_batch(
                self._lc, token=batch.token, position=batch.position, seq=seq, output=batch.output
            )
            self._raw[id(batch)] = (raw, seq, batch)  # the batch too, or another could have its id
        raw, seq, _ = self._raw[id(batch)]
        raw.n_tokens = n = batch.n_tokens
        seq[:n] = self._seq_ids[batch.slot[:n]]
        return raw

    def truncate(self, slot_id: int, n_keep: int) -> None:
        if not 0 <= slot_id < self.n_slots:  # llama.cpp takes -1 for every slot and dies of -2
            raise BackendError(f"slot {slot_id} does not exist")
        n_cached = int(self._n_cached[slot_id])
        if not 0 <= n_keep <= n_cached:
            raise BackendError(f"slot {slot_id} holds {n_cached} tokens, asked to keep {n_keep}")
        if n_keep == n_cached:
            return
        if n_keep and self.keeps_states and n_cached - n_keep > self.max_draft:
            raise BackendError(f"slot {slot_id} goes back to states only, and not to {n_keep} tokens")
        positions = self._images.positions
        start = positions.of(slot_id, n_keep) or -1
        if not self._lc.llama_memory_seq_rm(self._memory, self._seq_id(slot_id), start, -1):
            raise BackendError(f"slot {slot_id} cannot be cut to {n_keep} tokens")
        self._hold(slot_id, n_keep)

    def _hold(self, slot_id: int, n_keep: int) -> None:
        """Note that a slot was cut to its first tokens."""
        self._images.positions.cut(slot_id, n_keep)
        self._n_cached[slot_id] = n_keep
        if self._head is not None:
            self._head.cut(slot_id, n_keep)

    def copy(self, donor_id: int, slot_id: int, n_keep: int) -> None:
        """Copy the first tokens of a slot's cache to an empty one.

        `llama_memory_seq_cp` lets both slots of a unified cache have the same cells. Of a split one it copies
        whole streams, and only at the next pass, so a slot's state is used there: it is written at once, and
        of used cells only. It lacks the cells that left a sliding window, which a shorter text needs again;
        models with windows therefore have their streams copied, and keep no cells outside, because reading or
        filling a slot in between would see or spoil what is not copied yet.
        """
        n_donor, n_cached = int(self._n_cached[donor_id]), int(self._n_cached[slot_id])
        if n_cached or donor_id == slot_id or not 0 < n_keep <= n_donor:
            raise BackendError(
                f"slot {slot_id} with {n_cached} tokens gets none of slot {donor_id}: {n_keep} of {n_donor}"
            )
        if self.keeps_states and n_keep < n_donor:
            raise BackendError(f"slot {donor_id} holds {n_donor} tokens, of which {n_keep} cannot be copied")
        positions = self._images.positions
        donor, seq = self._seq_id(donor_id), self._seq_id(slot_id)
        if self._head is not None:
            self._head.copy(donor_id, slot_id)
        if self._unified:
            end = -1 if self.keeps_states else positions.of(donor_id, n_keep)
            self._lc.llama_memory_seq_cp(self._memory, donor, seq, 0, end)
            positions.copy(donor_id, slot_id, n_keep)
            self._hold(slot_id, n_keep)
            return
        if self._windows and not self._forgets:
            self._lc.llama_memory_seq_cp(self._memory, donor, seq, -1, -1)
        elif not library.copy_sequence(
            self._lc, self._context, donor, seq, flags=self._copy_flags, room=self._room
        ):
            raise BackendError(f"sequence {seq} cannot take a copy of sequence {donor}")
        positions.copy(donor_id, slot_id, n_donor)
        self._n_cached[slot_id] = n_donor
        self.truncate(slot_id, n_keep)

    def swap(self, slot_id: int, other_id: int) -> None:
        """Exchange the sequence ids of two slots; what they hold is written again under the new ones.

        It goes through host memory, where both can be at a time, and all of it comes back as it was.
        """
        pair = [slot_id, other_id]
        states: dict[int, Cells] = {}
        for holding in [slot for slot in pair if self._n_cached[slot]]:
            states[holding] = self._read_state(holding, sum(map(len, states.values())))
        for holding in states:
            self._lc.llama_memory_seq_rm(self._memory, self._seq_id(holding), -1, -1)
        self._seq_ids[pair] = self._seq_ids[pair[::-1]]
        for holding, state in states.items():
            self._write_state(holding, state, int(self._n_cached[holding]))

    def measure_cell(self) -> int:
        """Compute a few tokens, and find out whether their cells can be taken apart; see `cells`."""
        if self.states_alone or not (self.keeps_states or (self.cuts_tails and not self._windows)):
            return 0
        self._probe()
        return self._layout.cell_bytes if self._layout else 0

    def measure_state(self) -> int:
        """Compute a few tokens, and see what the state behind them takes: as much as behind any others."""
        if not self.keeps_states:
            return 0
        self._probe()
        return self._state_bytes

    def _probe(self) -> None:
        """Compute a few tokens, and look at the state that llama.cpp has of them."""
        if self._layout_read:
            return
        self.clear()
        probe = TickBatch(self.n_batch)
        probe.fill((Span(0, 0, n := min(len(_PROBE), self.n_batch), sample=False),), [_PROBE])
        self._decode(probe)
        if self.keeps_states and not self._goes_back(n):
            _log.warning("no_states", detail="this llama.cpp does not put a slot of this model back")
            self.keeps_states = self.copies = self.shares = False
        if not self.states_alone:
            self._layout = CellLayout.read(self._read_cells(0), n)
        self._layout_read = True
        self.clear()

    def cell_kind(self) -> str:
        """Return layout, build and processor, and what else changes the numbers in cells.

        In the reproducible configuration cells are the same to the last bit, whichever pass computed them, so
        it takes no others. Some models rotate keys otherwise in slots longer than what they were trained for;
        and quantised cells are of rotated vectors, unless an environment variable prevents it.
        """
        lc, layout = self._lc, self._layout
        name = library.metadata(lc, self._model, "general.architecture")
        trained = library.metadata(lc, self._model, f"{name}.rope.scaling.original_context_length")
        build = (version("llama-cpp-python"), lc.llama_print_system_info().decode())
        kept = None if layout is None else layout.kind
        plain = _NOT_ROTATED.match(os.environ.get("LLAMA_ATTN_ROT_DISABLE", "")) is not None
        facts = (kept, build, self._reproducible, trained and self.n_ctx_slot)
        return repr((*facts, "not rotated") if plain else facts)

    def _goes_back(self, n: int) -> bool:
        """Whether slot 0, which holds `n` tokens, can be put back to where it is; note the state's size."""
        state = self.save_state(0, n)
        more = TickBatch(self.n_batch)
        more.fill((Span(0, n, 1, sample=False),), [array("i", [0] * (n + 1))])
        self._decode(more)
        try:
            self.restore_state(0, state, n)
        except BackendError:
            return False
        self._state_bytes = len(state)
        if self._forgets:  # it has as many cells as the window, once there are so many tokens
            window = CellLayout.read(state, n)
            n_window = min(int(self._lc.llama_model_n_swa(self._model)), self.n_ctx_slot)
            self._state_bytes = 0 if window is None else window.state_bytes(n_window)
        return self._state_bytes > 0

    def save(self, slot_id: int, spans: Sequence[tuple[int, int]]) -> list[Cells]:
        n_cached = int(self._n_cached[slot_id])
        if self._layout is None or any(not 0 <= start < end <= n_cached for start, end in spans):
            raise BackendError(f"slot {slot_id} holds {n_cached} tokens, asked to save {spans}")
        if self._images.positions.of(slot_id, n_cached) != n_cached:
            raise BackendError(f"slot {slot_id} holds an image whose rows share their position")
        state = self._read_cells(slot_id)
        if len(state) != self._layout.state_bytes(n_cached):
            raise BackendError(f"slot {slot_id} has {len(state)} bytes for {n_cached} tokens")
        return self._layout.cut(state, n_cached, spans)

    def save_state(self, slot_id: int, n_tokens: int) -> State:
        n_cached = int(self._n_cached[slot_id])
        if not self.keeps_states or not 0 < n_tokens == n_cached:
            raise BackendError(f"slot {slot_id} holds {n_cached} tokens and keeps no state of {n_tokens}")
        state = self._read_state(slot_id, 0, self._lc.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
        return alone(state) if self._forgets and self._attends else state.copy()

    def _of_slots(self, state: State) -> State:
        """Return a saved state as this cache takes it, however many slots the one it was saved from has."""
        n_streams = 1 if self._unified else self.n_slots
        return beside(state, n_streams) if self._forgets and self._attends else state

    def restore_state(self, slot_id: int, state: State, n_keep: int) -> None:
        n_cached = int(self._n_cached[slot_id])
        if not self.keeps_states or not 0 < n_keep <= (self.n_ctx_slot if self.states_alone else n_cached):
            raise BackendError(f"slot {slot_id} holds {n_cached} tokens and cannot go back to {n_keep}")
        lc, seq, flags = self._lc, self._seq_id(slot_id), self._lc.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        library.forget_errors()
        state = self._of_slots(state)
        n_set = lc.llama_state_seq_set_data_ext(self._context, _pointer(state), len(state), seq, flags)
        # Only then the cells behind it can be cut.
        start = self._images.positions.of(slot_id, n_keep)
        back = n_set == len(state) and lc.llama_memory_seq_rm(self._memory, seq, start, -1)
        if not back or lc.llama_memory_seq_pos_max(self._memory, seq) != start - 1:
            self._empty(slot_id)
            raise BackendError(f"slot {slot_id} does not go back to {n_keep} tokens: {library.errors()}")
        self._hold(slot_id, n_keep)

    def _empty(self, slot_id: int) -> None:
        self._lc.llama_memory_seq_rm(self._memory, self._seq_id(slot_id), -1, -1)
        self._hold(slot_id, 0)

    def restore(self, slot_id: int, cells: Sequence[Cells], n_keep: int, state: State | None = None) -> None:
        if self.states_alone and state is not None and not self._n_cached[slot_id]:
            self.restore_state(slot_id, state, n_keep)
            return
        n_cached = int(self._n_cached[slot_id])
        n_saved = sum(map(len, cells)) // self._layout.cell_bytes if self._layout else 0
        fits = 0 < n_keep <= min(n_saved, self.n_ctx_slot) and (state is not None) == self.keeps_states
        if self._layout is None or n_cached or not fits:
            raise BackendError(
                f"slot {slot_id} with {n_cached} tokens gets none of {n_saved}, to keep {n_keep}"
            )
        n_bytes = self._layout.state_bytes(n_keep)
        partial = np.empty(0, np.uint8) if state is None else self._of_slots(state)[_PARTIAL_HEAD:]
        whole = self._room(n_bytes + len(partial))
        self._layout.join(cells, n_keep, whole[:n_bytes])
        whole[n_bytes:] = partial
        try:
            self._write_state(slot_id, whole, n_keep)
        except BackendError:
            self._empty(slot_id)
            raise
        self._n_cached[slot_id] = n_keep

    def _seq_id(self, slot_id: int) -> int:
        return int(self._seq_ids[slot_id])

    def _read_state(self, slot_id: int, at: int = 0, flags: int = 0) -> Cells:
        """Return a slot's state, in memory that the next call uses again, from `at` on.

        `flags` may leave out the cells of layers that keep one per token.
        """
        lc, seq_id = self._lc, self._seq_id(slot_id)
        size = int(lc.llama_state_seq_get_size_ext(self._context, seq_id, flags))
        state = self._room(at + size)[at:]
        if lc.llama_state_seq_get_data_ext(self._context, _pointer(state), size, seq_id, flags) != size:
            raise BackendError(f"slot {slot_id} cannot be read")
        return state

    def _read_cells(self, slot_id: int) -> Cells:
        """Return the part of a slot's state that is cells of layers that keep one per token, likewise.

        Behind these, and two words in front, it has what the state without them has.
        """
        state = self._read_state(slot_id)
        if not self.keeps_states:
            return state
        lc, flags = self._lc, self._lc.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        partial = int(lc.llama_state_seq_get_size_ext(self._context, self._seq_id(slot_id), flags))
        return state[: len(state) - partial + _PARTIAL_HEAD]

    def _write_state(self, slot_id: int, state: Cells, n_tokens: int) -> None:
        library.forget_errors()
        set_data = self._lc.llama_state_seq_set_data
        if set_data(self._context, _pointer(state), len(state), self._seq_id(slot_id)) != len(state):
            raise BackendError(f"slot {slot_id} takes no {n_tokens} saved tokens: {library.errors()}")

    def _room(self, n_bytes: int) -> Cells:
        """Return memory for the states of slots, which the next call uses again."""
        if len(self._state) < n_bytes:
            self._state = np.empty(n_bytes, np.uint8)
        return self._state[:n_bytes]

    def clear(self) -> None:
        self._lc.llama_memory_clear(self._memory, True)
        self._images.positions.clear()
        if self._head is not None:
            self._head.clear()
        self._n_cached[:] = 0
        self._seq_ids.sort()


def _pointer(array: NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
