"""Responses: the answer of POST /v1/responses, as a stream and in one piece. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import orjson
import structlog

from cobali_ray.api.call.translate import Call
from cobali_ray.api.door.faults import Fault
from cobali_ray.api.door.timings import Timings
from cobali_ray.api.reply.answer import Writer, timings, usage
from cobali_ray.api.reply.turn import ChoiceState, Update
from cobali_ray.api.responses.output import ResponseOutput, StreamEvent
from cobali_ray.api.responses.read import ResponseTemplate
from cobali_ray.chat.answer_events import ContentText
from cobali_ray.core.request.events import End, RequestStats
from cobali_ray.errors import StoreFailedError, StoreFullError

ID_PREFIX = "resp_"

_log = structlog.get_logger(__name__)


Keep: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
"""Stores a response that has ended. Raises StoreFullError and StoreFailedError."""


class ResponseWriter(Writer):
    """One response, as a stream, in which each event has a name and a number, or in one piece."""

    opens_with: ClassVar[tuple[str, ...]] = ("response.created", "response.in_progress")
    first: ClassVar = 0
    """The number of the first event."""

    def __init__(self, written: ResponseTemplate, call: Call, keep: Keep | None = None) -> None:
        super().__init__(call)
        self._keep = keep
        self._began_s = call.created
        """When its times begin, in seconds since 1970."""
        self.ended: dict[str, Any] | None = None
        """The response as it is stored, once it has ended: without what only looked like a call."""
        self._last = b""
        """The event that says so."""
        self._echo = written.echo
        self._turn = None if call.speech is None else ChoiceState(call.speech, call.call_id, 0)
        call_id_of = str if self._turn is None else self._turn.tool_call_id
        self._output = ResponseOutput(call.call_id.removeprefix(ID_PREFIX), written.callees, call_id_of)
        self._cut = False
        self._stats: list[RequestStats] = []
        # The events that open the stream come first, and are written after the first text.
        self._next_number = self.first + len(self.opens_with)
        self._is_open = False

    # -- in one piece

    def add(self, update: Update) -> None:
        self._take(update)
        if update.end is not None:
            self._stats.append(update.end.stats)

    def body(self, times: Timings) -> dict[str, Any]:
        self._output.close(cut=self._cut)
        self.ended = self._whole(self._output.kept(), self._stats, times)
        return self.ended

    # -- as a stream

    def opening(self, index: int) -> bytes:  # noqa: ARG002 there is but one choice
        if self._is_open:
            return b""
        self._is_open = True
        body = orjson.Fragment(orjson.dumps(self._body("in_progress", [])))
        events = [{"type": kind, "response": body} for kind in self.opens_with]
        return b"".join(framed(event, number) for number, event in enumerate(events, self.first))

    def progress(self, index: int, fields: dict[str, Any]) -> bytes:
        status = "queued" if "queue_progress" in fields else "in_progress"
        event = {"type": f"response.{status}", "response": self._body(status, [], **fields)}
        return self.opening(index) + self._framed([event])

    def say(self, update: Update) -> bytes:
        return self._framed(self._take(update))

    def closing(self, index: int, end: End, stats: Sequence[RequestStats] | None, times: Timings) -> bytes:  # noqa: ARG002
        wire = self._framed(self._output.close(cut=self._cut))
        if stats is None:
            return wire
        return wire + self._end(self._whole(self._output.bodies(), stats, times))

    def failure(self, fault: Fault) -> bytes:
        # A client that has only had pings expects the events that open the stream.
        failed = self._body("failed", self._output.bodies(), error=error_of(fault))
        return self.opening(0) + self._end(failed)

    async def settle(self, wire: bytes) -> bytes:
        if self._keep is None or self.ended is None:
            return wire
        try:
            await self._keep(self.ended)
        except (StoreFullError, StoreFailedError) as error:
            _log.warning("response_not_kept", response_id=self._call.call_id, error=str(error))
            self.ended["store"] = False
            if not self._last:
                return orjson.dumps(self.ended)
            self._next_number -= 1
            return wire.removesuffix(self._last) + self._end(self.ended | {"output": self._output.bodies()})
        return wire

    def _end(self, body: dict[str, Any]) -> bytes:
        self.ended = body | {"output": self._output.kept()}
        self._last = self._framed([{"type": f"response.{body['status']}", "response": body}])
        return self._last

    def _framed(self, events: Sequence[StreamEvent]) -> bytes:
        first = self._next_number
        self._next_number += len(events)
        return b"".join([framed(event, first + i) for i, event in enumerate(events)])

    # -- both

    def _take(self, update: Update) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        # With logprobs each token by itself: which text it belongs to is not known of several.
        deltas = [[delta] for delta in update.deltas] if self._call.with_logprobs else [update.deltas]
        for some in deltas:
            events += self._take_some(Update(update.choice, some, None))
        if update.end is not None:
            events += self._take_some(Update(update.choice, (), update.end))
            self._cut = update.end.finish_reason == "length"
        return events

    def _take_some(self, update: Update) -> list[StreamEvent]:
        turn = self._turn
        if turn is None:
            return self._output.take([ContentText(update.text)] if update.text else [], update.logprobs)
        n_reasoning = turn.n_reasoning
        events, logprobs = turn.take(update)
        # Reasoning has no logprobs here, and its markers are no text either.
        return self._output.take(events, logprobs if turn.n_reasoning == n_reasoning else ())

    def _body(self, status: str, output: Sequence[Any], **more: Any) -> dict[str, Any]:
        """Return the response in a status, with these items."""
        call = self._call
        sampling = call.requests[0].sampling
        return {
            "id": call.call_id,
            "object": "response",
            "created_at": call.created,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "model": call.model,
            "output": output,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "usage": None,
            **self._echo,
            **more,
        }

    def _whole(self, output: Sequence[Any], stats: Sequence[RequestStats], times: Timings) -> dict[str, Any]:
        """Return the finished response, with these items."""
        counted = {"usage": self._usage(stats), "timings": timings(stats, times)}
        if self._cut:
            why = {"reason": "max_output_tokens"}
            return self._body("incomplete", output, incomplete_details=why, **counted)
        completed_at = int(self._began_s + times.e2e_s)
        return self._body("completed", output, completed_at=completed_at, **counted)

    def _usage(self, stats: Sequence[RequestStats]) -> dict[str, Any]:
        n_reasoning = 0 if self._turn is None else self._turn.n_reasoning
        counts = usage(self._call, stats, n_reasoning)
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"] | {"cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": counts["completion_tokens_details"],
            "total_tokens": counts["total_tokens"],
        }


def error_of(fault: Fault) -> dict[str, str]:
    """Return the error of a response that failed."""
    return {"code": fault.code or "server_error", "message": fault.message}


def framed(event: StreamEvent, number: int) -> bytes:
    """Return an event with its number as a stream has it."""
    body = orjson.dumps(event | {"sequence_number": number})
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), body)
