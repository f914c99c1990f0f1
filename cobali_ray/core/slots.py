"""SlotTable: who holds which slot, and what idle slots still hold."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq

from cobali_ray.core.lifecycle import Status
from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.plan import Span
from cobali_ray.core.prefix import Place, choose_slot
from cobali_ray.core.sequence import NO_SLOT, Sequence
from cobali_ray.errors import InvariantError

_NOTHING: array[int] = array("i")


class SlotTable:
    """The books of the KV cache: every cell belongs to a running sequence, an idle prefix or nobody."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self.running: list[Sequence] = []
        """Oldest assignment first."""
        self.by_slot: list[Sequence | None] = [None] * limits.n_slots
        self._held: list[array[int]] = [_NOTHING] * limits.n_slots
        """Tokens that each idle slot still holds; empty for a busy one."""
        self._idle: dict[int, None] = dict.fromkeys(range(limits.n_slots))
        """Idle slots, longest idle first."""
        self.n_cells_running = 0
        """KV cells of running sequences."""
        self.n_cells_idle = 0
        """KV cells held by idle slots for prefix reuse."""

    @property
    def n_idle(self) -> int:
        """Slots without a request."""
        return len(self._idle)

    def n_short(self, n_tokens: int) -> int:
        """Return how many cells `n_tokens` need beyond those that are free; negative or 0 if they fit."""
        return n_tokens + self.n_cells_running + self.n_cells_idle - self._limits.n_cells

    def advance(self, sequences: Seq[Sequence], plan: Seq[Span]) -> None:
        """Note that the spans of `plan` are being computed; `sequences[i]` is that of `plan[i]`."""
        for sequence, span in zip(sequences, plan, strict=True):
            sequence.n_computed += span.length
            sequence.n_in_flight = int(span.sample)
            self.n_cells_running += span.length

    def advance_decoding(self, sequences: Seq[Sequence]) -> None:
        """Note that the last token of each of these is being computed; the next one is in flight."""
        for sequence in sequences:
            sequence.n_computed += 1
            sequence.n_in_flight = 1
        self.n_cells_running += len(sequences)

    def fits(self, sequence: Sequence) -> bool:
        """Say whether a waiting sequence can get a slot now.

        Its known tokens must fit beside all tokens known of the running ones, with one cell of growth
        for each, so that only decode growth ever preempts. Idle prefixes count as free: they are dropped.
        """
        if not self._idle:
            return False
        committed = sum([s.n_known for s in self.running])
        return committed + len(self.running) + sequence.n_known <= self._limits.n_cells

    def place(self, sequence: Sequence) -> Place:
        """Choose an idle slot for a sequence; see `choose_slot`."""
        held = self._held
        return choose_slot(sequence.tokens, [(i, held[i]) for i in self._idle], self._limits.min_prefix)

    def assign(self, sequence: Sequence, place: Place) -> None:
        """Give the slot to the sequence, which starts from the tokens kept there."""
        if place.slot_id not in self._idle:
            raise InvariantError(f"slot {place.slot_id} is not idle")
        del self._idle[place.slot_id]
        self.n_cells_idle -= len(self._held[place.slot_id])
        self.n_cells_running += place.n_keep
        self._held[place.slot_id] = _NOTHING
        self.by_slot[place.slot_id] = sequence
        sequence.slot_id, sequence.n_computed = place.slot_id, place.n_keep
        self.running.append(sequence)

    def release(self, sequence: Sequence, *, n_keep: int) -> int:
        """Take the slot back, keeping its first `n_keep` tokens for reuse; return the slot's id."""
        slot_id = sequence.slot_id
        if slot_id == NO_SLOT or self.by_slot[slot_id] is not sequence:
            raise InvariantError(f"request {sequence.request_id} holds no slot")
        self.running.remove(sequence)
        self.by_slot[slot_id] = None
        self._held[slot_id] = sequence.tokens[:n_keep] if n_keep else _NOTHING
        self._idle[slot_id] = None
        self.n_cells_running -= sequence.n_computed
        self.n_cells_idle += len(self._held[slot_id])
        sequence.slot_id, sequence.n_computed, sequence.n_in_flight = NO_SLOT, 0, 0
        return slot_id

    def drop_idle(self) -> int | None:
        """Forget the prefix that lay idle longest; return its slot, or None if no slot holds one."""
        for slot_id in self._idle:
            if self._held[slot_id]:
                self.n_cells_idle -= len(self._held[slot_id])
                self._held[slot_id] = _NOTHING
                return slot_id
        return None

    def youngest(self) -> Sequence | None:
        """Return the sequence to preempt: the one assigned last, never the only one."""
        return self.running[-1] if len(self.running) > 1 else None

    def check(self) -> None:
        """Prove that the books balance. Raises InvariantError."""
        busy = [i for i, s in enumerate(self.by_slot) if s is not None]
        problems = []
        if sorted(busy + list(self._idle)) != list(range(self._limits.n_slots)):
            problems.append("a slot is neither busy nor idle, or both")
        if sorted(s.slot_id for s in self.running) != busy:
            problems.append("running sequences and busy slots differ")
        if any(self._held[i] for i in busy):
            problems.append("a busy slot holds an idle prefix")
        for s in self.running:
            if self.by_slot[s.slot_id] is not s or s.status is not Status.RUNNING:
                problems.append(f"request {s.request_id} and its slot disagree")
            if not 0 <= s.n_computed <= s.n_known or s.n_known > self._limits.n_most:
                problems.append(f"request {s.request_id} has {s.n_computed} of {s.n_known} tokens computed")
        if self.n_cells_running != sum(s.n_computed for s in self.running):
            problems.append("the cells of running sequences are miscounted")
        if self.n_cells_idle != sum(map(len, self._held)):
            problems.append("the cells of idle prefixes are miscounted")
        if self.n_cells_running + self.n_cells_idle > self._limits.n_cells:
            problems.append("more cells used than there are")
        if problems:
            raise InvariantError("; ".join(problems))
