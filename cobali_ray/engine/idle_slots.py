"""IdleSlots: what idle slots hold, read and replaced between two ticks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cobali_ray.backend.port import Backend, Cells, State
from cobali_ray.core import messages
from cobali_ray.core.cache.placement import SlotContents
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.engine.host import HostMemory
from cobali_ray.errors import (
    BackendError,
    InvalidParameterError,
    SlotBusyError,
    SlotFileError,
    SlotFilesOffError,
)


class KeptSlot(NamedTuple):
    """What an idle slot held."""

    tokens: array[int]
    salt: str
    cells: Sequence[Cells]
    """The cells of all these tokens, if the model has any."""
    states: Sequence[tuple[int, State]]
    """States by the number of tokens before them, ascending; the last one, if any, is after all tokens."""


class IdleSlots:
    """The slots without a request, with their cells. All methods raise BadRequestError."""

    def __init__(
        self,
        scheduler: Scheduler,
        backend: Backend,
        host: HostMemory,
        tell: Callable[[messages.Event], None],
    ) -> None:
        """`tell` passes an event to the scheduler, and carries out its instructions."""
        self._scheduler, self._limits = scheduler, scheduler.limits
        self._backend, self._host, self._tell = backend, host, tell

    def take_out(self, slot_id: int) -> KeptSlot:
        """Return a copy of what a slot holds, and of the states along it."""
        held = self._held(slot_id)
        if not held.n_tokens:
            raise InvalidParameterError("id_slot", f": slot {slot_id} holds nothing")
        tokens, n, salt = held.tokens[: held.n_tokens], held.n_tokens, held.salt or ""
        if min(tokens) < 0:  # nothing says which projector made them
            raise InvalidParameterError("id_slot", f": slot {slot_id} holds an image, which cannot be saved")
        self._require()
        states: list[tuple[int, State]] = []
        if self._limits.state_bytes:
            saved = self._scheduler.tiers.states.find(tokens, n - 1, salt)
            kept = [(entry.n, self._host.state(entry.state_id)) for entry in saved]
            states = [(at, state) for at, state in kept if state is not None]
        try:
            cells = [] if self._limits.states_alone else self._backend.save(slot_id, [(0, n)])
            if self._limits.state_bytes:
                states.append((n, self._backend.save_state(slot_id, n)))
        except (BackendError, MemoryError) as error:
            raise SlotFileError(f"slot {slot_id} cannot be copied: {error!r}") from error
        return KeptSlot(tokens, salt, cells, states)

    def put_in(self, slot_id: int, kept: KeptSlot) -> None:
        """Fill a slot with these tokens, in place of what it held."""
        self._held(slot_id)
        self._require()
        tokens, n, limits = kept.tokens, len(kept.tokens), self._limits
        if n > limits.n_ctx_slot or not 0 <= min(tokens) <= max(tokens) < self._backend.n_vocab:
            raise SlotFileError(f"its {n} tokens are not for a slot of {limits.n_ctx_slot}")
        if n + self._scheduler.slots.n_used_running() > limits.n_cells:
            raise SlotBusyError(slot_id, f"there is no room for {n} tokens beside the running requests")
        names = {b"%d" % at: state for at, state in kept.states}
        self._host.receive(names)
        self._tell(messages.Filled(slot_id, tokens, kept.salt, [(int(name), name) for name in names]))
        try:
            self._backend.restore(slot_id, kept.cells, n, dict(kept.states).get(n))
        except (BackendError, MemoryError) as error:
            self._tell(messages.Emptied(slot_id))
            raise SlotFileError(f"the cache does not take it: {error}") from error

    def _require(self) -> None:
        if not (self._limits.cell_bytes or self._limits.states_alone):
            raise SlotFilesOffError

    def erase(self, slot_id: int) -> int:
        """Empty a slot; return how many tokens it held."""
        held = self._held(slot_id)
        self._tell(messages.Emptied(slot_id))
        return held.n_tokens

    def _held(self, slot_id: int) -> SlotContents:
        if not 0 <= slot_id < self._limits.n_slots:
            raise InvalidParameterError("id_slot", f": there is no slot {slot_id}")
        if self._scheduler.slots.by_slot[slot_id] is not None:
            raise SlotBusyError(slot_id, "a request is in it")
        return self._scheduler.slots.held(slot_id)
