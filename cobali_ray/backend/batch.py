"""TickBatch: one tick's tokens as arrays whose memory llama.cpp reads in place.

llama.cpp answers bad input by aborting the process, so every batch is checked first: the order of slots,
positions, lengths, token ids, sizes. Of a span that breaks a rule, its slot is named (`SlotFaultError`), and
only that request fails.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cobali_ray.core.plan.plan import Span
from cobali_ray.errors import BackendError, SlotFaultError


class ImagePart(NamedTuple):
    """A part of an image in a prompt: tokens that mark it, or rows."""

    tokens: tuple[int, ...]
    n_rows: int = 0


class ImageRows(NamedTuple):
    """Rows of a part of an image."""

    values: NDArray[np.float32]
    """Row by row."""
    places: NDArray[np.int32] | None
    """Where models with positions in several dimensions have each row: four lists, from 0."""
    n_positions: int
    """How many positions they take."""
    causal: bool
    """Whether a row sees only those before it."""

    def part(self, start: int, end: int) -> ImageRows:
        """Return some of the rows, of those that need not be computed at once."""
        return self if end - start == len(self.values) else self._replace(values=self.values[start:end])


class TickBatch:
    """Up to `n_batch` tokens; each has a value, a position, a slot and a flag that asks for its logits."""

    def __init__(self, n_batch: int) -> None:
        self.token = np.zeros(n_batch, np.int32)
        self.position = np.zeros(n_batch, np.int32)
        self.slot = np.zeros(n_batch, np.int32)
        self.output = np.zeros(n_batch, np.int8)
        self._arrays: tuple[NDArray[Any], ...] = (self.token, self.position, self.slot, self.output)
        self.n_tokens = 0
        self.spans: tuple[Span, ...] = ()
        self.embedded: dict[int, ImageRows] = {}
        """Rows of images in place of tokens, by the number of the span."""

    def sampled_slots(self) -> list[int]:
        """Return the slot of each row of logits, in order."""
        slots: list[int] = self.slot[: self.n_tokens][self.output[: self.n_tokens] != 0].tolist()
        return slots

    def fill(self, spans: tuple[Span, ...], tokens: Sequence[array[int]]) -> None:
        """Lay out `spans`; `tokens[i]` holds all tokens of the sequence of `spans[i]`."""
        token, position, slot, output = array("i"), array("i"), array("i"), array("b")
        for (slot_id, start, length, sample), sequence in zip(spans, tokens, strict=True):
            token.extend(sequence[start : start + length])
            position.extend(range(start, start + length))
            slot.extend([slot_id] * length)
            output.extend([0] * (length - sample) + [1] * min(sample, length))
        n = self.n_tokens = len(token)
        self.token[:n], self.position[:n], self.slot[:n], self.output[:n] = token, position, slot, output
        self.spans, self.embedded = spans, {}

    def embed(self, number: int, rows: ImageRows) -> None:
        """Have a span computed from rows of an image: what stood for them is no token."""
        start = sum([span.length for span in self.spans[:number]])
        self.token[start : start + self.spans[number].length] = 0
        self.embedded[number] = rows

    def take(self, whole: TickBatch, chosen: Sequence[int]) -> None:
        """Copy the spans with these numbers out of another batch, in that order."""
        starts = [0, *itertools.accumulate(span.length for span in whole.spans)]
        at = 0
        for i in chosen:
            length = whole.spans[i].length
            for mine, theirs in zip(self._arrays, whole._arrays, strict=True):
                mine[at : at + length] = theirs[starts[i] : starts[i] + length]
            at += length
        self.spans, self.embedded = tuple(whole.spans[i] for i in chosen), {}
        self.n_tokens = at


def by_length(spans: Sequence[Span]) -> list[list[int]]:
    """Group the numbers of spans by their length, single tokens first, each group in the old order.

    llama.cpp cuts a split cache's batch into pieces in which all slots have equally many tokens: beside a
    decode token, a chunk of 9 becomes 1 + 8. Its kernels for one and for several tokens of a slot
    round differently, so what a prompt's first token becomes would depend on its company. A batch of spans
    of one length is never cut.
    """
    groups: dict[int, list[int]] = {}
    for i, span in enumerate(spans):
        groups.setdefault(span.length, []).append(i)
    return [groups[length] for length in sorted(groups)]


def check_batch(
    batch: TickBatch, n_cached: NDArray[np.int32], *, n_ctx_slot: int, n_batch: int, n_vocab: int
) -> int:
    """Prove that a batch breaks no rule whose breach llama.cpp would answer with an abort or not at all.

    `n_cached[slot_id]` is what each slot holds. Returns the number of rows of logits.
    Raises SlotFaultError for the slot at fault, BackendError for a malformed batch.
    """
    n_rows = _check_spans(batch, n_cached.tolist(), n_ctx_slot, n_batch)
    tokens = batch.token[: batch.n_tokens].view(np.uint32)  # a negative id is a large one
    if tokens.max() >= n_vocab:
        slot_id = int(batch.slot[(tokens >= n_vocab).argmax()])
        raise SlotFaultError(slot_id, "a token outside the vocabulary")
    return n_rows


def _check_spans(batch: TickBatch, n_cached: list[int], n_ctx_slot: int, n_batch: int) -> int:
    """Go through the spans one by one, to name the slot at fault; return the number of rows."""
    n_tokens, n_rows = 0, 0
    seen: set[int] = set()
    for slot_id, start, length, sample in batch.spans:
        if slot_id in seen or not 0 <= slot_id < len(n_cached):
            raise BackendError(f"slot {slot_id} does not exist or comes twice")
        if start != n_cached[slot_id]:
            raise SlotFaultError(slot_id, f"position {start}, but {n_cached[slot_id]} tokens cached")
        if length < 1 or start + length > n_ctx_slot or not 0 <= sample <= length:
            raise SlotFaultError(
                slot_id, f"{length} tokens at {start} in a slot of {n_ctx_slot}, logits of {sample}"
            )
        seen.add(slot_id)
        n_tokens += length
        n_rows += sample
    if not 0 < n_tokens == batch.n_tokens <= n_batch:
        raise BackendError(
            f"{n_tokens} tokens in the spans, {batch.n_tokens} in the batch, {n_batch} allowed"
        )
    return n_rows
