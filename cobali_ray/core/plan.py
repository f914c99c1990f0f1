"""Which tokens enter the next forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

from cobali_ray.core.limits import EngineLimits


class Span(NamedTuple):
    """Tokens `start .. start + length` of one slot in one tick."""

    slot_id: int
    start: int
    length: int
    sample: bool
    """Whether the logits of its last token are wanted."""


class SlotView(Protocol):
    """What planning needs of a busy slot."""

    @property
    def slot_id(self) -> int: ...
    @property
    def n_computed(self) -> int: ...
    @property
    def n_pending(self) -> int: ...
    @property
    def n_passed(self) -> int: ...
    @property
    def n_output(self) -> int: ...
    @property
    def decoding(self) -> bool: ...


def plan_tick(slots: Iterable[SlotView], limits: EngineLimits) -> tuple[Span, ...]:
    """Share one tick's token budget among the busy slots, given oldest assignment first.

    Decoding slots go first, one token each, so a long prompt cannot stall a running stream; prefill
    chunks take what is left (Sarathi-Serve, OSDI '24), in the order that `prefill_order` names. At most
    one span per slot. The spans come back in ascending slot order, because split KV puts only
    consecutive ascending sequences into one forward pass.
    """
    spans: list[Span] = []
    prefilling: list[SlotView] = []
    for slot in slots:
        if slot.decoding:
            spans.append(Span(slot.slot_id, slot.n_computed, 1, True))
        elif slot.n_pending:
            prefilling.append(slot)
    if prefilling:
        prefilling = order_prefill(prefilling, limits, limits.token_budget - len(spans))
        spans += _chunks(prefilling, limits.prefill_chunk, limits.token_budget - len(spans))
    spans.sort()
    return tuple(spans)


def order_prefill(slots: list[SlotView], limits: EngineLimits, budget: int) -> list[SlotView]:
    """Order the prompts that share `budget` tokens, as `prefill_order` says; `slots` is oldest first.

    shortest: least left to compute first, so that a short prompt need not wait behind a long one. The
    tokens that others were given meanwhile (`n_passed`) count as if computed, so that nobody waits for
    more than about its own length.
    """
    if limits.prefill_order == "packed":
        return pack(slots, limits.prefill_chunk, budget)
    if limits.prefill_order == "shortest" and len(slots) > 1:
        return sorted(slots, key=lambda slot: slot.n_pending - slot.n_passed)
    return slots


def _chunks(slots: Sequence[SlotView], chunk: int, budget: int) -> Iterable[Span]:
    for slot in slots:
        if budget <= 0:
            return
        pending = slot.n_pending
        length = piece(pending, min(chunk, budget))
        budget -= length
        yield Span(slot.slot_id, slot.n_computed, length, length == pending)


def piece(pending: int, most: int) -> int:
    """Return how many of `pending` tokens to compute, at most `most`, never leaving exactly one.

    llama.cpp computes a single token by another kernel, which rounds differently: a prompt that ends in
    a chunk of one token would not get the answer it gets when computed whole.
    """
    length = min(pending, most)
    return length - 1 if pending - length == 1 and length > 1 else length


def pack(slots: Sequence[SlotView], chunk: int, budget: int) -> list[SlotView]:
    """Order prompts so that one tick is filled as full as whole prompts can fill it.

    First-fit decreasing: what Prepacking (arXiv 2404.09529) gains by bins is, on a runtime whose batches
    are ragged anyway, only the order in which whole prompts take the budget. The oldest prompt keeps
    its place in front, so that none starves behind a flow of well-fitting ones; prompts that do not
    fit whole follow in their old order and take the rest in pieces.
    """
    oldest, *others = slots
    left = budget - min(oldest.n_pending, chunk)
    whole: list[SlotView] = []
    for slot in sorted(others, key=attrgetter("n_pending"), reverse=True):
        if slot.n_pending <= min(left, chunk):
            whole.append(slot)
            left -= slot.n_pending
    chosen = {slot.slot_id for slot in whole}
    return [oldest, *whole, *(slot for slot in others if slot.slot_id not in chosen)]
