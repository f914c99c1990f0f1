"""A byte-level BPE vocabulary as a value, and the three places it may come from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cobali_ray.errors import ConfigError
from cobali_ray.models.ggufmeta import GgufReader, read_header
from cobali_workloads.models import bpe

if TYPE_CHECKING:
    from pathlib import Path

NORMAL, CONTROL = 1, 3  # llama.cpp's token types
END_OF_TEXT, START_OF_MESSAGE, END_OF_MESSAGE = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, START_OF_MESSAGE, END_OF_MESSAGE)
_DIGEST_BYTES = 64 << 20  # a vocabulary file is smaller; of a whole model the header is


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id with their types, merges by rank, and the name of llama.cpp's rule for splitting words."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    pre: str

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.types):
            raise ValueError(f"{len(self.tokens)} tokens have {len(self.types)} types")
        missing = [token for token in CONTROL_TOKENS if token not in self.tokens]
        if missing:
            raise ValueError(f"it lacks the control tokens {', '.join(missing)}")

    def token_id(self, token: str) -> int:
        """Return the id of a token that is there."""
        return self.tokens.index(token)


class VocabularySource(Protocol):
    """Where a vocabulary comes from. The digest is quick to tell; loading may take seconds."""

    def digest(self) -> str: ...
    def load(self, n_vocab: int) -> Vocabulary: ...


class TrainedVocabulary:
    """A vocabulary trained on the texts that ship with the package."""

    def digest(self) -> str:
        return bpe.corpus_digest()

    def load(self, n_vocab: int) -> Vocabulary:
        tokens, merges = bpe.train(n_vocab - len(CONTROL_TOKENS))
        return _closed(tokens, merges)


class PaddedVocabulary:
    """The trained vocabulary made as large as asked for with invented words, which no text tokenises to."""

    n_trained = 4096

    def digest(self) -> str:
        return "padded" + bpe.corpus_digest()

    def load(self, n_vocab: int) -> Vocabulary:
        tokens, merges = bpe.train(self.n_trained - len(CONTROL_TOKENS))
        n_fillers = n_vocab - len(tokens) - len(CONTROL_TOKENS)
        return _closed(tokens + bpe.invented_words(n_fillers, existing=frozenset(tokens)), merges)


class CopiedVocabulary:
    """The vocabulary of a GGUF file, with its ids."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def digest(self) -> str:
        try:
            with self.path.open("rb") as file:
                return hashlib.sha256(file.read(_DIGEST_BYTES)).hexdigest()
        except OSError as error:
            raise ConfigError("--vocab-gguf", f"'{self.path}' cannot be read: {error.strerror}") from error

    def load(self, n_vocab: int) -> Vocabulary:
        try:
            vocabulary = _read(self.path)
        except ConfigError as error:
            raise ConfigError("--vocab-gguf", error.message) from error
        except (KeyError, ValueError) as error:
            raise ConfigError(
                "--vocab-gguf", f"'{self.path}' has no ChatML byte-level vocabulary: {error}"
            ) from error
        if len(vocabulary.tokens) != n_vocab:
            raise ConfigError(
                "--vocab-gguf", f"'{self.path}' has {len(vocabulary.tokens)} tokens and the model {n_vocab}"
            )
        return vocabulary


def _closed(tokens: tuple[str, ...], merges: tuple[str, ...]) -> Vocabulary:
    types = (NORMAL,) * len(tokens) + (CONTROL,) * len(CONTROL_TOKENS)
    # "gpt-2" is llama.cpp's name for the split that tokenizers' ByteLevel does.
    return Vocabulary(tokens + CONTROL_TOKENS, types, merges, "gpt-2")


class _WordReader(GgufReader):
    def _words(self, length: int) -> list[str]:
        return [self._string() for _ in range(length)]

    def _number_array(self, code: str, length: int) -> list[int]:
        return self._numbers(code, length)


def _read(path: Path) -> Vocabulary:
    metadata = read_header(path, _WordReader).metadata
    model, tokens, types, merges, pre = (
        metadata[f"tokenizer.ggml.{key}"] for key in ("model", "tokens", "token_type", "merges", "pre")
    )
    if model != "gpt2":
        raise ValueError(f"its tokenizer is '{model}', not 'gpt2'")
    for token in CONTROL_TOKENS:
        if token in tokens:
            types[tokens.index(token)] = CONTROL
    return Vocabulary(tuple(tokens), tuple(types), tuple(merges), str(pre))
