"""Events of a stream as ready-made bytes. Pure.

A token costs one JSON-escaped string between two constants; dicts appear only where logprobs were asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import orjson

from cobali_ray.api.answer import Times, timings, usage
from cobali_ray.api.faults import Fault
from cobali_ray.api.logprobs import CompletionLogprobs, chat_logprob_items
from cobali_ray.api.translate import Call
from cobali_ray.core.events import FinishReason, RequestStats, TokenLogprob

DONE = b"data: [DONE]\n\n"


def event(body: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + orjson.dumps(body) + b"\n\n"


def failure(fault: Fault) -> bytes:
    """Return how a stream says that it failed halfway, and its end."""
    return event(fault.body) + DONE


class Frames(ABC):
    """The chunks of one call. Choices are named by their index."""

    kind: str

    def __init__(self, call: Call) -> None:
        self._call = call
        constants = {
            "id": call.call_id,
            "object": self.kind,
            "created": call.created,
            "model": call.model,
            "system_fingerprint": call.fingerprint,
        }
        # The head without its closing brace: the choices follow.
        self._head = b"data: " + orjson.dumps(constants)[:-1] + b',"choices":['
        # OpenAI writes usage: null into every chunk but the last, if the last has it.
        self._tail = b'],"usage":null' if call.include_usage else b"]"
        self._plain_after = self._after(b"null") + self._tail + b"}\n\n"
        self._befores = [self._head + self._before(index) for index in range(len(call.requests))]

    def text(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        """Return the chunk with further text of one choice."""
        if not self._call.with_logprobs:
            return self._befores[index] + orjson.dumps(text) + self._plain_after
        wire = orjson.dumps(self._logprobs(index, logprobs))
        return b"".join((self._befores[index], orjson.dumps(text), self._after(wire), self._tail, b"}\n\n"))

    @abstractmethod
    def opening(self, index: int) -> bytes:
        """Return what goes before the first text of a choice; may be empty."""

    @abstractmethod
    def closing_choice(self, index: int, reason: bytes) -> bytes:
        """Return the JSON of a choice that has ended."""

    def closing(
        self, index: int, reason: FinishReason | None, stats: Sequence[RequestStats] | None, times: Times
    ) -> bytes:
        """Return the chunk with the finish reason; `stats` of all choices put the timings into it."""
        wire = self._head + self.closing_choice(index, orjson.dumps(reason)) + self._tail
        if stats is not None:
            wire += b',"timings":' + orjson.dumps(timings(stats, times))
        return wire + b"}\n\n"

    def usage(self, stats: Sequence[RequestStats], times: Times) -> bytes:
        """Return the chunk without choices that counts the tokens."""
        counted = {"usage": usage(self._call, stats), "timings": timings(stats, times)}
        return self._head + b"]," + orjson.dumps(counted)[1:] + b"\n\n"

    @abstractmethod
    def _before(self, index: int) -> bytes: ...

    @abstractmethod
    def _after(self, logprobs: bytes) -> bytes: ...

    @abstractmethod
    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]: ...


class ChatFrames(Frames):
    """Chunks of POST /v1/chat/completions."""

    kind = "chat.completion.chunk"

    def opening(self, index: int) -> bytes:
        """Return the chunk that says whose turn it is."""
        choice = (
            b'{"index":%d,"delta":{"role":"assistant","content":"","refusal":null},' % index
            + b'"logprobs":null,"finish_reason":null}'
        )
        return self._head + choice + self._tail + b"}\n\n"

    def closing_choice(self, index: int, reason: bytes) -> bytes:
        """Return an empty delta with the finish reason."""
        return b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b}' % (index, reason)

    def _before(self, index: int) -> bytes:
        return b'{"index":%d,"delta":{"content":' % index

    def _after(self, logprobs: bytes) -> bytes:
        return b'},"logprobs":' + logprobs + b',"finish_reason":null}'

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:  # noqa: ARG002 no offset
        return {"content": chat_logprob_items(logprobs), "refusal": None}


class CompletionFrames(Frames):
    """Chunks of POST /v1/completions."""

    kind = "text_completion"

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._counts = [CompletionLogprobs(len(echo)) for echo in call.echoes]

    def opening(self, index: int) -> bytes:
        """Return the prompt, where the client wants it back."""
        echo = self._call.echoes[index]
        return self._befores[index] + orjson.dumps(echo) + self._plain_after if echo else b""

    def closing_choice(self, index: int, reason: bytes) -> bytes:
        """Return an empty text with the finish reason."""
        return b'{"index":%d,"text":"","logprobs":null,"finish_reason":%b}' % (index, reason)

    def _before(self, index: int) -> bytes:
        return b'{"index":%d,"text":' % index

    def _after(self, logprobs: bytes) -> bytes:
        return b',"logprobs":' + logprobs + b',"finish_reason":null}'

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return self._counts[index].take(logprobs)
