"""Train the byte-level BPE on the corpus, and turn conversations into ids.

Digits are never merged, nor capitals in a row: a number is its digits and LEMON its letters, which is what
sums and spelling need. Text is split as `tokenizers`' ByteLevel does; llama.cpp calls the same split "gpt-2".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from cobali_workloads.models.vocabulary import (
    CONTROL,
    CONTROL_TOKENS,
    END_OF_MESSAGE,
    NORMAL,
    START_OF_MESSAGE,
    Vocabulary,
)
from training.corpus.example import Turn

N_TOKENS = 4096
_LONE = Regex(r"\d|\p{Lu}(?=\p{Lu})|(?<=\p{Lu})\p{Lu}")


def train(texts: Iterable[str], n_tokens: int = N_TOKENS) -> Tokenizer:
    """Train a tokenizer of at most `n_tokens`, the three control tokens last."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(_LONE, "isolated"), byte_level])
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens - len(CONTROL_TOKENS),
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _finished(tokenizer)  # the merges remember what was never merged


def _finished(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS]
    )
    return tokenizer


def own_texts() -> list[str]:
    """Return the prose that ships with the package: it teaches ordinary words that the corpus lacks."""
    folder = resources.files("cobali_workloads.models") / "text"
    return [
        (folder / name).read_text(encoding="utf-8")
        for name in ("prose.txt", "words.txt", "languages.txt", "code.txt")
    ]


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """Return it as the GGUF file wants it."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    tokens = tuple(sorted(ids, key=ids.__getitem__))
    types = tuple(CONTROL if token in CONTROL_TOKENS else NORMAL for token in tokens)
    merges = tuple(f"{left} {right}" for left, right in json.loads(tokenizer.to_str())["model"]["merges"])
    return Vocabulary(tokens, types, merges, "gpt-2")


def of_vocabulary(words: Vocabulary) -> Tokenizer:
    """Return the tokenizer that a GGUF file holds; the opposite of `vocabulary`."""
    ids = {token: i for i, token in enumerate(words.tokens) if token not in CONTROL_TOKENS}
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in words.merges)]
    return _finished(Tokenizer(models.BPE(ids, merges)))


@dataclass(frozen=True, slots=True)
class Encoded:
    """A conversation in ids; `spoken` marks what the assistant says, end tokens included."""

    ids: list[int]
    spoken: list[bool]


class Encoder:
    """ChatML in ids, as the server's chat template and llama.cpp's tokenizer make them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        (self.end,) = tokenizer.encode(END_OF_MESSAGE).ids
        self._newline = tokenizer.encode("\n").ids
        self._heads = {
            role: tokenizer.encode(f"{START_OF_MESSAGE}{role}\n").ids
            for role in ("system", "user", "assistant")
        }

    def prompt(self, turns: Sequence[Turn]) -> list[int]:
        """Return the ids of a conversation up to where the assistant answers."""
        return (
            self._join(turns, self.tokenizer.encode_batch([turn.text for turn in turns])).ids
            + self._heads["assistant"]
        )

    def batch(self, conversations: Sequence[Sequence[Turn]]) -> list[Encoded]:
        """Encode many conversations at once."""
        encodings = iter(
            self.tokenizer.encode_batch([turn.text for turns in conversations for turn in turns])
        )
        return [self._join(turns, [next(encodings) for _ in turns]) for turns in conversations]

    def _join(self, turns: Sequence[Turn], encodings: Sequence[object]) -> Encoded:
        ids: list[int] = []
        spoken: list[bool] = []
        for turn, encoding in zip(turns, encodings, strict=True):
            head, body = self._heads[turn.role], [*encoding.ids, self.end]  # type: ignore[attr-defined]
            ids += head + body + self._newline
            spoken += (
                [False] * len(head) + [turn.role == "assistant"] * len(body) + [False] * len(self._newline)
            )
        return Encoded(ids, spoken)


def load(path: Path) -> Tokenizer:
    """Read a trained tokenizer."""
    return Tokenizer.from_file(str(path))
