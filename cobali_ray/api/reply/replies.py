"""Responses: JSON, events, and the two ways to answer a call, which live as long as the HTTP request."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import Response
from prometheus_client.samples import Exemplar
from starlette.types import Receive, Scope, Send

from cobali_ray.api.call.translate import Call
from cobali_ray.api.door.clock import ApiClock
from cobali_ray.api.door.context import RequestContext
from cobali_ray.api.engines.apart import unless_gone
from cobali_ray.api.engines.fleet import ServedModel
from cobali_ray.api.reply.answer import SSE, Writer, prompt_tokens
from cobali_ray.api.reply.keepalive import STREAM_HEADERS, LiveStream
from cobali_ray.api.reply.sources import Events, events_of
from cobali_ray.api.reply.sse import event
from cobali_ray.api.reply.tally import StreamWriter, Tally
from cobali_ray.core.request.events import Event
from cobali_ray.errors import InvariantError
from cobali_ray.telemetry.names import exemplar_labels


def json_response(body: Any) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")


class EventsReply(Response):
    """Server-sent events that no call makes; they end when their reader leaves."""

    def __init__(self, events: Callable[[], AsyncGenerator[bytes, None]], context: RequestContext) -> None:
        super().__init__()
        self._events, self._context = events, context
        context.stream = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 ASGI's shape
        await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        headers = [(b"content-type", SSE), *STREAM_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(self._wires()) as wires:
            async for wire in wires:
                await send({"type": "http.response.body", "body": wire, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _wires(self) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._events()) as events:
                async for wire in events:
                    yield wire
        except Exception as error:  # the status is sent: the error goes into the stream
            yield event(self._context.blame(error).body)


class Reply(Response):
    """An answer that asks the engine itself, so that its generator is closed whatever ends the request.

    Errors before the first byte leave `__call__` and become a proper HTTP status.
    """

    def __init__(
        self, model: ServedModel, call: Call, context: RequestContext, writer: Writer, *, clock: ApiClock
    ) -> None:
        super().__init__()
        self._writer = writer
        self._model, self._call, self._context, self._clock = model, call, context, clock
        context.stream, context.answer_id = call.stream, call.call_id
        context.n_prompt = call.n_prompt
        self._tally = Tally(call)
        self._labels = exemplar_labels(call.call_id, call.requests[0].trace)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 ASGI's shape
        try:
            await unless_gone(receive, self._reply(send))
        finally:
            times = self._tally.times(self._since_s())
            ends, n_tokens = self._tally.ends, self._tally.n_tokens
            if (stats := self._tally.stats()) is not None:
                self._context.n_prompt = n_prompt = prompt_tokens(self._call, stats)
                self._context.n_rows = n_prompt - self._call.n_prompt
            self._context.settle(ends, n_tokens, times, reason=self._writer.finish_reason)
            if not self._tally.n_open:
                self._model.observe("e2e_seconds", Exemplar(self._labels, times.e2e_s))

    def _since_s(self) -> float:
        return self._clock.now() - self._context.received_s

    def _tell_first(self) -> None:
        """Count the TTFT, as soon as there is one."""
        if self._tally.ttft_s is not None:
            self._model.observe("ttft_seconds", Exemplar(self._labels, self._tally.ttft_s))

    async def _reply(self, send: Send) -> None:
        async with aclosing(events_of(self._model, self._call)) as events:
            await self._answer(events, send)

    @abstractmethod
    async def _answer(self, events: Events, send: Send) -> None: ...


class WholeReply(Reply):
    """One JSON body, once all choices have ended."""

    async def _answer(self, events: Events, send: Send) -> None:
        while self._tally.n_open:
            silent = self._tally.ttft_s is None
            for update in self._tally.sort(await next_batch(events), self._since_s()):
                self._writer.add(update)
            if silent:
                self._tell_first()
            self._tally.check()
        body = orjson.dumps(self._writer.body(self._tally.times(self._since_s())))
        body = await self._writer.settle(body)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class StreamReply(Reply):
    """A stream, at most one write per wake-up; the status waits for the first event, or the first ping."""

    async def _answer(self, events: Events, send: Send) -> None:
        writer, call = self._writer, self._call
        stream = StreamWriter(call, writer, self._tally)
        async with LiveStream(send, writer.media_type, writer.ping, call.ping_s, self._clock) as live:
            try:
                while self._tally.n_open:
                    silent = self._tally.ttft_s is None
                    wire = stream.write(await next_batch(events), self._since_s())
                    if silent:
                        self._tell_first()
                    if not live.begun:
                        self._tally.check()
                    if not self._tally.n_open:
                        wire = await writer.settle(wire)
                    if wire:
                        # Waits while the reader is slow; meanwhile the engine's bounded stream fills.
                        await live.write(wire)
                    self._tally.check()
            except Exception as error:
                if live.broken or not live.begun:
                    raise
                # The status is sent, so the error goes into the stream.
                await live.write(self.failure(error))
            await live.end()

    def failure(self, error: Exception) -> bytes:
        """Return how a stream that has begun says what ended it."""
        return self._writer.failure(self._context.blame(error))


async def next_batch(events: Events) -> list[Event]:
    """Return the next events. Raises InvariantError where a stream stops without its end event."""
    batch = await anext(events, None)
    if batch is None:
        raise InvariantError("the engine's stream stopped without an end event")
    return batch
