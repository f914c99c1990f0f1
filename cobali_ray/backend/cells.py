"""CellLayout: what llama.cpp tells of a slot's cache, taken apart by tokens and put together again.

`llama_state_seq_get_data` writes a few words about the cache, the position of each token, then the keys of
every layer and the values of every layer, each with words of its own in front. Keys lie token by token; so
do values with flash attention, and channel by channel without. A block of cells is that without the words:
its bytes are those of one token times its tokens, and any blocks that follow each other can be joined.

Nothing promises this layout. So it is read off a few tokens at the start, and used only if these, taken
apart and put together, are the same again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Cells: TypeAlias = NDArray[np.uint8]
_WORD = 4
_HEAD = 3 * _WORD
"""A magic number, the slot, the number of streams."""
_META = 3 * _WORD
"""Of one token: its position, the number of its slots, and that slot."""


class Tensor(NamedTuple):
    """The keys or the values of one layer."""

    words: bytes
    """What stands in front."""
    n_rows: int
    """One, or one per channel."""
    width: int
    """Bytes of one token in one row."""


@dataclass(frozen=True, slots=True)
class CellLayout:
    """How the cells of one context are written."""

    head: bytes
    n_streams: int
    words: bytes
    """Those between positions and keys."""
    tensors: tuple[Tensor, ...]

    @classmethod
    def read(cls, state: Cells, n_tokens: int) -> CellLayout | None:
        """Read the layout off the state of slot 0, which holds `n_tokens`; None if it is not as expected."""
        layout = cls._read(state, n_tokens)
        if not layout.cell_bytes or layout.state_bytes(n_tokens) != len(state):
            return None
        again = np.empty_like(state)
        layout.join(layout.cut(state, n_tokens, [(i, i + 1) for i in range(n_tokens)]), n_tokens, again)
        return layout if np.array_equal(again, state) else None

    @classmethod
    def _read(cls, state: Cells, n_tokens: int) -> CellLayout:
        head, n_streams = state[:_HEAD].tobytes(), _number(state, 2 * _WORD)
        at = _HEAD + _WORD + n_tokens * _META
        by_channel, n_layers = _number(state, at), _number(state, at + _WORD)
        words = state[at : at + 2 * _WORD].tobytes()
        at += 2 * _WORD
        tensors = []
        for i in range(2 * min(n_layers, len(state))):
            width, n_rows = _number(state, at + _WORD), 1
            n_words = 3  # type, bytes of a token in two words
            if by_channel and i >= n_layers:
                n_rows = _number(state, at + 2 * _WORD)  # type, bytes of a number, channels
            tensors.append(Tensor(state[at : at + n_words * _WORD].tobytes(), n_rows, width))
            at += n_words * _WORD + n_tokens * n_rows * width
        return cls(head, n_streams, words, tuple(tensors))

    @property
    def cell_bytes(self) -> int:
        """Bytes of one token."""
        return sum(tensor.n_rows * tensor.width for tensor in self.tensors)

    def state_bytes(self, n_tokens: int) -> int:
        """Return the bytes of the state of a slot that holds `n_tokens`."""
        n_words = sum(len(tensor.words) for tensor in self.tensors)
        words = _HEAD + self.n_streams * _WORD + len(self.words) + n_words
        return words + n_tokens * (_META + self.cell_bytes)

    def cut(self, state: Cells, n_tokens: int, spans: Sequence[tuple[int, int]]) -> list[Cells]:
        """Return the cells of each span of tokens from the state of a slot that holds `n_tokens`."""
        n_others = np.flatnonzero(state[_HEAD : _HEAD + self.n_streams * _WORD])[0] // _WORD
        at = _HEAD + int(n_others) * _WORD + _WORD  # the streams of other slots say 0 tokens
        places = state[at : at + n_tokens * _META].view(np.int32)[::3]
        ordered = bool((places == np.arange(n_tokens)).all())
        picks: list[Any] = [slice(*span) for span in spans]
        if not ordered:  # a shared pool gives cells as they are free
            order = np.argsort(places)
            picks = [order[pick] for pick in picks]
        blocks = [np.empty((end - start) * self.cell_bytes, np.uint8) for start, end in spans]
        at += n_tokens * _META + len(self.words)
        done = 0
        for words, n_rows, width in self.tensors:
            at += len(words)
            size = n_rows * width
            tensor = state[at : at + n_tokens * size].reshape(n_rows, n_tokens, width)
            at += n_tokens * size
            for block, pick, (start, end) in zip(blocks, picks, spans, strict=True):
                n = end - start
                block[done * n : (done + size) * n].reshape(n_rows, n, width)[:] = tensor[:, pick]
            done += size
        return blocks

    def join(self, blocks: Sequence[Cells], n_tokens: int, state: Cells) -> None:
        """Write the state of a slot that holds the first `n_tokens` of these blocks in a row."""
        meta = np.zeros((n_tokens, 3), np.int32)
        meta[:, 0], meta[:, 1] = np.arange(n_tokens), 1
        head = [self.head, n_tokens.to_bytes(_WORD, "little"), meta.tobytes(), self.words]
        at = _write(state, 0, b"".join(head))
        done = 0
        for words, n_rows, width in self.tensors:
            at = _write(state, at, words)
            size = n_rows * width
            tensor = state[at : at + n_tokens * size].reshape(n_rows, n_tokens, width)
            start = 0
            for block in blocks:
                n = len(block) // self.cell_bytes
                part = block[done * n : (done + size) * n].reshape(n_rows, n, width)
                tensor[:, start : start + n] = part[:, : max(n_tokens - start, 0)]
                start += n
            at += n_tokens * size
            done += size
        _write(state, at, bytes((self.n_streams - 1) * _WORD))


def _write(state: Cells, at: int, words: bytes) -> int:
    state[at : at + len(words)] = np.frombuffer(words, np.uint8)
    return at + len(words)


def _number(state: Cells, at: int) -> int:
    return int.from_bytes(state[at : at + _WORD].tobytes(), "little")
