"""Train a byte-level BPE on the texts that ship with the package; invent words to fill a larger vocabulary.

The corpus is text files and words derived from them by rule, never the package's own sources: those change
with every release, and a model's name would then stand for other tokens.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib import metadata, resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SUFFIXES = ("", "s", "ed", "ing", "er", "ly", "ness", "able", "ation", "ment")
_ONSETS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gl",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "z",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ei", "ou")
_TEXT_WEIGHT = 20  # against the derived words, which would otherwise outnumber the real ones
_STRIDE = 7919  # a prime: neighbours in id differ in more than the last syllable
_SPACE = "\u0120"  # how the byte-level alphabet writes a space


def corpus() -> Iterator[str]:
    """Yield the training text, the same on every machine: the shipped files by name, then derived words."""
    folder = resources.files("cobali_workloads.models") / "text"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".txt")), key=lambda f: f.name)
    texts = [f.read_text(encoding="utf-8") for f in files]
    yield from texts * _TEXT_WEIGHT
    words = sorted({word for text in texts for word in text.split() if word.isascii() and word.isalpha()})
    for suffix in _SUFFIXES:
        yield " ".join(word.lower() + suffix for word in words)
    for thousands in range(20):
        yield " ".join(str(thousands * 1000 + n * 37 % 1000) for n in range(100))


def corpus_digest() -> str:
    """Return what a trained vocabulary depends on, as hex: the corpus and the trainer's release."""
    digest = hashlib.sha256(metadata.version("tokenizers").encode())
    for text in corpus():
        digest.update(text.encode())
    return digest.hexdigest()


@cache
def train(n_tokens: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Train a BPE of exactly `n_tokens`. Returns the tokens by id and the merges by rank, each "left right".

    All 256 bytes are in it, so any text can be written. Where the corpus gives out, invented words fill up.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = tuple(sorted(model["vocab"], key=model["vocab"].__getitem__))
    merges = tuple(f"{left} {right}" for left, right in model["merges"])
    return tokens + invented_words(n_tokens - len(tokens), existing=frozenset(tokens)), merges


def invented_words(n_words: int, *, existing: frozenset[str]) -> tuple[str, ...]:
    """Make up `n_words` different tokens, each a space and three syllables, none of them in `existing`."""
    syllables = [onset + vowel for onset in _ONSETS for vowel in _VOWELS]
    n = len(syllables)
    if n_words + len(existing) > n**3:
        raise ValueError(f"{n_words} words are more than the syllables give")
    words: dict[str, None] = {}
    for index in range(n**3):
        if len(words) == n_words:
            break
        number = index * _STRIDE % n**3
        word = _SPACE + syllables[number % n] + syllables[number // n % n] + syllables[number // n**2]
        if word not in existing:
            words[word] = None
    return tuple(words)
