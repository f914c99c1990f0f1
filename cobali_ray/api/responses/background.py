"""Responses in the background: how one is written that was begun before, and how its stream is read.

Events are in the store before a client reads them, and with them what the model wrote. So a process that goes
on with a response writes these events again without sending them, and has the engine go on behind the
tokens. A reader needs the store alone, whichever process writes.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, TypeAlias

import msgspec
import orjson
from fastapi import Response
from starlette.types import Receive, Scope, Send

from cobali_ray.api.call.translate import Call
from cobali_ray.api.door.clock import ApiClock
from cobali_ray.api.door.keeping import Keeping
from cobali_ray.api.engines.apart import unless_gone, until_set
from cobali_ray.api.reply.answer import SSE
from cobali_ray.api.reply.keepalive import COMMENT, LiveStream
from cobali_ray.api.reply.turn import Update
from cobali_ray.api.responses.frames import ResponseWriter, framed
from cobali_ray.api.responses.read import ResponseTemplate
from cobali_ray.core.request.events import Delta
from cobali_ray.errors import NotInStoreError, StoreFailedError
from cobali_ray.store import responses
from cobali_ray.store.responses import COMPLETED, FAILED, INCOMPLETE, QUEUED, EventRow, StreamState

POLL_S: Final = 0.25
"""How often a stream is polled that another process may write."""
_pack, _unpack = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[Delta])

_ENDS: Final = tuple(b"event: response.%b\n" % kind.encode() for kind in (COMPLETED, INCOMPLETE, FAILED))

Record: TypeAlias = Callable[[EventRow, dict[str, Any] | None], None]
"""Takes the next events of a stream, and at its end the response."""


class BackgroundWriter(ResponseWriter):
    """A response whose first two events were written when it was queued."""

    opens_with: ClassVar[tuple[str, ...]] = ("response.in_progress",)
    first: ClassVar = 2

    def __init__(self, written: ResponseTemplate, call: Call, began_s: int) -> None:
        super().__init__(written, call)
        self._began_s = began_s
        self._deltas: list[Delta] = []
        self._n_recorded = self.first

    def queued(self) -> tuple[bytes, bytes]:
        """Return the response before it is computed, and the first events of its stream."""
        body = orjson.dumps(self._body(QUEUED, []))
        events = [
            {"type": kind, "response": orjson.Fragment(body)}
            for kind in ("response.created", "response.queued")
        ]
        return body, b"".join(framed(event, number) for number, event in enumerate(events))

    def resume(self, rows: Sequence[EventRow]) -> list[int]:
        """Write again what is in the store, without sending it, and return its tokens."""
        tokens: list[int] = []
        for row in rows:
            deltas = _unpack.decode(row.deltas) if row.deltas else []
            super().say(Update(0, deltas, None))
            tokens += (token for delta in deltas for token in delta.tokens)
            self._n_recorded = row.n + row.data.count(b"\n\n")
        if self._n_recorded > self.first:
            self._is_open, self._next_number = True, self._n_recorded
        return tokens

    def say(self, update: Update) -> bytes:
        self._deltas += update.deltas
        return super().say(update)

    def row(self, wire: bytes) -> EventRow:
        """Return the next events of a stream as they are stored."""
        row = EventRow(self._call.call_id, self._n_recorded, wire, _pack.encode(self._deltas))
        self._n_recorded += wire.count(b"\n\n")
        self._deltas.clear()
        return row


class RecordedRun(Response):
    """Computes a response that nobody waits for."""

    def __init__(self, reply: Response, writer: BackgroundWriter, record: Record) -> None:
        super().__init__()
        self._reply, self._writer, self._record = reply, writer, record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def take(message: Any) -> None:
            if message.get("body"):
                self._record(self._writer.row(message["body"]), self._writer.ended)

        await self._reply(scope, receive, take)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class StreamBells:
    """Tell readers in this process that there is more of a stream."""

    def __init__(self) -> None:
        self._bells = weakref.WeakValueDictionary[str, asyncio.Event]()  # each while somebody waits
        self.closed = False

    def bell(self, response_id: str) -> asyncio.Event:
        """Return what is set when there is more than now."""
        return self._bells.setdefault(response_id, asyncio.Event())

    def ring(self, response_id: str) -> None:
        if (bell := self._bells.pop(response_id, None)) is not None:
            bell.set()

    def close(self) -> None:
        """Have streams that are not over break off, so that a stop waits for none of them."""
        self.closed = True
        for response_id in list(self._bells):
            self.ring(response_id)


class StoredStream(Response):
    """The stream of a response in the background from an event on."""

    def __init__(
        self,
        keeping: Keeping,
        bells: StreamBells,
        clock: ApiClock,
        *,
        owner: str,
        response_id: str,
        first: int,
        ping_s: float,
    ) -> None:
        super().__init__()
        self._keeping, self._bells, self._clock, self._ping_s = keeping, bells, clock, ping_s
        self._owner, self._response_id, self._next = owner, response_id, first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 ASGI's shape
        await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        bell, state = await self._look()
        async with LiveStream(send, SSE, COMMENT, self._ping_s, self._clock) as live:
            with suppress(NotInStoreError):  # it was deleted meanwhile
                while True:
                    if wire := self._behind(state.rows):
                        await live.write(wire)
                    if state.over or self._bells.closed:
                        break
                    await until_set(bell, self._clock, POLL_S)
                    with suppress(StoreFailedError):  # its pings go on, and it is looked at again
                        bell, state = await self._look()
                if state.over and not _is_ended(
                    state.rows
                ):  # it was cancelled, or failed between two processes
                    body = orjson.Fragment(state.body)
                    # No event of this API says that one was cancelled; the response in this one does.
                    await live.write(framed({"type": f"response.{FAILED}", "response": body}, self._next))
            await live.end()

    async def _look(self) -> tuple[asyncio.Event, StreamState]:
        bell = self._bells.bell(self._response_id)  # before the look, so that nothing is missed
        return bell, await self._keeping(responses.stream, self._owner, self._response_id, self._next)

    def _behind(self, rows: Sequence[EventRow]) -> bytes:
        """Return the events that were not sent."""
        events = [
            event + b"\n\n"
            for row in rows
            for number, event in enumerate(row.data.split(b"\n\n")[:-1], row.n)
            if number >= self._next
        ]
        self._next += len(events)
        return b"".join(events)


def _is_ended(rows: Sequence[EventRow]) -> bool:
    """Say whether the last event is the end of a stream."""
    _, _, last = rows[-1].data.removesuffix(b"\n\n").rpartition(b"\n\n")
    return last.startswith(_ENDS)
