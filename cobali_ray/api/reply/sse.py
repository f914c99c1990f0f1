"""OpenAI's answers: whole, or events of a stream as ready-made bytes. Pure.

A token costs one JSON-escaped string between two constants; dicts appear only where logprobs were asked for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import orjson

from cobali_ray.api.call.translate import Call
from cobali_ray.api.door.faults import Fault
from cobali_ray.api.door.timings import Timings
from cobali_ray.api.reply.answer import Choice, Choices, timings, usage
from cobali_ray.api.reply.logprobs import CompletionLogprobs, WholeLogprobs, chat_content, chat_logprob_items
from cobali_ray.api.reply.turn import ChoiceState, Update, delta_of, message_of
from cobali_ray.chat.answer_events import ParsedAnswer
from cobali_ray.core.request.events import End, RequestStats, TokenLogprob

DONE = b"data: [DONE]\n\n"


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


class Chunks(Choices):
    """OpenAI's answers, also as a stream of chunks."""

    kind: str

    def __init__(self, call: Call) -> None:
        super().__init__(call)
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
        self._plain_after = self._after(b"null") + b"}" + self._tail + b"}\n\n"
        self._befores = [self._head + self._before(index) for index in range(len(call.requests))]

    def say(self, update: Update) -> bytes:
        text, logprobs = update.text, update.logprobs
        call, index = self._call, update.choice
        tokens = update.tokens if call.return_token_ids else ()
        if not (text or logprobs or tokens):
            return b""
        before, text_json = self._befores[index], orjson.dumps(text)
        if not (call.with_logprobs or call.return_token_ids):
            return before + text_json + self._plain_after
        logprobs_json = orjson.dumps(self._logprobs(index, logprobs)) if call.with_logprobs else b"null"
        return b"".join(
            (before, text_json, self._after(logprobs_json), self._ids(tokens), self._tail, b"}\n\n")
        )

    def _ids(self, tokens: Sequence[int]) -> bytes:
        """Return the end of a choice's JSON: its tokens, where they are wanted."""
        return b',"token_ids":%b}' % orjson.dumps(tokens) if self._call.return_token_ids else b"}"

    def _prompt_ids(self, index: int) -> bytes:
        """Return a choice's prompt as the end of an object's fields, where it is wanted."""
        if not self._call.return_token_ids:
            return b""
        return b',"prompt_token_ids":' + orjson.dumps(self._call.prompt_token_ids(index))

    @abstractmethod
    def closing_choice(self, index: int, reason: bytes) -> bytes:
        """Return the JSON of a choice that has ended."""

    def progress(self, index: int, fields: dict[str, Any]) -> bytes:
        choice = self.closing_choice(index, b"null")
        return self._head + choice + self._tail + b"," + orjson.dumps(fields)[1:] + b"\n\n"

    def closing(self, index: int, end: End, stats: Sequence[RequestStats] | None, times: Timings) -> bytes:
        """Return the chunk with the finish reason; behind the last also counts, if wanted, and `[DONE]`."""
        reason = orjson.dumps(self.finish_reason(index, end))
        wire = self._head + self.closing_choice(index, reason) + self._tail
        if stats is None:
            return wire + b"}\n\n"
        timed = {"timings": timings(stats, times)}
        if not self._call.include_usage:
            return wire + b"," + orjson.dumps(timed)[1:] + b"\n\n" + DONE
        counted = {"usage": usage(self._call, stats, self.n_reasoning)} | timed
        return wire + b"}\n\n" + self._head + b"]," + orjson.dumps(counted)[1:] + b"\n\n" + DONE

    def failure(self, fault: Fault) -> bytes:
        return event(fault.body) + DONE

    @abstractmethod
    def _before(self, index: int) -> bytes: ...

    @abstractmethod
    def _after(self, logprobs: bytes) -> bytes: ...

    @abstractmethod
    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]: ...


class ChatWriter(Chunks):
    """The answer of POST /v1/chat/completions."""

    whole_kind, kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        speech, choices = call.speech, range(len(call.requests))
        self._turns = [] if speech is None else [ChoiceState(speech, call.call_id, i) for i in choices]
        self._answers = [ParsedAnswer() for _ in self._turns]

    @property
    def n_reasoning(self) -> int:
        return sum(turn.n_reasoning for turn in self._turns)

    def say(self, update: Update) -> bytes:
        """Return chunks of reasoning, content and calls; logprobs and tokens go with the first."""
        if not self._turns:
            return super().say(update)
        turn, index = self._turns[update.choice], update.choice
        events, logprobs = turn.take(update)
        deltas = [delta for event in events if (delta := delta_of(event, turn)) is not None]
        tokens = update.tokens if self._call.return_token_ids else ()
        if (logprobs or tokens) and not deltas:
            deltas = [{}]
        wire = []
        for delta in deltas:
            logprobs_json = orjson.dumps(self._logprobs(index, logprobs)) if logprobs else b"null"
            template = b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null%b'
            choice = template % (index, orjson.dumps(delta), logprobs_json, self._ids(tokens))
            wire += [self._head, choice, self._tail, b"}\n\n"]
            logprobs, tokens = [], ()
        return b"".join(wire)

    def finish_reason(self, index: int, end: End) -> str | None:
        return self._turns[index].finish_reason(end) if self._turns else end.finish_reason

    def opening(self, index: int) -> bytes:
        """Return the chunk that says whose turn it is, and what it continues."""
        choice = (
            b'{"index":%d,"delta":{"role":"assistant","content":"","refusal":null},' % index
            + b'"logprobs":null,"finish_reason":null}'
        )
        return self._head + choice + self._tail + self._prompt_ids(index) + b"}\n\n"

    def closing_choice(self, index: int, reason: bytes) -> bytes:
        return b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%b}' % (index, reason)

    def _before(self, index: int) -> bytes:
        return b'{"index":%d,"delta":{"content":' % index

    def _after(self, logprobs: bytes) -> bytes:
        return b'},"logprobs":' + logprobs + b',"finish_reason":null'

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:  # noqa: ARG002 no offset
        return {"content": chat_logprob_items(logprobs), "refusal": None}

    # -- whole

    def add(self, update: Update) -> None:
        if not self._turns:
            super().add(update)
            return
        events, logprobs = self._turns[update.choice].take(update)
        self._answers[update.choice].add(events)
        self._keep(update, logprobs)

    def _kept_logprobs(self, index: int) -> WholeLogprobs:  # noqa: ARG002 no offset
        return WholeLogprobs(chat_content)

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return {
            "index": index,
            "message": self._message(index, choice),
            "logprobs": choice.logprobs.json() | {"refusal": None} if self._call.with_logprobs else None,
            "finish_reason": self.finish_reason(index, choice.end),
            **({"token_ids": choice.tokens} if self._call.return_token_ids else {}),
        }

    def _more(self) -> dict[str, Any]:
        """Return the logprobs and tokens of the prompt asked for: a chat has one, whatever `n` is."""
        prompt, call = self.choices[0].prompt, self._call
        logprobs: dict[str, Any] = {} if prompt is None else prompt.json()
        return logprobs | ({"prompt_token_ids": call.prompt_token_ids(0)} if call.return_token_ids else {})

    def _message(self, index: int, choice: Choice) -> dict[str, Any]:
        if self._turns:
            return message_of(self._answers[index], self._turns[index])
        return {"role": "assistant", "content": choice.text, "refusal": None}


class CompletionWriter(Chunks):
    """The answer of POST /v1/completions."""

    whole_kind = kind = "text_completion"

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._counts = [CompletionLogprobs(len(echo)) for echo in call.echoes]
        self._echoed = [CompletionLogprobs(start, call.n_echo_logprobs) for start in call.echo_starts]
        self._n_left = [request.n_prompt for request in call.requests]
        """Tokens of each prompt whose logprobs are still to be sent, if they are asked for."""

    def say(self, update: Update) -> bytes:
        """Return the chunks with what a batch adds: first of the prompt, then of the answer."""
        chunks = super().say(update)
        if self._call.n_echo_logprobs is None or not (prompt := update.prompt):
            return chunks
        return self._echo(update.choice, prompt) + chunks

    def _echo(self, index: int, prompt: Sequence[TokenLogprob]) -> bytes:
        """Return the chunk with further tokens of a prompt and their part of its text."""
        count = self._echoed[index]
        start, wire = count.offset, orjson.dumps(count.take(prompt))
        self._n_left[index] -= len(prompt)
        text = self._call.echoes[index][start : count.offset if self._n_left[index] else None]
        chunk = self._after(wire) + self._ids(()) + self._tail + b"}\n\n"
        return self._befores[index] + orjson.dumps(text) + chunk

    def opening(self, index: int) -> bytes:
        """Return the prompt, where the client wants it back: its text, unless that comes token by token."""
        echo = self._call.echoes[index] if self._call.n_echo_logprobs is None else ""
        if not (echo or self._call.return_token_ids):
            return b""
        end = self._prompt_ids(index) + self._ids(()) + self._tail + b"}\n\n"
        return self._befores[index] + orjson.dumps(echo) + self._after(b"null") + end

    def closing_choice(self, index: int, reason: bytes) -> bytes:
        return b'{"index":%d,"text":"","logprobs":null,"finish_reason":%b}' % (index, reason)

    def _before(self, index: int) -> bytes:
        return b'{"index":%d,"text":' % index

    def _after(self, logprobs: bytes) -> bytes:
        return b',"logprobs":' + logprobs + b',"finish_reason":null'

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return self._counts[index].take(logprobs)

    # -- whole

    def add(self, update: Update) -> None:
        if self._call.n_echo_logprobs is not None and (prompt := update.prompt):
            self.choices[update.choice].logprobs.extend(self._echoed[update.choice].take(prompt))
        super().add(update)

    def _kept_logprobs(self, index: int) -> WholeLogprobs:
        return WholeLogprobs(CompletionLogprobs(len(self._call.echoes[index])).take)

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        more: dict[str, Any] = {} if choice.prompt is None else choice.prompt.json()
        if self._call.return_token_ids:
            more |= {"token_ids": choice.tokens, "prompt_token_ids": self._call.prompt_token_ids(index)}
        return {
            "index": index,
            "text": self._call.echoes[index] + choice.text,
            "logprobs": choice.logprobs.json() if self._call.with_logprobs else None,
            "finish_reason": self.finish_reason(index, choice.end),
            **more,
        }
