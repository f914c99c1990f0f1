"""Embedding requests: texts that become vectors, or scores, and what a model makes of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias

from cobali_ray.core.request.request import MAX_PRIORITY, MIN_PRIORITY, require
from cobali_ray.errors import InvalidParameterError, TextTooLongError

Pooling: TypeAlias = Literal["mean", "cls", "last", "rank"]
"""How the vectors of a text's tokens become one; of `rank` it is a score."""
ChosenPooling: TypeAlias = Literal["mean", "cls", "last"]
"""The poolings that an operator may choose: only a model with a head for scores has `rank`."""

MAX_TEXTS = 4096
"""Texts of one request."""


class EmbeddingKind(NamedTuple):
    """What a model makes of texts, and how many at once."""

    width: int
    """Numbers of a vector."""
    n_most: int
    """Most tokens of a text."""
    n_batch: int
    """Most tokens of one pass."""
    n_together: int
    """Most tokens of several texts in one pass."""
    n_texts: int
    """Most texts of one pass."""
    pooling: Pooling
    splits: bool = False
    """Whether a text may be computed in pieces."""
    probability: bool = False
    """Whether scores are probabilities already."""


NO_EMBEDDINGS = EmbeddingKind(0, 0, 0, 0, 0, "mean")
"""Of a model that takes no texts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmbeddingRequest:
    """Texts to embed, or to score."""

    request_id: str
    prompt: array[int]
    """The tokens of all texts, one after another."""
    ends: tuple[int, ...]
    """Where each of them ends."""
    timeout_s: float | None = None
    reply_to: str = ""
    """The address for its events; opaque to the engine."""
    received_s: float | None = None
    """When its HTTP request began to arrive, on the machine's monotonic clock; None without HTTP."""
    attempt: int = 0
    """How many engines had it before and did not finish it."""
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0

    cache_salt: ClassVar[None] = None
    """No prefix is kept of it."""

    def __post_init__(self) -> None:
        if not 0 < len(self.ends) <= MAX_TEXTS:
            raise InvalidParameterError("input", f": 1 to {MAX_TEXTS} texts, got {len(self.ends)}")
        if any(end <= start for start, end in zip((0, *self.ends), self.ends, strict=False)):
            raise InvalidParameterError("input", ": a text must have at least one token")
        if self.timeout_s is not None:
            require("timeout_s", self.timeout_s, low=0, high=1e9, open_low=True)
        require("priority", self.priority, low=MIN_PRIORITY, high=MAX_PRIORITY)

    @classmethod
    def of(cls, texts: Iterable[Sequence[int]], **fields: object) -> Self:
        tokens, ends = array("i"), list[int]()
        for text in texts:
            tokens.extend(text)
            ends.append(len(tokens))
        return cls(prompt=tokens, ends=tuple(ends), **fields)  # type: ignore[arg-type]

    @property
    def n_prompt(self) -> int:
        """Tokens of all texts."""
        return len(self.prompt)

    @property
    def lengths(self) -> list[int]:
        return [end - start for start, end in zip((0, *self.ends), self.ends, strict=False)]

    def text(self, index: int) -> array[int]:
        return self.prompt[self.ends[index - 1] if index else 0 : self.ends[index]]

    def check(self, kind: EmbeddingKind, n_vocab: int) -> None:
        """Raise BadRequestError for what this model cannot take."""
        if (longest := max(self.lengths)) > kind.n_most:
            raise TextTooLongError("input", longest, kind.n_most)
        if min(self.prompt) < 0 or max(self.prompt) >= n_vocab:
            raise InvalidParameterError("input", f": token ids must be in 0 .. {n_vocab - 1}")


class TextPiece(NamedTuple):
    """A text, or the next tokens of one that is computed in pieces, which is always the first of its pass."""

    request: EmbeddingRequest
    text_id: int
    """Which of its texts."""
    start: int
    tokens: array[int]
    last: bool
    """Whether the text is computed with it."""
