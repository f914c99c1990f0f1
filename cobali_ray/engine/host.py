"""HostMemory: the cells that the host tier keeps, moved as the scheduler says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

import structlog

from cobali_ray.backend.port import Backend, Cells
from cobali_ray.core import instructions as told
from cobali_ray.core.clock import Clock
from cobali_ray.engine.disk import Disk
from cobali_ray.errors import BackendError

_log = structlog.get_logger(__name__)


class HostMemory:
    """Holds cells by the ids of their blocks. What cannot be moved is noted, to be told."""

    def __init__(self, backend: Backend, clock: Clock, disk: Disk | None = None) -> None:
        self._backend, self._clock, self._disk = backend, clock, disk
        self._cells: dict[int, Cells] = {}
        self._read: Mapping[bytes, Cells] = {}
        """What was read from disk last, by name."""
        self._n_tokens, self._seconds = 0, 0.0
        self._lost: list[int] = []
        self._empty: dict[int, Sequence[int]] = {}
        """Slots that could not be filled, and with which blocks."""

    def carry_out(self, instructions: Sequence[told.Instruction]) -> None:
        """Do those that are about cells, in slots, here and on disk."""
        for one in instructions:
            match one:
                case told.Truncate(slot_id, n_keep):
                    self._empty.pop(slot_id, None)
                    self._backend.truncate(slot_id, n_keep)
                case told.Copy(donor_id, slot_id, n_keep):
                    if donor_id in self._empty:  # it could not be filled itself
                        self._empty[slot_id] = ()
                    else:
                        self._backend.copy(donor_id, slot_id, n_keep)
                case told.Swap(slot_id, other_id, n_cells):
                    began_s = self._clock.now()
                    self._backend.swap(slot_id, other_id)
                    self._took(2 * n_cells, began_s)
                case told.Save():
                    self._save(one)
                case told.Restore():
                    self._restore(one)
                case told.Forget(block_ids):
                    for block_id in block_ids:
                        self._cells.pop(block_id, None)  # what could not be saved is not here
                case told.Hold(blocks):
                    self._cells.update((block_id, self._read[name]) for block_id, name in blocks)
                case told.Store(blocks) if self._disk is not None:  # up to the first that could not be saved
                    known = takewhile(lambda block: block[0] in self._cells, blocks)
                    self._disk.store([(name, self._cells[block_id]) for block_id, name in known])
                case told.Load() if self._disk is not None:
                    self._disk.load(one)
                case told.Clear():
                    self._read = {}
                    self._cells.clear()
                    self._empty.clear()
                    self._backend.clear()

    def receive(self, cells: Mapping[bytes, Cells]) -> None:
        """Take what was read from disk, until the next call."""
        self._read = cells

    def _save(self, one: told.Save) -> None:
        began_s = self._clock.now()
        try:
            saved = self._backend.save(one.slot_id, [span[1:] for span in one.blocks])
        except (BackendError, MemoryError) as error:
            _log.warning("cells_not_saved", slot_id=one.slot_id, error=str(error))
            self._lost += [block_id for block_id, *_ in one.blocks]
        else:
            self._cells.update((span[0], cells) for span, cells in zip(one.blocks, saved, strict=True))
        self._took(one.blocks[-1][2], began_s)

    def _restore(self, one: told.Restore) -> None:
        began_s = self._clock.now()
        try:
            cells = [self._cells[block_id] for block_id in one.block_ids]
            self._backend.restore(one.slot_id, cells, one.n_keep)
        except (BackendError, MemoryError, KeyError) as error:
            _log.warning("cells_not_restored", slot_id=one.slot_id, error=repr(error))
            self._empty[one.slot_id] = one.block_ids
        self._took(one.n_keep, began_s)

    def moved(self) -> told.Moved | None:
        """Return what was moved since the last call, if anything."""
        if not self._n_tokens:
            return None
        event = told.Moved(self._n_tokens, self._seconds, self._lost)
        self._n_tokens, self._seconds, self._lost = 0, 0.0, []
        return event

    def unrestored(self) -> told.Unrestored | None:
        """Return which slots could not be filled since the last call, if any."""
        if not self._empty:
            return None
        blocks = [block_id for block_ids in self._empty.values() for block_id in block_ids]
        event = told.Unrestored(list(self._empty), blocks, self._clock.now())
        self._empty = {}
        return event

    def _took(self, n_tokens: int, began_s: float) -> None:
        self._n_tokens += n_tokens
        self._seconds += self._clock.now() - began_s
