"""ImagePasses: rows of images computed by llama.cpp, each part of an image in a call of its own.

A call has tokens or embeddings, never both; rows that see each other need attention that is not causal, which
is set for the whole context; and where images take fewer positions than rows, a token's position differs from
its number.
Such a model (M-RoPE) has all rows of an image at one position, in two further dimensions, and goes on behind
it after as many positions as the image is high or wide.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cobali_ray.backend import library
from cobali_ray.backend.batch import ImageRows, TickBatch
from cobali_ray.core.plan.plan import Span
from cobali_ray.errors import SlotFaultError


class _Jump(NamedTuple):
    end: int
    """The token from which on it holds."""
    n_saved: int
    """Positions that the rows before it did not take."""


class Positions:
    """The images of each slot, and how they shift the positions of tokens behind them."""

    def __init__(self, n_slots: int) -> None:
        self._jumps: list[list[_Jump]] = [[] for _ in range(n_slots)]
        self.saved = np.zeros(n_slots, np.int32)
        """How far below its number the position of each slot's next token is."""
        self.plain = True
        """Whether no slot has any, so that every token's position is its number."""

    def of(self, slot_id: int, n: int) -> int:
        """Return the position of a slot's token with this number."""
        return n - sum([jump.n_saved for jump in self._jumps[slot_id] if jump.end <= n])

    def note(self, slot_id: int, end: int, n_saved: int) -> None:
        """Note that a slot's tokens up to `end` now close with an image that saved so many positions."""
        if n_saved:
            self._jumps[slot_id].append(_Jump(end, n_saved))
            self._count(slot_id)

    def cut(self, slot_id: int, n_keep: int) -> None:
        """Forget the images behind a slot's first tokens."""
        if self._jumps[slot_id]:
            self._jumps[slot_id] = [jump for jump in self._jumps[slot_id] if jump.end <= n_keep]
            self._count(slot_id)

    def copy(self, donor_id: int, slot_id: int, n_keep: int) -> None:
        """Note that a slot has the first tokens of another."""
        self._jumps[slot_id] = list(self._jumps[donor_id])
        self._count(slot_id)
        self.cut(slot_id, n_keep)

    def clear(self) -> None:
        self.__init__(len(self._jumps))  # type: ignore[misc]

    def shifted(self, slots: NDArray[np.int32], numbers: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the positions of the next tokens of slots, given their numbers."""
        return numbers - self.saved.take(slots)

    def _count(self, slot_id: int) -> None:
        self.saved[slot_id] = sum([jump.n_saved for jump in self._jumps[slot_id]])
        self.plain = not self.saved.any()


class ImagePasses:
    """Computes images in a context, which computes tokens otherwise."""

    def __init__(self, lc: Any, context: Any, *, n_slots: int, n_batch: int) -> None:
        self._lc, self._context = lc, context
        self._n_ubatch = int(lc.llama_n_ubatch(context))
        self._width = int(lc.llama_model_n_embd_inp(lc.llama_get_model(context)))
        self.positions = Positions(n_slots)
        self._text = TickBatch(n_batch)

    def compute(self, span: Span, rows: ImageRows, seq_id: int) -> int:
        """Compute a span of rows under its slot's sequence id; return what llama_decode returned.

        Raises SlotFaultError for rows that it would read beyond the end of, or abort at.
        """
        lc, n, slot_id = self._lc, span.length, span.slot_id
        if rows.values.shape != (n, self._width) or not (rows.causal or n <= self._n_ubatch):
            raise SlotFaultError(slot_id, f"{n} rows of an image, {rows.values.shape} there")
        first = self.positions.of(slot_id, span.start)
        places = np.arange(n, dtype=np.int32) if rows.places is None else rows.places
        values = np.ascontiguousarray(rows.values, np.float32)
        at = np.ascontiguousarray(places + np.int32(first))
        seq, output = np.full(n, seq_id, np.int32), np.zeros(n, np.int8)
        raw = library.raw_batch(lc, values=values, position=at, seq=seq, output=output)
        if rows.causal:
            code = int(lc.llama_decode(self._context, raw))
        else:
            lc.llama_set_causal_attn(self._context, False)
            try:
                code = int(lc.llama_decode(self._context, raw))
            finally:
                lc.llama_set_causal_attn(self._context, True)
        if code == 0 and rows.places is not None:
            self.positions.note(slot_id, span.start + n, n - rows.n_positions)
        return code

    def text_of(self, batch: TickBatch) -> TickBatch:
        """Return the tokens of a batch, at their positions."""
        text = self._text
        text.take(batch, [i for i in range(len(batch.spans)) if i not in batch.embedded])
        n = text.n_tokens
        text.position[:n] = self.positions.shifted(text.slot[:n], text.position[:n])
        return text
