"""CellLayout: the state that llama.cpp gives of a slot, taken apart by tokens and put together again.

`llama_state_seq_get_data` writes a few words about the cache, the position of each token, then the keys of
every layer and the values of every layer, each with words of its own in front. Keys lie token by token; so
do values with flash attention, and channel by channel without. A block of cells is that without the words:
its bytes are those of one token times its tokens, and any blocks that follow each other can be joined.

Models whose positions have several axes note three words more of each token, which a block then begins with.

Nothing promises this layout. So it is read off a few tokens at the start, and used only if these, taken
apart and put together, are the same again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Cells: TypeAlias = NDArray[np.uint8]
_WORD = 4
_HEAD = 3 * _WORD
"""A magic number, the slot, the number of streams."""
_PLAIN, _WITH_AXES = 3, 6
"""Words about one token: its position, the number of its slots, and that slot; or three more before that,
the position on two further axes and the token itself."""


class TensorGroup(NamedTuple):
    """Tensors of one shape in a row: the keys or the values of many layers, one each."""

    words: tuple[bytes, ...]
    """What stands in front of each."""
    n_rows: int
    """One, or one per channel."""
    width: int
    """Bytes of one token in one row."""

    def __repr__(self) -> str:
        """Return the spelling that the names of files on disk are made of, whatever this class is called."""
        return f"Group(words={self.words!r}, n_rows={self.n_rows}, width={self.width})"

    @property
    def cell_bytes(self) -> int:
        return len(self.words) * self.n_rows * self.width

    def state_bytes(self, n_tokens: int) -> int:
        """Return the bytes of all, with the words, for so many tokens."""
        return sum(map(len, self.words)) + n_tokens * self.cell_bytes

    def part(self, block: Cells, done: int, n_tokens: int) -> Cells:
        """Return what a block has of them, behind `done` bytes of each token, in the shape of `rows`."""
        part = block[done * n_tokens : (done + self.cell_bytes) * n_tokens]
        return part.reshape(len(self.words), self.n_rows, n_tokens, self.width)

    def write_words(self, state: Cells, at: int, n_tokens: int) -> None:
        """Write what stands in front of each."""
        for words in self.words:
            _write(state, at, words)
            at += len(words) + self.n_rows * n_tokens * self.width

    def rows(self, state: Cells, at: int, n_tokens: int) -> Cells:
        """Return the state from `at` on as an array by tensor, row, token and byte."""
        step = len(self.words[0]) + self.n_rows * n_tokens * self.width
        return as_strided(
            state[at + len(self.words[0]) :],
            (len(self.words), self.n_rows, n_tokens, self.width),
            (step, n_tokens * self.width, self.width, 1),
        )


@dataclass(frozen=True, slots=True)
class CellLayout:
    """How the cells of one context are written."""

    head: bytes
    n_streams: int
    words: bytes
    """Those between positions and keys."""
    groups: tuple[TensorGroup, ...]
    n_meta: int = _PLAIN
    """Words about each token in front of its keys."""

    @classmethod
    def read(cls, state: Cells, n_tokens: int) -> CellLayout | None:
        """Read the layout off the state of slot 0, which holds `n_tokens`; None if it is not as expected."""
        for n_meta in (_PLAIN, _WITH_AXES):
            layout = cls._read(state, n_tokens, n_meta)
            fits = layout.cell_bytes and layout.state_bytes(n_tokens) == len(state)
            if not fits or _number(state, _HEAD) != n_tokens:
                continue
            again = np.empty_like(state)
            layout.join(layout.cut(state, n_tokens, [(i, i + 1) for i in range(n_tokens)]), n_tokens, again)
            if np.array_equal(again, state):
                return layout
        return None

    @classmethod
    def _read(cls, state: Cells, n_tokens: int, n_meta: int) -> CellLayout:
        head, n_streams = state[:_HEAD].tobytes(), _number(state, 2 * _WORD)
        at = _HEAD + _WORD + n_tokens * n_meta * _WORD
        by_channel, n_layers = _number(state, at), _number(state, at + _WORD)
        words = state[at : at + 2 * _WORD].tobytes()
        at += 2 * _WORD
        groups: list[TensorGroup] = []
        end = len(state) - (n_streams - 1) * _WORD  # the streams of other slots say 0 tokens
        for i in range(2 * min(n_layers, len(state))):
            if at >= end:
                break  # with latent attention, values are a part of the keys
            width, n_rows = _number(state, at + _WORD), 1
            n_words = 3  # type, bytes of a token in two words
            if by_channel and i >= n_layers:
                n_rows = _number(state, at + 2 * _WORD)  # type, bytes of a number, channels
            front = state[at : at + n_words * _WORD].tobytes()
            if groups and groups[-1][1:] == (n_rows, width):
                groups[-1] = groups[-1]._replace(words=(*groups[-1].words, front))
            else:
                groups.append(TensorGroup((front,), n_rows, width))
            at += n_words * _WORD + n_tokens * n_rows * width
        return cls(head, n_streams, words, tuple(groups), n_meta)

    @property
    def kind(self) -> tuple[object, ...]:
        """What the bytes of a block mean; how many slots and streams there are does not matter to it."""
        return (self.words, self.groups) if self.n_meta == _PLAIN else (self.words, self.groups, self.n_meta)

    @property
    def cell_bytes(self) -> int:
        tensors = sum(group.cell_bytes for group in self.groups)
        return tensors + self._kept_meta if tensors else 0

    @property
    def _kept_meta(self) -> int:
        """Bytes about one token that a block has: none where they follow from where it lies."""
        return 0 if self.n_meta == _PLAIN else self.n_meta * _WORD

    def state_bytes(self, n_tokens: int) -> int:
        """Return the bytes of the state of a slot that holds `n_tokens`."""
        words = _HEAD + self.n_streams * _WORD + len(self.words)
        meta = n_tokens * self.n_meta * _WORD
        return words + meta + sum(group.state_bytes(n_tokens) for group in self.groups)

    def cut(self, state: Cells, n_tokens: int, spans: Sequence[tuple[int, int]]) -> list[Cells]:
        """Return the cells of each span of tokens from the state of a slot that holds `n_tokens`."""
        n_others = np.flatnonzero(state[_HEAD : _HEAD + self.n_streams * _WORD])[0] // _WORD
        at = _HEAD + int(n_others) * _WORD + _WORD  # the streams of other slots say 0 tokens
        meta = state[at : at + n_tokens * self.n_meta * _WORD].reshape(n_tokens, -1)
        places = meta.view(np.int32)[:, 0]
        ordered = bool((places == np.arange(n_tokens)).all())
        picks: list[Any] = [slice(*span) for span in spans]
        if not ordered:  # a shared pool gives cells as they are free
            order = np.argsort(places)
            picks = [order[pick] for pick in picks]
        blocks = [np.empty((end - start) * self.cell_bytes, np.uint8) for start, end in spans]
        at += meta.size + len(self.words)
        done = self._kept_meta
        if done:
            for block, pick, (start, end) in zip(blocks, picks, spans, strict=True):
                block[: done * (end - start)] = meta[pick].ravel()
        for group in self.groups:
            rows = group.rows(state, at, n_tokens)
            for block, pick, (start, end) in zip(blocks, picks, spans, strict=True):
                group.part(block, done, end - start)[:] = rows[:, :, pick]
            at += group.state_bytes(n_tokens)
            done += group.cell_bytes
        return blocks

    def join(self, blocks: Sequence[Cells], n_tokens: int, state: Cells) -> None:
        """Write the state of a slot that holds the first `n_tokens` of these blocks in a row."""
        done = self._kept_meta
        if done:
            meta = np.concatenate([block[: len(block) // self.cell_bytes * done] for block in blocks])
            meta = meta[: n_tokens * done]
        else:
            plain = np.zeros((n_tokens, _PLAIN), np.int32)
            plain[:, 0], plain[:, 1] = np.arange(n_tokens), 1
            meta = plain.view(np.uint8)
        head = [self.head, n_tokens.to_bytes(_WORD, "little"), meta.tobytes(), self.words]
        at = _write(state, 0, b"".join(head))
        for group in self.groups:
            group.write_words(state, at, n_tokens)
            rows, start = group.rows(state, at, n_tokens), 0
            for block in blocks:
                n = len(block) // self.cell_bytes
                rows[:, :, start : start + n] = group.part(block, done, n)[:, :, : max(n_tokens - start, 0)]
                start += n
            at += group.state_bytes(n_tokens)
            done += group.cell_bytes
        _write(state, at, bytes((self.n_streams - 1) * _WORD))


def alone(window: Cells) -> Cells:
    """Return the state of a window, as `PARTIAL_ONLY` has it, as if its slot were the only one."""
    n_streams = _number(window, 2 * _WORD)
    counts = window[_HEAD : _HEAD + n_streams * _WORD]
    n_before = int(np.flatnonzero(counts)[0]) // _WORD
    end = len(window) - (n_streams - 1 - n_before) * _WORD
    state = np.concatenate([window[:_HEAD], window[_HEAD + n_before * _WORD : end]])
    _write(state, 2 * _WORD, (1).to_bytes(_WORD, "little"))
    return state


def beside(window: Cells, n_streams: int) -> Cells:
    """Return what `alone` made, for a cache of so many streams, in which all others say 0 tokens."""
    state = np.concatenate([window, np.zeros((n_streams - 1) * _WORD, np.uint8)])
    _write(state, 2 * _WORD, n_streams.to_bytes(_WORD, "little"))
    return state


def _write(state: Cells, at: int, words: bytes) -> int:
    state[at : at + len(words)] = np.frombuffer(words, np.uint8)
    return at + len(words)


def _number(state: Cells, at: int) -> int:
    return int.from_bytes(state[at : at + _WORD].tobytes(), "little")
