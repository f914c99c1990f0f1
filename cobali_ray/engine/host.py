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
        for instruction in instructions:
            match instruction:
                case messages.Truncate(slot_id, n_keep):
                    self._empty.pop(slot_id, None)
                    self._backend.truncate(slot_id, n_keep)
                case messages.SaveState():
                    self._save_state(instruction)
                case messages.RestoreState():
                    self._restore_state(instruction)
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
                    self._save(instruction)
                case messages.Restore():
                    self._restore(instruction)
                case messages.Forget(block_ids):
                    for block_id in block_ids:
                        self._cells.pop(block_id, None)  # what could not be saved is not here
                case messages.Hold(blocks, states):
                    self._cells.update((block_id, self._read[name]) for block_id, name in blocks)
                    self._states.update((state_id, self._read[name]) for state_id, name in states)
                case messages.StoreBlocks(blocks) if (
                    self._disk is not None
                ):  # up to the first that could not be saved
                    saved = takewhile(lambda block: block[0] in self._cells, blocks)
                    self._disk.store([(name, self._cells[block_id]) for block_id, name in saved])
                case messages.StoreState() if self._disk is not None:
                    self._store_state(instruction, self._disk)
                case messages.BackUp() if self._disk is not None:
                    self._back_up(instruction, self._disk)
                case messages.LoadBlocks() if self._disk is not None:
                    self._disk.load(instruction)
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

    def _store_state(self, store: messages.StoreState, disk: Disk) -> None:
        if store.state_id in self._states:
            tails = [] if store.tail is None or store.tail[0] not in self._cells else [store.tail]
            cells = [(name, self._cells[block_id]) for block_id, name in tails]
            disk.store([*cells, (store.name, self._states[store.state_id])], store.depth)

    def _back_up(self, backup: messages.BackUp, disk: Disk) -> None:
        parts = [part for _, run in backup.runs for part in run]
        spans = {part.name: part.cells for part in parts if part.cells is not None}
        data = {part.name: self._states.get(part.state_id) for part in parts if part.state_id is not None}
        if spans:
            began_s = self._clock.now()
            try:
                data.update(zip(spans, self._backend.save(backup.slot_id, [*spans.values()]), strict=True))
            except (BackendError, MemoryError) as error:
                _log.warning("cells_not_saved", slot_id=backup.slot_id, error=str(error))
            self._took(backup.n_tokens, began_s)
        for depth, run in backup.runs:
            disk.store([(part.name, data.get(part.name)) for part in run], depth)

    def _save(self, save: messages.Save) -> None:
        began_s = self._clock.now()
        try:
            saved = self._backend.save(save.slot_id, [span[1:] for span in save.blocks])
        except (BackendError, MemoryError) as error:
            _log.warning("cells_not_saved", slot_id=save.slot_id, error=str(error))
            self._lost += [block_id for block_id, *_ in save.blocks]
        else:
            self._cells.update((span[0], cells) for span, cells in zip(save.blocks, saved, strict=True))
        self._took(max([end for *_, end in save.blocks]), began_s)

    def _restore(self, restore: messages.Restore) -> None:
        began_s = self._clock.now()
        try:
            cells = [self._cells[block_id] for block_id in restore.block_ids]
            state = None if restore.state_id is None else self._states[restore.state_id]
            self._backend.restore(restore.slot_id, cells, restore.n_keep, state)
        except (BackendError, MemoryError, KeyError) as error:
            _log.warning("cells_not_restored", slot_id=restore.slot_id, error=repr(error))
            self._empty[restore.slot_id] = restore.block_ids
            if restore.state_id is not None:
                self._lost_states.append(restore.state_id)
        self._took(restore.n_keep, began_s)

    def _save_state(self, save: messages.SaveState) -> None:
        began_s = self._clock.now()
        try:
            self._states[save.state_id] = self._backend.save_state(save.slot_id, save.n_tokens)
        except (BackendError, MemoryError) as error:
            _log.warning("state_not_saved", slot_id=save.slot_id, error=str(error))
            self._lost_states.append(save.state_id)
        self._took_state(began_s)

    def _restore_state(self, restore: messages.RestoreState) -> None:
        if restore.slot_id in self._empty:  # its donor could not be filled
            return
        began_s = self._clock.now()
        try:
            self._backend.restore_state(restore.slot_id, self._states[restore.state_id], restore.n_keep)
        except (BackendError, MemoryError, KeyError) as error:
            _log.warning("state_not_restored", slot_id=restore.slot_id, error=repr(error))
            self._backend.truncate(restore.slot_id, 0)
            self._empty[restore.slot_id] = ()
            self._lost_states.append(restore.state_id)
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
