"""Turn: one chat answer taken apart into reasoning, content and tool calls as it comes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from cobali_ray.api.call.prompt import Speech
from cobali_ray.chat.answer_events import (
    CallArguments,
    CallBegun,
    CallBroken,
    CallEnded,
    ContentText,
    Event,
    ParsedAnswer,
    ReasoningText,
    append,
)
from cobali_ray.chat.splitter import Splitter
from cobali_ray.core.request.events import Delta, End, TokenLogprob

ID_CHARS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
N_ID_CHARS = 9
"""The one length that Mistral's templates take; all others take any."""


class Update(NamedTuple):
    """What one batch holds for one choice."""

    choice: int
    deltas: Sequence[Delta]
    end: End | None

    @property
    def text(self) -> str:
        """What it adds to the answer as the model wrote it."""
        return "".join([delta.text for delta in self.deltas])

    @property
    def tokens(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.tokens]

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """What it adds to the logprobs."""
        return [logprob for delta in self.deltas for logprob in delta.logprobs]

    @property
    def prompt(self) -> list[TokenLogprob]:
        """What it adds to the logprobs of the prompt."""
        return [logprob for delta in self.deltas for logprob in delta.prompt]


class ChoiceState:
    def __init__(self, speech: Speech, call_id: str, choice: int) -> None:
        self._splitter = Splitter(
            speech.form, prompt=speech.prompt, tools=speech.tools, continues=speech.continues
        )
        self.reasoning_field, self._must_call = speech.reasoning_field, speech.must_call
        self._answer_id = f"{call_id}/{choice}"
        self._n_calls = 0
        self.n_reasoning = 0
        """Tokens of reasoning, its markers among them."""

    def take(self, update: Update) -> tuple[list[Event], list[TokenLogprob]]:
        """Return what of a batch is for the client: events, neighbours of a kind as one, and logprobs."""
        events: list[Event] = []
        logprobs: list[TokenLogprob] = []
        for delta in update.deltas:
            thought = self._splitter.thinking
            self._add(events, self._splitter.feed(delta.text))
            if thought or self._splitter.thinking:
                self.n_reasoning += delta.n_tokens
                if self.reasoning_field is None:
                    continue
            logprobs += delta.logprobs
        if update.end is not None and update.end.error is None:
            self._add(events, self._at_end(update.end))
        return events, logprobs

    def _add(self, events: list[Event], further: Iterable[Event]) -> None:
        for event in further:
            self._n_calls += isinstance(event, CallEnded)
            if self.reasoning_field is not None or not isinstance(event, ReasoningText):
                append(events, event)

    def finish_reason(self, end: End) -> str | None:
        """Return why the answer ended, in the words of the API."""
        return "tool_calls" if self._n_calls and end.finish_reason == "stop" else end.finish_reason

    def tool_call_id(self, index: int) -> str:
        """Return the id of a call; no other has it, in this answer or elsewhere."""
        number = int.from_bytes(blake2b(f"{self._answer_id}/{index}".encode(), digest_size=8).digest())
        chars = []
        for _ in range(N_ID_CHARS):
            number, rest = divmod(number, len(ID_CHARS))
            chars.append(ID_CHARS[rest])
        return "".join(chars)

    def _at_end(self, end: End) -> list[Event]:
        if end.finish_reason != "length":
            return self._splitter.end()
        events = self._splitter.cut()
        if self._must_call:
            return [event for event in events if not isinstance(event, ContentText)]
        return events


def delta_of(event: Event, turn: ChoiceState) -> dict[str, Any] | None:
    """Return an event as the delta of a chunk; None for one that clients do not get."""
    match event:
        case ContentText(text) | CallBroken(_, text):
            return {"content": text}
        case ReasoningText(text):
            return {turn.reasoning_field: text} if turn.reasoning_field else None
        case CallBegun(index, name):
            function = {"name": name, "arguments": ""}
            begun = {"index": index, "id": turn.tool_call_id(index), "type": "function", "function": function}
            return {"tool_calls": [begun]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case CallEnded():
            return None


def message_of(answer: ParsedAnswer, turn: ChoiceState) -> dict[str, Any]:
    """Return a whole answer as a message."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.reasoning and turn.reasoning_field:
        message[turn.reasoning_field] = answer.reasoning
    if answer.calls:
        message["content"] = answer.content or None
        message["tool_calls"] = [
            {
                "id": turn.tool_call_id(index),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in answer.calls.items()
        ]
    return message
