"""Answers as Anthropic's API writes them: blocks of content, one after the other. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import orjson

from cobali_ray.api.call.translate import Call
from cobali_ray.api.door.faults import Fault
from cobali_ray.api.door.timings import Timings
from cobali_ray.api.reply.answer import Writer
from cobali_ray.api.reply.turn import ChoiceState, Update
from cobali_ray.chat.answer_events import (
    CallArguments,
    CallBegun,
    CallBroken,
    CallEnded,
    ContentText,
    ReasoningText,
)
from cobali_ray.core.request.events import End, RequestStats

StreamEvent = dict[str, Any]
"""One event of a stream; its `type` is also its name."""

_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}
"""Of a block that is text: the type of its deltas, and where in them the text stands."""


class MessageWriter(Writer):
    """The answer of POST /v1/messages, as events or whole. A block is closed before the next one begins."""

    ping = b'event: ping\ndata: {"type":"ping"}\n\n'

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._turn = None if call.speech is None else ChoiceState(call.speech, call.call_id, 0)
        self._n_begun = 0
        self._open = ""
        """The type of the block that is open."""
        self._stats: RequestStats | None = None
        """As they were when the answer began."""
        self._events: list[StreamEvent] = []
        self._broken: set[int] = set()
        """Blocks that turned out to be no calls, which a stream has sent already."""
        self._end: End

    # -- whole

    def add(self, update: Update) -> None:
        self._events += self._take(update)
        if update.end is not None:
            self._end = update.end

    def body(self, times: Timings) -> Any:  # noqa: ARG002 the API has no place for them
        ending, usage = self._ending(self._end), self._usage(self._end.stats)
        blocks = [block for i, block in enumerate(content_of(self._events)) if i not in self._broken]
        return self._head() | {"content": blocks} | ending | {"usage": usage}

    # -- as events

    def opening(self, index: int) -> bytes:  # noqa: ARG002 there is one
        begun: StreamEvent = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(self._stats),
        }
        return _wire([{"type": "message_start", "message": self._head() | begun}])

    def progress(self, index: int, fields: dict[str, Any]) -> bytes:  # noqa: ARG002 there is one
        return _wire([{"type": "ping"} | fields])

    def say(self, update: Update) -> bytes:
        if self._stats is None:
            first = next((delta.stats for delta in update.deltas if delta.stats is not None), None)
            self._stats = first or (update.end and update.end.stats)
        return _wire(self._take(update))

    def closing(self, index: int, end: End, stats: Sequence[RequestStats] | None, times: Timings) -> bytes:  # noqa: ARG002 the seam's
        usage = self._usage(end.stats)
        delta = {"type": "message_delta", "delta": self._ending(end), "usage": usage}
        return _wire([*self._close(), delta, {"type": "message_stop"}])

    def failure(self, fault: Fault) -> bytes:
        return _wire([fault.body | {"type": "error"}])

    # -- both

    def finish_reason(self, index: int, end: End) -> str | None:  # noqa: ARG002 there is one
        reason = end.finish_reason if self._turn is None else self._turn.finish_reason(end)
        if reason == "stop":
            return "end_turn" if end.stop is None else "stop_sequence"
        return None if reason is None else _REASONS[reason]

    def _head(self) -> StreamEvent:
        call = self._call
        return {"id": call.call_id, "type": "message", "role": "assistant", "model": call.model}

    def _take(self, update: Update) -> list[StreamEvent]:
        if self._turn is None:
            return self._say("text", update.text) if update.text else []
        stream_events: list[StreamEvent] = []
        events, _ = self._turn.take(update)
        for event in events:
            match event:
                case ReasoningText(text):
                    stream_events += self._say("thinking", text)
                case ContentText(text):
                    stream_events += self._say("text", text)
                case CallBroken(_, text):
                    self._broken.add(self._n_begun - 1)
                    stream_events += self._say("text", text)
                case CallBegun(index, name):
                    call_id = self._turn.tool_call_id(index)
                    stream_events += self._begin(
                        {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                    )
                case CallArguments(_, text):
                    stream_events.append(self._delta({"type": "input_json_delta", "partial_json": text}))
                case CallEnded():
                    stream_events += self._close()
        return stream_events

    def _close(self) -> list[StreamEvent]:
        if not self._open:
            return []
        # There is nothing to sign, and clients want to send a signature back.
        signed = (
            [self._delta({"type": "signature_delta", "signature": ""})] if self._open == "thinking" else []
        )
        self._open = ""
        return [*signed, {"type": "content_block_stop", "index": self._n_begun - 1}]

    def _ending(self, end: End) -> StreamEvent:
        reason = self.finish_reason(0, end)
        return {"stop_reason": reason, "stop_sequence": end.stop if reason == "stop_sequence" else None}

    def _usage(self, stats: RequestStats | None) -> StreamEvent:
        """Return the counts of tokens; what was cached does not count as input."""
        n_cached = 0 if stats is None else stats.n_cached
        # Only the engine counts the tokens of images.
        n_prompt = self._call.n_prompt if stats is None else stats.n_prompt
        counts: StreamEvent = {
            "input_tokens": n_prompt - n_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": n_cached,
            "output_tokens": 0 if stats is None else stats.n_output,
        }
        if self._turn is not None:
            counts["output_tokens_details"] = {"thinking_tokens": self._turn.n_reasoning}
        return counts

    def _say(self, kind: str, text: str) -> list[StreamEvent]:
        delta, name = _DELTAS[kind]
        begun: list[StreamEvent] = []
        if self._open != kind:
            block = {"type": kind, name: ""}
            begun = self._begin(block | {"signature": ""} if kind == "thinking" else block)
        return [*begun, self._delta({"type": delta, name: text})]

    def _begin(self, block: StreamEvent) -> list[StreamEvent]:
        closed = self._close()
        self._open = block["type"]
        self._n_begun += 1
        return [*closed, {"type": "content_block_start", "index": self._n_begun - 1, "content_block": block}]

    def _delta(self, delta: StreamEvent) -> StreamEvent:
        return {"type": "content_block_delta", "index": self._n_begun - 1, "delta": delta}


def content_of(events: Sequence[StreamEvent]) -> list[StreamEvent]:
    """Return the blocks that events add up to."""
    blocks: list[StreamEvent] = []
    parts: list[list[str]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
            parts.append([])
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            parts[-1].append(delta.get("text") or delta.get("thinking") or delta.get("partial_json") or "")
    for block, texts in zip(blocks, parts, strict=True):
        text = "".join(texts)
        if block["type"] == "tool_use":
            block["input"] = input_of(text)
        else:
            block[block["type"]] = text
    return blocks


def input_of(text: str) -> Any:
    """Return the arguments of a call as an object; if the call was cut short, those that are whole."""
    candidates = [text, text[: _end_of_whole(text)] + "}"]
    if not text[-1:].isalnum():  # else it may be half a number
        candidates.insert(1, text + "}")
    for candidate in candidates:
        with suppress(orjson.JSONDecodeError):
            orjson.loads(candidate)
            return orjson.Fragment(candidate)  # as it was written, with all digits of its numbers
    return {}


_MARK = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\],]', re.DOTALL)


def _end_of_whole(text: str) -> int:
    """Return where the last value of an object ends that is followed by another one."""
    depth = end = 0
    for mark in _MARK.finditer(text):
        if mark[0] in "{[":
            depth += 1
        elif mark[0] in "]}":
            depth -= 1
        elif mark[0] == "," and depth == 1:
            end = mark.start()
    return end


def _wire(events: Sequence[StreamEvent]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event)) for event in events
    )
