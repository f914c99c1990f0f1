"""Markers: texts such as `<tool_call>` as a vocabulary has them, with its control tokens in them."""

from __future__ import annotations

from collections.abc import Iterable

from cobali_ray.backend.port import Words


class Markers:
    """Cuts markers into plain text and control tokens, for one vocabulary. Thread-safe."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def __call__(self, marker: str) -> tuple[str | int, ...]:
        """Return plain texts and ids of control tokens; without tokens that end the answer."""
        words, rest = self._words, marker
        found: list[str | int] = []
        for token in words.tokenize(marker, add_special=False):
            text = words.detokenize([token])
            if words.detokenize([token], special=False) or text not in rest or not text:
                continue
            plain, _, rest = rest.partition(text)
            found += [plain] if plain else []
            found += [token] if token not in words.end_tokens else []
        return (*found, rest) if rest else tuple(found)

    def shown(self, markers: Iterable[str]) -> frozenset[int]:
        """Return the control tokens that these texts are made of: an answer has to show them to be read."""
        return frozenset(piece for marker in markers for piece in self(marker) if isinstance(piece, int))
