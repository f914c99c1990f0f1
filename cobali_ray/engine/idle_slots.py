"""IdleSlots: what idle slots hold, taken out and put in from outside, between two ticks."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from cobali_ray.backend.port import Backend, Cells
from cobali_ray.core import instructions as messages
from cobali_ray.core.cache.placement import SlotContents
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.errors import (
    BackendError,
    InvalidParameterError,
    SlotBusyError,
    SlotFileError,
    SlotFilesOffError,
)


class IdleSlots:
    """The slots in which no request is, with their cells. Everything here raises BadRequestError."""

    def __init__(
        self, scheduler: Scheduler, backend: Backend, tell: Callable[[messages.Event], None]
    ) -> None:
        """`tell` has the scheduler hear what happened, and does what it says."""
        self._scheduler, self._limits = scheduler, scheduler.limits
        self._backend, self._tell = backend, tell

    def take_out(self, slot_id: int) -> tuple[SlotContents, Cells]:
        """Return what a slot holds, and a copy of its cells."""
        held = self._held(slot_id)
        if not held.n_tokens:
            raise InvalidParameterError("id_slot", f": slot {slot_id} holds nothing")
        if min(held.tokens[: held.n_tokens]) < 0:  # nothing says which projector made them
            raise InvalidParameterError("id_slot", f": slot {slot_id} holds an image, which cannot be saved")
        if not self._limits.cell_bytes or self._limits.state_bytes:
            raise SlotFilesOffError
        (cells,) = self._backend.save(slot_id, [(0, held.n_tokens)])
        return held, cells

    def put_in(self, slot_id: int, tokens: array[int], salt: str, cells: Cells) -> None:
        """Have a slot hold these tokens with these cells, in place of what it held."""
        self._held(slot_id)
        n, limits = len(tokens), self._limits
        if not limits.cell_bytes or limits.state_bytes:
            raise SlotFilesOffError
        if n > limits.n_ctx_slot or not 0 <= min(tokens) <= max(tokens) < self._backend.n_vocab:
            raise SlotFileError(f"its {n} tokens are not for a slot of {limits.n_ctx_slot}")
        if n + self._scheduler.slots.n_used_running() > limits.n_cells:
            raise SlotBusyError(slot_id, f"there is no room for {n} tokens beside the running requests")
        self._tell(messages.Filled(slot_id, tokens, salt))
        try:
            self._backend.restore(slot_id, [cells], n)
        except BackendError as error:
            self._tell(messages.Emptied(slot_id))
            raise SlotFileError(f"the cache does not take it: {error}") from error

    def erase(self, slot_id: int) -> int:
        """Have a slot hold nothing; return how many tokens it held."""
        held = self._held(slot_id)
        self._tell(messages.Emptied(slot_id))
        return held.n_tokens

    def _held(self, slot_id: int) -> SlotContents:
        if not 0 <= slot_id < self._limits.n_slots:
            raise InvalidParameterError("id_slot", f": there is no slot {slot_id}")
        if self._scheduler.slots.by_slot[slot_id] is not None:
            raise SlotBusyError(slot_id, "a request is in it")
        return self._scheduler.slots.held(slot_id)
