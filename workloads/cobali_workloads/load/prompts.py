"""Prompts: those of a file, and text of a wanted length in tokens, with beginnings that no two share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from cobali_ray.errors import ConfigError

_TEXT = (
    "able about above across after again air all also among animal answer area ask away back ball base "
    "bear bed begin better bird black blue boat body book both box boy bring build busy call car care "
    "carry case catch cause center change check child city class clear close cold color come common "
    "correct country course cover cross cry cut dark day deep door down draw dry each early earth east "
    "easy eat end enough equal even ever eye face fact fall family far farm fast father feel field fill "
    "final find fine fire fish "
)
WORDS = tuple(_TEXT.split())
_BLANK_LINE = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")


def read_prompts(text: str) -> list[str]:
    """Split a prompts file at its blank lines; a prompt may have several lines. None at all: ConfigError."""
    prompts = [p.strip() for p in _BLANK_LINE.split(text.replace("\r\n", "\n")) if p.strip()]
    if not prompts:
        raise ConfigError("prompts", "there is none in the file")
    return prompts


@dataclass(frozen=True, slots=True)
class WordCosts:
    """Tokens of each word: at the beginning of a text, and after a space."""

    first: dict[str, float]
    later: dict[str, float]


def measure_costs(count: Callable[[str], int]) -> WordCosts:
    """Count each word by itself: tokenizers cut at spaces, so that the sum is exact for most of them."""
    first = {word: float(count(word)) for word in WORDS}
    both = {word: float(count(f"{WORDS[0]} {word}")) - first[WORDS[0]] for word in WORDS}
    return WordCosts(first, both)


def uniform_costs(tokens_per_word: float) -> WordCosts:
    """Give every word the same cost, for a server that does not tokenise."""
    costs = dict.fromkeys(WORDS, tokens_per_word)
    return WordCosts(costs, costs)


class PromptMaker:
    """Makes texts of a length. The same key gives the same text."""

    def __init__(self, costs: WordCosts, seed: int) -> None:
        self._costs, self._seed = costs, seed
        self._cheapest = min(costs.later.values())

    def text(self, key: str, n_tokens: int, *, prefix: str = "", prefix_tokens: int = 0) -> str:
        """Return `n_tokens` of words, of which the first `prefix_tokens` are those of `prefix`."""
        words: list[str] = []
        left = float(n_tokens)
        if prefix_tokens:
            left = (
                n_tokens
                - prefix_tokens
                + self._extend(words, prefix_tokens, Random(f"{self._seed} {prefix}"))
            )
        self._extend(words, left, Random(f"{self._seed} {key}"))
        return " ".join(words)

    def _extend(self, words: list[str], left: float, rng: Random) -> float:
        """Append words of `left` tokens; return what no word was small enough for. At least one word."""
        while left >= self._cheapest or not words:
            costs = self._costs.later if words else self._costs.first
            word = rng.choice(WORDS)
            if costs[word] > left:
                word = min(WORDS, key=lambda w: (costs[w] > left, left - costs[w]))
            words.append(word)
            left -= costs[word]
        return left
