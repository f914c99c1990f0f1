"""Answers as Ollama's API writes them: one object, or one a line. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

import orjson

from cobali_ray.api.call.translate import Call
from cobali_ray.api.door.faults import Fault
from cobali_ray.api.door.timings import Timings
from cobali_ray.api.reply.answer import Writer
from cobali_ray.api.reply.logprobs import chat_logprob_items
from cobali_ray.api.reply.turn import ChoiceState, Update
from cobali_ray.api.reply.vectors import Rows, in_parts
from cobali_ray.chat.answer_events import (
    CallArguments,
    CallBegun,
    CallBroken,
    CallEnded,
    ContentText,
    ReasoningText,
)
from cobali_ray.core.request.events import End, RequestStats, TokenLogprob

NDJSON = b"application/x-ndjson"


class AnswerPart(NamedTuple):
    content: str = ""
    thinking: str = ""
    calls: tuple[dict[str, Any], ...] = ()


class Style(NamedTuple):
    """What differs between the routes, and from request to request."""

    model: str | None
    """As the client called it."""
    say: Callable[[AnswerPart], dict[str, Any]]
    with_context: bool = False
    """Whether the answer has the tokens from which a next one can go on."""


def chat_message(part: AnswerPart) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": part.content}
    if part.thinking:
        message["thinking"] = part.thinking
    if part.calls:
        message["tool_calls"] = part.calls
    return {"message": message}


def response(part: AnswerPart) -> dict[str, Any]:
    return {"response": part.content} | ({"thinking": part.thinking} if part.thinking else {})


class TalkWriter(Writer):
    """One answer, as a stream of objects, one a line, or as one object."""

    media_type = NDJSON
    ping = b""

    def __init__(self, call: Call, *, style: Style) -> None:
        super().__init__(call)
        self._style = style
        self._head = {"model": style.model or call.model, "created_at": when(call.created)}
        self._turn = None if call.speech is None else ChoiceState(call.speech, call.call_id, 0)
        self._name = ""
        self._arguments: list[str] = []
        """Of the call that is being written, which is sent when it is whole."""
        self._tokens: list[int] = []
        self._parts: list[AnswerPart] = []
        self._logprobs: list[dict[str, Any]] = []
        self._end: End

    # -- as one object

    def add(self, update: Update) -> None:
        parts, logprobs = self._take(update)
        self._parts += parts
        self._logprobs += chat_logprob_items(logprobs)
        if update.end is not None:
            self._end = update.end

    def body(self, times: Timings) -> Any:
        whole = AnswerPart(
            "".join(part.content for part in self._parts),
            "".join(part.thinking for part in self._parts),
            tuple(call for part in self._parts for call in part.calls),
        )
        answer = self._last(whole, self._end, times)
        return answer | ({"logprobs": self._logprobs} if self._call.with_logprobs else {})

    # -- as lines

    def progress(self, index: int, fields: dict[str, Any]) -> bytes:  # noqa: ARG002 there is one
        return _wire(self._line(AnswerPart()) | fields)

    def say(self, update: Update) -> bytes:
        """Return the lines of what a batch adds; logprobs go with the first."""
        parts, logprobs = self._take(update)
        if logprobs and not parts:
            parts = [AnswerPart()]
        lines = [self._line(part, () if i else logprobs) for i, part in enumerate(parts)]
        return b"".join(map(_wire, lines))

    def closing(self, index: int, end: End, stats: Sequence[RequestStats] | None, times: Timings) -> bytes:  # noqa: ARG002 the seam's
        return _wire(self._last(AnswerPart(), end, times))

    def failure(self, fault: Fault) -> bytes:
        return _wire(fault.body)

    # -- both

    def _take(self, update: Update) -> tuple[list[AnswerPart], list[TokenLogprob]]:
        if self._style.with_context:
            for delta in update.deltas:
                self._tokens += delta.tokens
        if self._turn is None:
            return ([AnswerPart(update.text)] if update.text else []), update.logprobs
        parts: list[AnswerPart] = []
        events, logprobs = self._turn.take(update)
        for event in events:
            match event:
                case ReasoningText(text):
                    parts.append(AnswerPart(thinking=text))
                case ContentText(text) | CallBroken(_, text):
                    parts.append(AnswerPart(text))
                case CallBegun(_, name):
                    self._name, self._arguments = name, []
                case CallArguments(_, text):
                    self._arguments.append(text)
                case CallEnded(index):
                    arguments = orjson.Fragment("".join(self._arguments))
                    function = {"index": index, "name": self._name, "arguments": arguments}
                    call = {"id": self._turn.tool_call_id(index), "function": function}
                    parts.append(AnswerPart(calls=(call,)))
        return parts, logprobs

    def _line(self, part: AnswerPart, logprobs: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
        line = self._head | self._style.say(part) | {"done": False}
        return line | ({"logprobs": chat_logprob_items(logprobs)} if logprobs else {})

    def _last(self, part: AnswerPart, end: End, times: Timings) -> dict[str, Any]:
        """Return the last line: `part`, and how the answer ended."""
        stats = end.stats
        line: dict[str, Any] = (
            self._head
            | self._style.say(part)
            | {
                "done": True,
                "done_reason": end.finish_reason,
                "total_duration": nanoseconds(times.e2e_s),
                "load_duration": 0,
                "prompt_eval_count": stats.n_prompt,
                "prompt_eval_duration": nanoseconds(stats.prefill_s),
                "eval_count": stats.n_output,
                "eval_duration": nanoseconds(stats.decode_s),
            }
        )
        if self._style.with_context and not self._call.requests[0].images:  # those are no tokens
            line["context"] = [*self._call.requests[0].prompt, *self._tokens]
        return line


def when(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def nanoseconds(seconds: float | None) -> int:
    return round((seconds or 0.0) * 1e9)


def _wire(line: dict[str, Any]) -> bytes:
    return orjson.dumps(line) + b"\n"


WriteVectors: TypeAlias = Callable[[Rows, str, int], Iterator[bytes]]


def many_vectors(rows: Rows, model: str, n_tokens: int) -> Iterator[bytes]:
    yield b'{"model":%b,"embeddings":[' % orjson.dumps(model)
    yield from in_parts(rows, lambda _, row: row)
    yield b'],"prompt_eval_count":%d}' % n_tokens


def one_vector(rows: Rows, model: str, n_tokens: int) -> Iterator[bytes]:
    del model, n_tokens
    yield orjson.dumps({"embedding": rows[0]}, option=orjson.OPT_SERIALIZE_NUMPY)
