"""Markers: texts such as `<tool_call>` as a vocabulary has them, with its control tokens in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol

N_CACHED = 1024
"""Markers that are remembered; some have the name of a tool in them."""


class MarkerVocabulary(Protocol):
    """What cutting markers needs of a vocabulary."""

    @property
    def end_tokens(self) -> frozenset[int]: ...
    def tokenize(self, text: str, *, add_special: bool) -> list[int]: ...
    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> str: ...


class Markers:
    """Cuts markers into plain text and control tokens, for one vocabulary. Thread-safe."""

    def __init__(self, words: MarkerVocabulary) -> None:
        self._words = words
        self._cached = lru_cache(maxsize=N_CACHED)(self._cut)

    def __call__(self, marker: str) -> tuple[str | int, ...]:
        """Return plain texts and ids of control tokens; without tokens that end the answer."""
        return self._cached(marker)

    def _cut(self, marker: str) -> tuple[str | int, ...]:
        words, rest = self._words, marker
        pieces: list[str | int] = []
        for token in words.tokenize(marker, add_special=False):
            text = words.detokenize([token])
            if words.detokenize([token], special=False) or text not in rest or not text:
                continue
            plain, _, rest = rest.partition(text)
            pieces += [plain] if plain else []
            pieces += [token] if token not in words.end_tokens else []
        return (*pieces, rest) if rest else tuple(pieces)

    def control_tokens(self, markers: Iterable[str]) -> frozenset[int]:
        """Return the control tokens that these texts are made of: an answer has to show them to be read."""
        return frozenset(piece for marker in markers for piece in self(marker) if isinstance(piece, int))
