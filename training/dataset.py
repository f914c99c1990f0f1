"""The encoded corpus on disk, and the plan of which conversations share a batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from training.corpus.example import Example, Turn
from training.tokenizer import Encoder

_AT_ONCE = 2000
_SHORT, _GRAIN, _COARSE = 192, 8, 64
LONGEST = 4096
"""Most tokens of one row."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Rows of tokens end to end; row i is `starts[i]` to `starts[i + 1]`."""

    tokens: NDArray[np.uint16]
    spoken: NDArray[np.bool_]
    starts: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return how long each row is."""
        return np.diff(self.starts)

    def rows(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return these rows padded to the longest's grain, and what each token weighs in the loss.

        The tokens of an answer weigh less the more there are, so that short answers count beside long ones.
        """
        n = int(padded(self.lengths[indices].max()))
        tokens, weights = np.zeros((len(indices), n), np.int64), np.zeros((len(indices), n), np.float32)
        for row, i in enumerate(indices):
            start, end = self.starts[i], self.starts[i + 1]
            tokens[row, : end - start] = self.tokens[start:end]
            spoken = self.spoken[start:end]
            weights[row, : end - start] = spoken / np.sqrt(max(1, spoken.sum()))
        return tokens, weights

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        part = path.with_suffix(".part.npz")
        np.savez(part, tokens=self.tokens, spoken=self.spoken, starts=self.starts)
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Dataset:
        """Read it."""
        with np.load(path) as arrays:
            return cls(arrays["tokens"], arrays["spoken"], arrays["starts"])


def padded(lengths: NDArray[np.int64] | np.int64) -> NDArray[np.int64]:
    """Return lengths rounded up to few different ones.

    oneDNN compiles and keeps a kernel for every shape it meets: fewer are faster, and take less memory.
    """
    return np.where(lengths <= _SHORT, -(-lengths // _GRAIN) * _GRAIN, -(-lengths // _COARSE) * _COARSE)


def encode(
    examples: Iterable[Example],
    encoder: Encoder,
    rng: Random,
    *,
    share_long: float,
    progress: Callable[[int], None],
) -> Dataset:
    """Encode examples, one row each; a share of them is joined into long conversations of many topics.

    The long ones teach that the last question counts, and that positions beyond a few hundred are ordinary.
    Tools and the pages of agents stand at the beginning of a conversation: those that have them stay alone.
    """
    tokens, spoken, lengths = [], [], []
    for some in _chunks(_joined(examples, rng, share_long), _AT_ONCE):
        for encoded in encoder.batch(some):
            ids = encoded.ids[:LONGEST]
            tokens.append(np.asarray(ids, np.uint16))
            spoken.append(np.asarray(encoded.spoken[:LONGEST], np.bool_))
            lengths.append(len(ids))
        progress(len(lengths))
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return Dataset(np.concatenate(tokens), np.concatenate(spoken), starts)


def _joined(examples: Iterable[Example], rng: Random, share: float) -> Iterator[tuple[Turn, ...]]:
    source = iter(examples)
    for example in source:
        if example.alone or rng.random() >= share:
            yield example.turns
            continue
        n = rng.choice((4, 8, 16, 32, 60))
        others = itertools.islice((other for other in source if not other.alone), n - 1)
        joined = itertools.chain(example.turns, *(other.turns for other in others))
        yield tuple(turn for i, turn in enumerate(joined) if turn.role != "system" or i == 0)


def _chunks(conversations: Iterator[tuple[Turn, ...]], n: int) -> Iterator[list[tuple[Turn, ...]]]:
    while chunk := list(itertools.islice(conversations, n)):
        yield chunk


def plan(
    lengths: NDArray[np.int64], seed: int, *, tokens_per_pass: int, passes_per_step: int
) -> list[list[NDArray[np.int64]]]:
    """Divide all rows into steps of several passes; the rows of a pass are about equally long.

    The same for the same seed, so that a run can go on from any step.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    lengths = padded(lengths)
    pool = 4096
    order = rng.permutation(len(lengths))
    passes = [
        indices
        for at in range(0, len(order), pool)
        for indices in _passes(order[at : at + pool], lengths, tokens_per_pass, rng)
    ]
    return [passes[at : at + passes_per_step] for at in range(0, len(passes), passes_per_step)]


def _passes(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], most: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    rows = rows[np.argsort(lengths[rows], kind="stable")]
    passes, start = [], 0
    for end in range(1, len(rows) + 1):
        full = end == len(rows) or (end + 1 - start) * lengths[rows[end]] > most
        if full:
            passes.append(rows[start:end])
            start = end
    return [passes[i] for i in rng.permutation(len(passes))]
