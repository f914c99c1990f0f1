"""Logprobs of the engine -> the two shapes OpenAI has for them. Pure, apart from an offset that counts on."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import orjson

from cobali_ray.core.request.events import TokenLogprob

Lists: TypeAlias = dict[str, list[Any]]
"""Facts about tokens: by name, a list with an item for each token."""

MIN_LOGPROB = -9999.0
"""JSON has no infinity; OpenAI writes this for a token that was next to impossible."""


def chat_logprob_items(logprobs: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """Return what stands in `logprobs.content` of a chat choice, one item per token."""
    return [
        chat_item(item.piece, item.logprob)
        | {"top_logprobs": [chat_item(piece, logprob) for _, piece, logprob in item.top]}
        for item in logprobs
    ]


def chat_content(logprobs: Iterable[TokenLogprob]) -> Lists:
    return {"content": chat_logprob_items(logprobs)}


class CompletionLogprobs:
    """Logprobs of one completion choice: of its prompt, or of its answer.

    `text_offset` counts characters of its text so far. Of each token's alternatives it has `n_top`.
    """

    def __init__(self, offset: int, n_top: int | None = None) -> None:
        self._offset, self._n_top = offset, n_top
        # A character may span tokens: only a decoder with memory counts it once, at its last token.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def offset(self) -> int:
        return max(self._offset, 0)

    def take(self, logprobs: Iterable[TokenLogprob]) -> Lists:
        tokens: list[str] = []
        token_logprobs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for item in logprobs:
            tokens.append(_text(item.piece))
            offsets.append(self.offset)
            self._offset += len(self._decoder.decode(item.piece))
            if item.logprob is None:
                token_logprobs.append(None)
                tops.append(None)
                continue
            logprob = _finite(item.logprob)
            token_logprobs.append(logprob)
            top: dict[str, float] = {}
            for _, piece, other in item.top[: self._n_top]:
                # Halves of characters may share a spelling; the likeliest keeps it.
                top.setdefault(_text(piece), _finite(other))
            top.setdefault(tokens[-1], logprob)
            tops.append(top)
        return {
            "tokens": tokens,
            "token_logprobs": token_logprobs,
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def prompt_lists(n_top: int, logprobs: Iterable[TokenLogprob]) -> Lists:
    """Return what `prompt_logprobs` has of some tokens of a prompt, in vLLM's shape."""
    return {"prompt_logprobs": [_prompt_item(logprob, n_top) for logprob in logprobs]}


def _prompt_item(entry: TokenLogprob, n_top: int) -> dict[str, dict[str, Any]] | None:
    """Return the token itself, then the likeliest, by their ids."""
    if entry.logprob is None:
        return None
    item = {str(entry.token_id): _ranked(entry.piece, entry.logprob, entry.rank)}
    for rank, (token, piece, logprob) in enumerate(entry.top[:n_top], 1):
        item.setdefault(str(token), _ranked(piece, logprob, rank))
    return item


class WholeLogprobs:
    """Logprobs of a choice or its prompt, encoded as they come: at its end they would hold the event loop."""

    def __init__(self, take: Callable[[Iterable[TokenLogprob]], Lists]) -> None:
        """`take` turns those of further tokens into lists, under the same names each time."""
        self._take = take
        self._lists: dict[str, list[bytes]] = {name: [] for name in take(())}

    def add(self, logprobs: Sequence[TokenLogprob]) -> None:
        if logprobs:
            self.extend(self._take(logprobs))

    def extend(self, lists: Lists) -> None:
        """Add lists made elsewhere, of one token at least."""
        for name, items in lists.items():
            self._lists[name].append(orjson.dumps(items)[1:-1])

    def json(self) -> dict[str, orjson.Fragment]:
        return {name: orjson.Fragment(b"[%b]" % b",".join(parts)) for name, parts in self._lists.items()}


def chat_item(piece: bytes, logprob: float | None) -> dict[str, Any]:
    wire = None if logprob is None else _finite(logprob)
    return {"token": _text(piece), "logprob": wire, "bytes": list(piece)}


def _ranked(piece: bytes, logprob: float, rank: int | None) -> dict[str, Any]:
    return {"logprob": _finite(logprob), "rank": rank, "decoded_token": _text(piece)}


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    # In this order a NaN loses as well.
    return max(MIN_LOGPROB, logprob)
