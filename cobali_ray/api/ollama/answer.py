"""Answers as Ollama's API writes them: one object, or one a line. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

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

    def __bool__(self) -> bool:
        return bool(self.content or self.thinking or self.calls)


class Style(NamedTuple):
    """What differs between the routes, and from request to request."""

    model: str | None
    """As the client called it."""
    say: Callable[[AnswerPart], dict[str, Any]]
    with_context: bool = False
    """Whether the answer comes back with the tokens from which a next one can go on."""


def chat_message(said: AnswerPart) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.content}
    if said.thinking:
        message["thinking"] = said.thinking
    if said.calls:
        message["tool_calls"] = said.calls
    return {"message": message}


def response(said: AnswerPart) -> dict[str, Any]:
    return {"response": said.content} | ({"thinking": said.thinking} if said.thinking else {})


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
        """Of the call that is being written: it is told when it is whole."""
        self._tokens: list[int] = []
        self._said: list[AnswerPart] = []
        self._logprobs: list[dict[str, Any]] = []
        self._end: End

    # -- as one object

    def add(self, update: Update) -> None:
        said, logprobs = self._take(update)
        self._said += said
        self._logprobs += chat_logprob_items(logprobs)
        if update.end is not None:
            self._end = update.end

    def body(self, times: Timings) -> Any:
        said = AnswerPart(
            "".join(one.content for one in self._said),
            "".join(one.thinking for one in self._said),
            tuple(call for one in self._said for call in one.calls),
        )
        told = self._last(said, self._end, times)
        return told | ({"logprobs": self._logprobs} if self._call.with_logprobs else {})

    # -- as lines

    def progress(self, index: int, told: dict[str, Any]) -> bytes:  # noqa: ARG002 there is one
        return _wire(self._line(AnswerPart()) | told)

    def say(self, update: Update) -> bytes:
        """Return the lines of what a batch adds; logprobs go with the first."""
        said, logprobs = self._take(update)
        if logprobs and not said:
            said = [AnswerPart()]
        lines = [self._line(one, () if i else logprobs) for i, one in enumerate(said)]
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
        found: list[AnswerPart] = []
        events, logprobs = self._turn.take(update)
        for event in events:
            match event:
                case ReasoningText(text):
                    found.append(AnswerPart(thinking=text))
                case ContentText(text) | CallBroken(_, text):
                    found.append(AnswerPart(text))
                case CallBegun(_, name):
                    self._name, self._arguments = name, []
                case CallArguments(_, text):
                    self._arguments.append(text)
                case CallEnded(index):
                    arguments = orjson.Fragment("".join(self._arguments))
                    function = {"index": index, "name": self._name, "arguments": arguments}
                    call = {"id": self._turn.tool_call_id(index), "function": function}
                    found.append(AnswerPart(calls=(call,)))
        return found, logprobs

    def _line(self, said: AnswerPart, logprobs: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
        told = self._head | self._style.say(said) | {"done": False}
        return told | ({"logprobs": chat_logprob_items(logprobs)} if logprobs else {})

    def _last(self, said: AnswerPart, end: End, times: Timings) -> dict[str, Any]:
        """Return how the answer ended, with what is said at last."""
        stats = end.stats
        told: dict[str, Any] = (
            self._head
            | self._style.say(said)
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
            told["context"] = [*self._call.requests[0].prompt, *self._tokens]
        return told


def when(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def nanoseconds(seconds: float | None) -> int:
    return round((seconds or 0.0) * 1e9)


def _wire(told: dict[str, Any]) -> bytes:
    return orjson.dumps(told) + b"\n"


def many_vectors(rows: Rows, model: str, n_tokens: int) -> Iterator[bytes]:
    yield b'{"model":%b,"embeddings":[' % orjson.dumps(model)
    yield from in_parts(rows, lambda _, row: row)
    yield b'],"prompt_eval_count":%d}' % n_tokens


def one_vector(rows: Rows, model: str, n_tokens: int) -> Iterator[bytes]:
    del model, n_tokens
    yield orjson.dumps({"embedding": rows[0]}, option=orjson.OPT_SERIALIZE_NUMPY)
