"""HostMemory: moves cells between slots, host memory and the disk, as the scheduler instructs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

import structlog

from cobali_ray.backend.port import Backend, Cells, State
from cobali_ray.core import messages
from cobali_ray.core.clock import Clock
from cobali_ray.engine.disk import Disk
from cobali_ray.errors import BackendError

_log = structlog.get_logger(__name__)


class HostMemory:
    """Holds cells by the ids of their blocks. What could not be moved is reported afterwards."""

    def __init__(self, backend: Backend, clock: Clock, disk: Disk | None = None) -> None:
        self._backend, self._clock, self._disk = backend, clock, disk
        self._cells: dict[int, Cells] = {}
        self._read: Mapping[bytes, Cells] = {}
        """What was read from disk last, by name."""
        self._n_tokens, self._seconds = 0, 0.0
        self._lost: list[int] = []
        self._states: dict[int, State] = {}
        """Saved states, by id."""
        self._n_states, self._states_s = 0, 0.0
        self._lost_states: list[int] = []
        self._empty: dict[int, Sequence[int]] = {}
        """Slots that could not be filled, and with which blocks."""

    def carry_out(self, instructions: Sequence[messages.Instruction]) -> None:
        """Carry out the instructions about cells, in slots, here and on disk."""
        for one in instructions:
            match one:
                case messages.Truncate(slot_id, n_keep):
                    self._empty.pop(slot_id, None)
                    self._backend.truncate(slot_id, n_keep)
                case messages.SaveState():
                    self._save_state(one)
                case messages.RestoreState():
                    self._restore_state(one)
                case messages.ForgetStates(state_ids):
                    for state_id in state_ids:
                        self._states.pop(state_id, None)
                case messages.Copy(donor_id, slot_id, n_keep):
                    if donor_id in self._empty:  # it could not be filled itself
                        self._empty[slot_id] = ()
                    else:
                        self._backend.copy(donor_id, slot_id, n_keep)
                case messages.Swap(slot_id, other_id, n_cells):
                    began_s = self._clock.now()
                    self._backend.swap(slot_id, other_id)
                    self._took(2 * n_cells, began_s)
                case messages.Save():
                    self._save(one)
                case messages.Restore():
                    self._restore(one)
                case messages.Forget(block_ids):
                    for block_id in block_ids:
                        self._cells.pop(block_id, None)  # what could not be saved is not here
                case messages.Hold(blocks, states):
                    self._cells.update((block_id, self._read[name]) for block_id, name in blocks)
                    self._states.update((state_id, self._read[name]) for state_id, name in states)
                case messages.StoreBlocks(blocks) if (
                    self._disk is not None
                ):  # up to the first that could not be saved
                    known = takewhile(lambda block: block[0] in self._cells, blocks)
                    self._disk.store([(name, self._cells[block_id]) for block_id, name in known])
                case messages.StoreState() if self._disk is not None:
                    self._store_state(one, self._disk)
                case messages.BackUp() if self._disk is not None:
                    self._back_up(one, self._disk)
                case messages.LoadBlocks() if self._disk is not None:
                    self._disk.load(one)
                case messages.Clear():
                    self._read = {}
                    self._cells.clear()
                    self._states.clear()
                    self._empty.clear()
                    self._backend.clear()

    def receive(self, cells: Mapping[bytes, Cells]) -> None:
        """Take cells from the disk or a file, until the next call."""
        self._read = cells

    def state(self, state_id: int) -> State | None:
        """Return a saved state; None for one that could not be saved."""
        return self._states.get(state_id)

    def _store_state(self, one: messages.StoreState, disk: Disk) -> None:
        if one.state_id in self._states:
            tails = [] if one.tail is None or one.tail[0] not in self._cells else [one.tail]
            cells = [(name, self._cells[block_id]) for block_id, name in tails]
            disk.store([*cells, (one.name, self._states[one.state_id])], one.depth)

    def _back_up(self, one: messages.BackUp, disk: Disk) -> None:
        parts = [part for _, run in one.runs for part in run]
        spans = {part.name: part.cells for part in parts if part.cells is not None}
        data = {part.name: self._states.get(part.state_id) for part in parts if part.state_id is not None}
        if spans:
            began_s = self._clock.now()
            try:
                data.update(zip(spans, self._backend.save(one.slot_id, [*spans.values()]), strict=True))
            except (BackendError, MemoryError) as error:
                _log.warning("cells_not_saved", slot_id=one.slot_id, error=str(error))
            self._took(one.n_tokens, began_s)
        for depth, run in one.runs:
            disk.store([(part.name, data.get(part.name)) for part in run], depth)

    def _save(self, one: messages.Save) -> None:
        began_s = self._clock.now()
        try:
            saved = self._backend.save(one.slot_id, [span[1:] for span in one.blocks])
        except (BackendError, MemoryError) as error:
            _log.warning("cells_not_saved", slot_id=one.slot_id, error=str(error))
            self._lost += [block_id for block_id, *_ in one.blocks]
        else:
            self._cells.update((span[0], cells) for span, cells in zip(one.blocks, saved, strict=True))
        self._took(max([end for *_, end in one.blocks]), began_s)

    def _restore(self, one: messages.Restore) -> None:
        began_s = self._clock.now()
        try:
            cells = [self._cells[block_id] for block_id in one.block_ids]
            state = None if one.state_id is None else self._states[one.state_id]
            self._backend.restore(one.slot_id, cells, one.n_keep, state)
        except (BackendError, MemoryError, KeyError) as error:
            _log.warning("cells_not_restored", slot_id=one.slot_id, error=repr(error))
            self._empty[one.slot_id] = one.block_ids
            if one.state_id is not None:
                self._lost_states.append(one.state_id)
        self._took(one.n_keep, began_s)

    def _save_state(self, one: messages.SaveState) -> None:
        began_s = self._clock.now()
        try:
            self._states[one.state_id] = self._backend.save_state(one.slot_id, one.n_tokens)
        except (BackendError, MemoryError) as error:
            _log.warning("state_not_saved", slot_id=one.slot_id, error=str(error))
            self._lost_states.append(one.state_id)
        self._took_state(began_s)

    def _restore_state(self, one: messages.RestoreState) -> None:
        if one.slot_id in self._empty:  # its donor could not be filled
            return
        began_s = self._clock.now()
        try:
            self._backend.restore_state(one.slot_id, self._states[one.state_id], one.n_keep)
        except (BackendError, MemoryError, KeyError) as error:
            _log.warning("state_not_restored", slot_id=one.slot_id, error=repr(error))
            self._backend.truncate(one.slot_id, 0)
            self._empty[one.slot_id] = ()
            self._lost_states.append(one.state_id)
        self._took_state(began_s)

    def moved(self) -> Iterator[messages.Moved | messages.StatesMoved]:
        """Yield the results of moving cells and states since the last call."""
        if self._n_tokens:
            cells = messages.Moved(self._n_tokens, self._seconds, self._lost)
            self._n_tokens, self._seconds, self._lost = 0, 0.0, []
            yield cells
        if self._n_states or self._lost_states:
            states = messages.StatesMoved(max(self._n_states, 1), self._states_s, self._lost_states)
            self._n_states, self._states_s, self._lost_states = 0, 0.0, []
            yield states

    def unrestored(self) -> messages.Unrestored | None:
        """Return the slots that could not be restored since the last call, if any."""
        if not self._empty:
            return None
        blocks = [block_id for block_ids in self._empty.values() for block_id in block_ids]
        event = messages.Unrestored(list(self._empty), blocks, self._clock.now())
        self._empty = {}
        return event

    def _took_state(self, began_s: float) -> None:
        self._n_states += 1
        self._states_s += self._clock.now() - began_s

    def _took(self, n_tokens: int, began_s: float) -> None:
        self._n_tokens += n_tokens
        self._seconds += self._clock.now() - began_s
