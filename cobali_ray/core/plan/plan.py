"""Which tokens enter the next forward pass."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from types import MappingProxyType
from typing import NamedTuple

from cobali_ray.core.cost.runs import Row, cells_of, runs_of
from cobali_ray.core.queue.fair import yields
from cobali_ray.core.request.limits import MIN_SCORED_ROWS, EngineLimits, Grain
from cobali_ray.core.request.media import Rows
from cobali_ray.core.request.request import MIN_PRIORITY
from cobali_ray.core.request.sequence import Sequence

MAX_PASSED = 8
_ANY_GRAIN = Grain()
_NO_DRAFTS: Mapping[int, array[int]] = MappingProxyType({})


class Span(NamedTuple):
    """Tokens `start .. start + length` of one slot in one tick."""

    slot_id: int
    start: int
    length: int
    sample: int
    """Of how many of its last tokens the logits are wanted: none, one, or all of a stream with a draft.

    Of a prompt whose logprobs are wanted: of all whose next token's was not sent yet.
    """


class Plan(NamedTuple):
    """What one pass computes, by slot: a sequence stays in its slot until the pass is over."""

    streams: tuple[int, ...]
    """Slots that decode, in the order of the batch."""
    chunks: tuple[Span, ...]
    """Prefill, in the order of its priority."""
    spans: tuple[Span, ...]
    """All spans in the order of the batch."""
    rows: tuple[int, ...]
    """Slots whose next token the pass gives, in that order, too."""
    n_tokens: int
    context: int | None = None
    """Cells that the streams' attention pays for, in runs; None: those that they hold."""
    drafts: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """A slot, and the draft tokens that its stream computes after its own."""
    adapter: str = ""
    """The key of the adapter that all of it is computed under."""
    by_head: bool = False
    """Whether the model's head is still to guess the tokens of drafts, of which only the number is known."""

    def draft(self, slot_id: int) -> tuple[int, ...]:
        """Return the draft tokens of a stream."""
        return next((tokens for i, tokens in self.drafts if i == slot_id), ())

    def computes(self, slot_id: int) -> bool:
        """Return whether anything is computed in a slot."""
        return slot_id in self.streams or any(chunk.slot_id == slot_id for chunk in self.chunks)


def lay_out(
    streams: Seq[Sequence],
    chunks: Seq[Span],
    by_slot: Seq[Sequence | None],
    grain: Grain = _ANY_GRAIN,
    drafts: Mapping[int, array[int]] = _NO_DRAFTS,
) -> Plan:
    """Return the plan of a pass: by sequence id, or in runs where the grain says what they are worth.

    Split KV puts only consecutive ascending ids into one micro-batch. `streams` are in that order.
    """
    slots = tuple([s.slot_id for s in streams])
    n_rows = [1 + len(drafts.get(s.slot_id, ())) for s in streams]
    of_streams = [Span(s.slot_id, len(s.tokens) - 1, n, n) for s, n in zip(streams, n_rows, strict=True)]
    seq_ids = {s.slot_id: s.seq_id for s in by_slot if s is not None}
    spans = sorted([*of_streams, *chunks], key=lambda span: seq_ids[span.slot_id])
    context = None
    if grain.pass_cells is not None or (chunks and streams and grain.step > 1):
        prefilling = {chunk.slot_id for chunk in chunks}
        deep = [Row(seq_ids[i], start + length, i in prefilling) for i, start, length, _ in spans]
        runs = runs_of(deep, grain.pass_cells)
        context = None if grain.pass_cells is None else cells_of(deep, runs)
        if len(runs) > 1:
            spans = [spans[place] for run in reversed(runs) for place in run]
            slots = tuple([i for i, *_ in spans if i not in prefilling])
    rows = tuple([span.slot_id for span in spans if span.sample and _reaches_end(span, by_slot)])
    n_tokens = sum([span.length for span in spans])
    guessed = tuple([(slot_id, tuple(draft)) for slot_id, draft in drafts.items()])
    return Plan(slots, tuple(chunks), tuple(spans), rows, n_tokens, context, guessed)


def _reaches_end(span: Span, by_slot: Seq[Sequence | None]) -> bool:
    """Return whether a span ends with its sequence's last token, so that its row gives the next one."""
    s = by_slot[span.slot_id]
    return s is not None and (s.n_unscored is None or span.start + span.length == len(s.tokens))


def order_prefill(prompts: Seq[Sequence], limits: EngineLimits) -> Seq[Sequence]:
    """Order the prompts as `prefill_order` says; `prompts` is oldest first.

    shortest: least left to compute first, so that a short prompt need not wait behind a long one. A prompt
    that was passed by as many tokens of later ones as it has left goes before all of those, so that nobody
    is passed by more than its own length and one tick. Before all that go better classes, and tenants that
    were served less; a prompt that was passed by `MAX_PASSED` times its length goes first all the same.
    """
    if len({p.rank for p in prompts}) < 2:
        return _in_order(prompts, limits)
    of_rank: dict[tuple[int, float], list[Sequence]] = {}
    for prompt in prompts:
        rank = (MIN_PRIORITY - 1, 0.0) if _overdue(prompt) else prompt.rank
        of_rank.setdefault(rank, []).append(prompt)
    return [p for _, some in sorted(of_rank.items()) for p in _in_order(some, limits)]


def who_is_due(prompts: Seq[Sequence]) -> Seq[Sequence]:
    """Return the prompts that yield to no other, and those that were passed too often."""
    first = min([p.rank for p in prompts])
    return [p for p in prompts if not yields(p.rank, first) or _overdue(p)]


def _overdue(prompt: Sequence) -> bool:
    return prompt.n_passed >= MAX_PASSED * prompt.n_pending


def _in_order(prompts: Seq[Sequence], limits: EngineLimits) -> Seq[Sequence]:
    if limits.prefill_order == "shortest" and len(prompts) > 1:
        return sorted(prompts, key=lambda p: 0 if p.n_passed >= p.n_pending else p.n_pending)
    return prompts


def chunk_of(prompt: Sequence, length: int) -> Span:
    """Return the span of a prompt's next tokens."""
    start, first = prompt.n_computed, prompt.n_unscored
    if first is None:
        return Span(prompt.slot_id, start, length, length == prompt.n_pending)
    return Span(prompt.slot_id, start, length, max(start + length - max(start, first), 0))


def n_scored(prompt: Sequence, chunk: Span) -> int:
    """Return how many of the rows for logprobs of prompts a chunk takes."""
    return 0 if prompt.n_unscored is None else chunk.sample


def within_rows(prompt: Sequence, length: int, n_rows: int) -> int:
    """Return how much of a chunk can be computed if so many rows are left for logprobs of prompts."""
    if (first := prompt.n_unscored) is None:
        return length
    return min(length, max(first - prompt.n_computed, 0) + (n_rows if n_rows >= MIN_SCORED_ROWS else 0))


def piece(pending: int, most: int) -> int:
    """Return how many of `pending` tokens to compute, at most `most`, never leaving exactly one.

    llama.cpp computes a single token by another kernel, which rounds differently: a prompt that ends in
    a chunk of one token would not get the answer it gets when computed whole.
    """
    length = min(pending, most)
    return length - 1 if pending - length == 1 and length > 1 else length


def cut_chunks(chunks: Seq[Span], by_slot: Seq[Sequence | None], budget: int) -> list[Span]:
    """Return chunks of which none goes on beyond what must end a pass of its prompt.

    Each is all tokens or all of one image, and ends where a state is to be saved and where an adapter is
    invoked, if it reaches that far. An image that must be computed whole is, whatever length was planned;
    what no longer fits into the budget beside it waits.
    """
    cut: list[Span] = []
    for chunk in chunks:
        prompt = by_slot[chunk.slot_id]
        span = chunk if prompt is None else _within(chunk, prompt.request.rows)
        if span.length <= budget:
            budget -= span.length
            cut.append(span if prompt is None else _up_to_adapter(_up_to_state(span, prompt), prompt))
    return cut


def _up_to_adapter(chunk: Span, prompt: Sequence) -> Span:
    n_before = prompt.request.n_plain - chunk.start
    return chunk_of(prompt, n_before) if 0 < n_before < chunk.length else chunk


def _up_to_state(chunk: Span, prompt: Sequence) -> Span:
    cut = next((cut for cut in prompt.cuts if cut > chunk.start), None)
    if cut is None or cut > chunk.start + chunk.length + 1:
        return chunk
    # Never a chunk of one token before the cut; see `piece`.
    return chunk_of(prompt, piece(cut - chunk.start, chunk.length))


def _within(chunk: Span, rows: Seq[Rows]) -> Span:
    slot_id, start, length, _ = chunk
    part = next((part for part in rows if part.end > start), None)
    if part is None:
        return chunk
    if start < part.start:
        return Span(slot_id, start, piece(part.start - start, length), 0)
    return Span(slot_id, start, part.length if part.whole else piece(part.end - start, length), 0)
