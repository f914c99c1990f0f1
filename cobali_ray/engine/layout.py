"""Layout: the tokens of the next forward pass, planned and laid out in a batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.select import Chosen, Requests, Selector
from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.pace import Pacer
from cobali_ray.core.plan import Span
from cobali_ray.core.sequence import Sequence
from cobali_ray.core.slots import SlotTable
from cobali_ray.core.spans import TickSpans
from cobali_ray.core.ticktime import Shape
from cobali_ray.engine.record import shape_of
from cobali_ray.engine.table import RequestTable


class Pass(NamedTuple):
    """One forward pass, laid out."""

    batch: TickBatch
    sequences: list[Sequence]
    """Who takes part, in the batch's order."""
    slots: NDArray[np.intp] | None
    """Their slots, where all of them decode; None where the spans say who does what."""
    chosen: Chosen | None = None
    """The selector's answer, where all of them decode."""

    @property
    def n_tokens(self) -> int:
        """Tokens to compute; 0 where there is nothing to do."""
        return self.batch.n_tokens

    def rows(self) -> list[Sequence]:
        """Return whose next token the pass gives."""
        if self.slots is not None:
            return self.sequences
        return [s for s, span in zip(self.sequences, self.batch.spans, strict=True) if span.sample]


class Layout:
    """Plans passes and lays them out in two input buffers that take turns.

    Where everybody decodes, a Selector chooses from the table and its answer is the batch; a pass with
    prefill is planned span by span. Both give the same plan, in slot order.
    """

    def __init__(
        self, limits: EngineLimits, pacer: Pacer, selector: Selector, slots: SlotTable, n_batch: int
    ) -> None:
        self._limits, self._pacer, self._selector = limits, pacer, selector
        self._batches = (TickBatch(n_batch), TickBatch(n_batch))
        self._ahead: Pass | None = None
        self.start_over(slots)

    def start_over(self, slots: SlotTable) -> None:
        """Begin with an empty table of slots."""
        self._slots, self.table = slots, RequestTable(self._limits.n_slots)

    def now(self) -> Pass:
        """Plan a pass and lay it out in the first input buffer."""
        if self._slots.running and not self.table.prefilling:
            return self._place(self._batches[0], self.table.requests)
        plan = self._pacer.plan(self._slots.running, self._limits)
        return self._fill(self._batches[0], plan)

    def ahead(self) -> None:
        """Lay out the next batch while this one computes, as if every stream went on."""
        batch = self._batches[1]
        if not self.table.prefilling:
            ahead = self._place(batch, self.table.ahead())
        else:
            going_on = [
                s
                for s in self._slots.running
                if not s.status.ended and s.n_output + s.n_in_flight < s.request.max_tokens
            ]
            ahead = self._fill(batch, self._pacer.plan(going_on, self._limits))
        if ahead.n_tokens and self._slots.n_short(ahead.n_tokens) <= 0:
            self._ahead = ahead

    def forget_ahead(self) -> None:
        """Throw away what was laid out ahead: somebody came or left."""
        self._ahead = None

    def take_ahead(self) -> Pass | None:
        """Return the batch laid out ahead, if it still holds, with the tokens sampled since."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        self._batches = self._batches[::-1]
        batch = ahead.batch
        if ahead.slots is not None:
            batch.token[: batch.n_tokens] = self.table.tokens(ahead.slots)
            return ahead
        at, rows, values = -1, [], []
        for sequence, span in zip(ahead.sequences, batch.spans, strict=True):
            at += span.length
            if sequence.decoding:
                rows.append(at)
                values.append(sequence.tokens[-1])
        batch.patch(rows, values)
        return ahead

    def begin(self, now: Pass) -> Shape:
        """Tell the pacer which pass is computed next; return its shape."""
        if now.slots is None:
            shape = shape_of(now.batch.spans, now.sequences, self._slots.running)
        else:  # everybody who runs is in it: the budget has a token for each slot
            shape = Shape(now.n_tokens, self._slots.n_cells_running, ())
        self._pacer.begin(shape, self._limits.n_slots)
        return shape

    def spans(self, now: Pass) -> TickSpans:
        """Return who computes what in a pass, for those who look on; called before it is computed."""
        if now.chosen is not None:
            return TickSpans(slot_ids=now.chosen.slot_id, starts=now.chosen.position)
        return TickSpans(now.batch.spans, frozenset(self.table.prefilling))

    def computed(self, now: Pass) -> None:
        """Note in sequences, books and table what the pass computes."""
        if now.slots is not None:
            self._slots.advance_decoding(now.sequences)
            self.table.advance(now.slots)
            return
        self._slots.advance(now.sequences, now.batch.spans)
        decoding = []
        for sequence in now.sequences:
            if sequence.slot_id in self.table.prefilling:
                self.table.renew(sequence)
            else:
                decoding.append(sequence.slot_id)
        if decoding:
            self.table.advance(decoding)

    def sampled(self, now: Pass, rows: list[Sequence], tokens: list[int]) -> None:
        """Note in the table what was sampled; the sequences are told one by one, by the engine."""
        slots = [sequence.slot_id for sequence in rows] if now.slots is None else now.slots
        self.table.sampled(slots, tokens)

    def _choose(self, requests: Requests) -> Chosen:
        if self._limits.n_slots == 1:
            return self._selector.sequential(requests)
        return self._selector.continuous(requests, self._limits.token_budget)

    def _place(self, batch: TickBatch, requests: Requests) -> Pass:
        self._pacer.plan_decode()
        chosen = self._choose(requests)
        batch.place(chosen)
        slots = chosen.slot_id.astype(np.intp)
        return Pass(batch, self._sequences(slots.tolist()), slots, chosen)

    def _fill(self, batch: TickBatch, plan: tuple[Span, ...]) -> Pass:
        sequences = self._sequences([span.slot_id for span in plan])
        batch.fill(plan, [sequence.tokens for sequence in sequences])
        return Pass(batch, sequences, None)

    def _sequences(self, slot_ids: list[int]) -> list[Sequence]:
        by_slot = self._slots.by_slot
        return [sequence for i in slot_ids if (sequence := by_slot[i]) is not None]
