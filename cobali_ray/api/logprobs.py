"""Logprobs of the engine -> the two shapes OpenAI has for them. Pure, apart from an offset that counts on."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from cobali_ray.core.events import TokenLogprob

LEAST_LOGPROB = -9999.0
"""JSON has no infinity; OpenAI writes this for a token that was next to impossible."""


def chat_logprob_items(logprobs: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """Return what stands in `logprobs.content` of a chat choice, one item per token."""
    return [
        _chat_item(item.piece, item.logprob)
        | {"top_logprobs": [_chat_item(piece, logprob) for _, piece, logprob in item.top]}
        for item in logprobs
    ]


class ChatLogprobs:
    """The logprobs of one chat choice."""

    def take(self, logprobs: Iterable[TokenLogprob]) -> dict[str, list[Any]]:
        """Return the list for further tokens."""
        return {"content": chat_logprob_items(logprobs)}


class CompletionLogprobs:
    """The logprobs of one completion choice; `text_offset` counts characters of its text so far."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        # A character may span tokens: only a decoder with memory counts it once, at its last token.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, logprobs: Iterable[TokenLogprob]) -> dict[str, list[Any]]:
        """Return the four parallel lists for further tokens."""
        tokens, token_logprobs, tops, offsets = [], [], [], []
        for item in logprobs:
            tokens.append(_text(item.piece))
            token_logprobs.append(finite(item.logprob))
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(item.piece))
            top: dict[str, float] = {}
            for _, piece, logprob in item.top:
                # Halves of characters may share a spelling; the likeliest keeps it.
                top.setdefault(_text(piece), finite(logprob))
            top.setdefault(tokens[-1], token_logprobs[-1])
            tops.append(top)
        return {
            "tokens": tokens,
            "token_logprobs": token_logprobs,
            "top_logprobs": tops,
            "text_offset": offsets,
        }


class WholeLogprobs:
    """The logprobs of a choice that is answered in one piece, encoded as they come.

    A long answer with 20 alternatives has a hundred thousand of them: all at once, at its end, they would
    hold the event loop.
    """

    def __init__(self, kind: ChatLogprobs | CompletionLogprobs) -> None:
        self._kind = kind
        self._lists: dict[str, list[bytes]] = {name: [] for name in kind.take(())}

    def add(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Add the logprobs of further tokens."""
        if logprobs:
            for name, items in self._kind.take(logprobs).items():
                self._lists[name].append(orjson.dumps(items)[1:-1])

    def json(self) -> dict[str, orjson.Fragment]:
        """Return all lists, ready to stand in an answer."""
        return {name: orjson.Fragment(b"[%b]" % b",".join(parts)) for name, parts in self._lists.items()}


def _chat_item(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _text(piece), "logprob": finite(logprob), "bytes": list(piece)}


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def finite(logprob: float) -> float:
    """Return a logprob as JSON can have it."""
    # In this order a NaN loses as well.
    return max(LEAST_LOGPROB, logprob)
