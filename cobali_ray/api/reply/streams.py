"""Streams that outlive their readers: a client that was cut off reads on behind the last event it received.

A task of its own writes an answer into a recording, as the ASGI messages that the reply sends, which knows
nothing of it; clients read that, several of them if they like. Each event has a number, its `id:` line. When
nobody reads, the answer goes on for a while; then its requests are cancelled, and the recording is forgotten.
One that is to be stored goes on to its end, and is in the store from then on until somebody deletes it.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

import structlog
from fastapi import Response
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from cobali_ray.api.door.clock import ApiClock
from cobali_ray.api.door.context import RequestContext
from cobali_ray.api.door.keeping import Keeping
from cobali_ray.api.door.keys import Caller
from cobali_ray.api.engines.apart import begin_apart, unless_gone
from cobali_ray.api.reply.answer import SSE
from cobali_ray.api.reply.keepalive import COMMENT
from cobali_ray.api.reply.replies import StreamReply
from cobali_ray.errors import (
    CobaliError,
    DrainingError,
    EventsLostError,
    InvalidParameterError,
    StreamExistsError,
    StreamStoppedError,
    UnknownStreamError,
)
from cobali_ray.store import streams

KEPT_S: Final = 300.0
"""How long a stream waits for a reader."""
KEPT_BYTES: Final = 1 << 20
"""What is kept of one stream. What was sent goes first; what was not is waited for."""
STORED_BYTES: Final = 16 << 20
"""The same of one that is to be stored: all of it, some 60,000 tokens."""
MAX_STORED, MAX_STORED_OF_KEY = 32, 8
"""Of those so many may be under way at once; others are not stored."""
MAX_STREAMS: Final = 128
"""Streams under way that may be recorded at once; others are plain ones."""
MAX_OF_KEY: Final = 32
"""Those of one API key among them."""
ENDED_BYTES: Final = 64 << 20
"""What is kept of all streams that are over and may be read to the end."""
MAX_READERS: Final = 8
"""Clients that read one stream at once; one more takes the place of the first."""
STREAM_HEADER: Final = b"x-cobali-stream"
"""Says the id, in a request the one that the client chose; the front end finds the process again by it."""
_SANE_ID = re.compile(r"[A-Za-z0-9_-]{16,64}")
_log = structlog.get_logger(__name__)


def chosen_id(headers: Headers) -> str | None:
    """Return the id that a client chose for its stream. Raises InvalidParameterError if it is none."""
    name = STREAM_HEADER.decode()
    sent = headers.get(name)
    if sent is not None and not _SANE_ID.fullmatch(sent):
        raise InvalidParameterError(name, "must be 16 to 64 letters, digits, - and _")
    return sent


def _check_after(after: int, first: int, last: int) -> None:
    if not first <= after <= last:
        raise InvalidParameterError("after", f"must be from {first} to {last} here, got {after}")


async def _nothing() -> Message:
    """Receive nothing, ever: the answer does not learn that a reader left."""
    return await asyncio.Future()


class StreamRecording:
    """The numbered events of one answer, and its present readers."""

    def __init__(
        self, stream_id: str, caller: Caller, reply: StreamReply, scope: Scope, *, named: bool, stored: bool
    ) -> None:
        """Begin to answer, on the running event loop. `named`: the client knows its id from the beginning."""
        self.stream_id, self.tenant, self._reply = stream_id, caller.tenant, reply
        self.owner = caller.salt
        self._named, self.stored = named, stored
        self._max_bytes = STORED_BYTES if stored else KEPT_BYTES
        self._start: Message | None = None
        self._events: list[bytes] = []
        self._n_comments = 0
        self._n_dropped, self._n_read, self.n_bytes = 0, 0, 0
        self._changed, self._room = asyncio.Event(), asyncio.Event()
        self._readers: dict[object, int] = {}
        """How far each has read, the first to come first."""
        self._stopped = False
        self.writing = begin_apart(reply(scope, _nothing, self._record))
        self.writing.add_done_callback(self._end)

    @property
    def findable(self) -> bool:
        """Whether a client that was cut off now knows its id."""
        return self._start is not None or (self._named and not self.writing.done())

    @property
    def read(self) -> bool:
        return bool(self._readers)

    @property
    def goes_on(self) -> bool:
        """Whether it is written further though nobody reads."""
        return self.stored and not self.writing.done() and self.n_bytes <= self._max_bytes

    @property
    def whole(self) -> bytes | None:
        """All events of an answer that is to be stored and is over."""
        return b"".join(self._events) if self.stored and self._events and not self._n_dropped else None

    def stop(self) -> None:
        """Cancel the answer, and do not store it; its readers get the error."""
        self._stopped = not self.writing.done()
        self.stored = False
        self.writing.cancel()

    async def _record(self, message: Message) -> None:
        """Take what the answer sends; wait while nothing of it has been read and there is too much."""
        if message["type"] == "http.response.start":
            headers = [*message["headers"], (STREAM_HEADER, self.stream_id.encode())]
            self._start = {**message, "headers": headers}
            return
        if message["body"] == COMMENT:  # only for present readers: it has no number
            self._n_comments += 1
            self._changed.set()
            return
        self._add(message["body"])
        self._trim()
        while self.n_bytes > self._max_bytes:
            self._room.clear()
            await self._room.wait()

    def _add(self, wire: bytes) -> None:
        for event in wire.split(b"\n\n")[:-1]:
            n = self._n_dropped + len(self._events) + 1
            self._events.append(b"id: %d\n%b\n\n" % (n, event))
            self.n_bytes += len(self._events[-1])
        self._changed.set()

    def _trim(self) -> None:
        """Where too much is kept, drop the oldest events, as far as the furthest reader is."""
        self._n_read = max(self._readers.values(), default=self._n_read)
        n = 0
        while self.n_bytes > self._max_bytes and self._n_dropped + n < self._n_read:
            self.n_bytes -= len(self._events[n])
            n += 1
        del self._events[:n]
        self._n_dropped += n
        self._room.set()

    def _end(self, writing: asyncio.Future[None]) -> None:
        if not writing.cancelled():
            writing.exception()  # readers get it
        elif (self._stopped or self.stored) and self._start is not None:
            error = EventsLostError() if self.n_bytes > self._max_bytes else DrainingError()
            self._add(self._reply.failure(StreamStoppedError() if self._stopped else error))
        self._changed.set()

    def check(self, after: int) -> None:
        """Raise InvalidParameterError where events behind this one are not kept, or it never was."""
        _check_after(after, self._n_dropped, self._n_dropped + len(self._events))

    async def play(self, receive: Receive, send: Send, after: int) -> None:
        """Send the events behind one, and what comes, until it is over, or too many others read.

        Raises what ended the answer before its first event, and ClientDisconnect.
        """
        self.check(after)
        me = object()
        self._readers[me] = after
        if len(self._readers) > MAX_READERS:
            del self._readers[next(iter(self._readers))]
            self._changed.set()  # it leaves
        self._trim()
        try:
            await unless_gone(receive, self._play(me, send, after))
        finally:
            if len(self._readers) == 1:
                self._n_read = self._readers.get(me, self._n_read)
            self._readers.pop(me, None)

    async def _play(self, me: object, send: Send, after: int) -> None:
        n_comments = self._n_comments
        while self._start is None:
            if self.writing.done():
                self._raise_its_end()
                return
            await self._wait_for_change()
        await send(self._start)
        while me in self._readers and after >= self._n_dropped:  # too slow beside others: cut off
            if events := self._events[after - self._n_dropped :]:
                await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})
                after += len(events)
                if me in self._readers:  # what is not sent yet is kept
                    self._readers[me] = after
                    self._trim()
            elif self.writing.done():
                break
            elif n_comments < self._n_comments:
                n_comments = self._n_comments
                await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
            else:
                await self._wait_for_change()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _raise_its_end(self) -> None:
        if self._stopped:
            raise StreamStoppedError
        self.writing.result()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class StreamRecordings:
    """The recordings of one process, by their ids, and those in the store."""

    def __init__(self, clock: ApiClock, keeping: Keeping) -> None:
        self._clock, self._keeping, self._closed = clock, keeping, False
        self._kept: dict[str, StreamRecording] = {}
        """The first to begin first."""
        self._storing = set[asyncio.Task[None]]()
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Tasks that forget recordings which nobody reads."""

    def has_room(self, tenant: str) -> bool:
        """Say whether one more answer may be recorded."""
        live = self._live()
        n_of_key = sum(recording.tenant == tenant for recording in live)
        return len(live) < MAX_STREAMS and (not tenant or n_of_key < MAX_OF_KEY)

    def _live(self) -> list[StreamRecording]:
        return [recording for recording in self._kept.values() if not recording.writing.done()]

    def has_room_to_store(self, caller: Caller) -> bool:
        """Say whether one more answer may be stored. Raises NoStoreError."""
        self._keeping.require()
        stored = [recording for recording in self._live() if recording.stored]
        n_of_key = sum(recording.owner == caller.salt for recording in stored)
        return len(stored) < MAX_STORED and (not caller.tenant or n_of_key < MAX_STORED_OF_KEY)

    def begin(
        self, stream_id: str, caller: Caller, reply: StreamReply, scope: Scope, *, named: bool, stored: bool
    ) -> StreamRecording:
        """Record an answer. Raises StreamExistsError where the client chose the id of another."""
        if stream_id in self._kept:
            raise StreamExistsError
        recording = StreamRecording(stream_id, caller, reply, scope, named=named, stored=stored)
        self._kept[stream_id] = recording
        recording.writing.add_done_callback(lambda _: self._end(recording))
        return recording

    def _end(self, recording: StreamRecording) -> None:
        if recording.stored:
            storing = begin_apart(self._store(recording))
            self._storing.add(storing)
            storing.add_done_callback(self._storing.discard)
        over = [kept for kept in self._kept.values() if kept.writing.done()]
        n_bytes = sum(kept.n_bytes for kept in over)
        for kept in over:
            if n_bytes > ENDED_BYTES and not kept.read:
                n_bytes -= kept.n_bytes
                self._forget(kept)

    async def _store(self, recording: StreamRecording) -> None:
        if (events := recording.whole) is None:
            return
        keeping, name = self._keeping, (recording.owner, recording.stream_id)
        try:
            await keeping(streams.keep, *name, events, keeping.quota())
        except CobaliError as error:
            _log.warning("stream_not_stored", stream_id=recording.stream_id, error=str(error))

    async def resumed(self, stream_id: str, caller: Caller, after: int) -> Response:
        """Return the response that sends the events behind one. Raises UnknownStreamError."""
        if (recording := self._find(stream_id, caller)) is not None:
            return ResumedReply(self, recording, after)
        stored = await self._keeping(streams.find, caller.salt, stream_id) if self._keeping.on else None
        if stored is None:
            raise UnknownStreamError
        events = stored.split(b"\n\n")[:-1]
        _check_after(after, 0, len(events))
        behind = b"".join([event + b"\n\n" for event in events[after:]])
        return Response(behind, headers={STREAM_HEADER.decode(): stream_id}, media_type=SSE.decode())

    async def stop(self, stream_id: str, caller: Caller) -> bool:
        """Stop an answer and delete what is stored of it; say whether it was under way.

        Raises UnknownStreamError.
        """
        recording = self._find(stream_id, caller)
        stopped = recording is not None and not recording.writing.done()
        if recording is not None:
            recording.stop()
        deleted = self._keeping.on and await self._keeping(streams.delete, caller.salt, stream_id)
        if recording is None and not deleted:
            raise UnknownStreamError
        return stopped

    def _find(self, stream_id: str, caller: Caller) -> StreamRecording | None:
        recording = self._kept.get(stream_id)
        return recording if recording is not None and recording.owner == caller.salt else None

    async def play(self, recording: StreamRecording, receive: Receive, send: Send, after: int) -> None:
        """Have a client read; see StreamRecording. When it leaves, the recording waits for the next one."""
        if (leaving := self._leaving.pop(recording.stream_id, None)) is not None:
            leaving.cancel()
        try:
            await recording.play(receive, send, after)
        finally:
            if not recording.read and (self._closed or not recording.findable):
                self._forget(recording)
            elif not recording.read and recording.stream_id in self._kept:
                self._leaving[recording.stream_id] = asyncio.ensure_future(self._wait(recording))

    async def _wait(self, recording: StreamRecording) -> None:
        await self._clock.sleep(KEPT_S)
        while recording.goes_on:
            await self._clock.sleep(KEPT_S)
        del self._leaving[recording.stream_id]
        self._forget(recording)

    def _forget(self, recording: StreamRecording) -> None:
        """Let go of a recording, and cancel what is still being written."""
        if self._kept.pop(recording.stream_id, None) is None:
            return
        if (leaving := self._leaving.pop(recording.stream_id, None)) is not None:
            leaving.cancel()
        recording.writing.cancel()

    def close(self) -> None:
        """Forget all that nobody reads, now and later, so that no stop waits for them."""
        self._closed = True
        for recording in [kept for kept in self._kept.values() if not kept.read]:
            self._forget(recording)


class RecordedReply(Response):
    """An answer that is written into a recording, and its first reader."""

    def __init__(
        self,
        streams: StreamRecordings,
        call_id: str,
        reply: StreamReply,
        context: RequestContext,
        *,
        stored: bool,
    ) -> None:
        super().__init__()
        self._streams, self._call_id, self._reply, self._context = streams, call_id, reply, context
        self._stored = stored

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller, chosen = self._context.caller, chosen_id(Headers(scope=scope))
        stream_id, named = chosen or self._call_id, chosen is not None
        recording = self._streams.begin(
            stream_id, caller, self._reply, scope, named=named, stored=self._stored
        )
        self._context.writing = recording.writing
        await self._streams.play(recording, receive, send, 0)


class ResumedReply(Response):
    """A later reader of a recording."""

    def __init__(self, streams: StreamRecordings, recording: StreamRecording, after: int) -> None:
        super().__init__()
        recording.check(after)
        self._streams, self._recording, self._after = streams, recording, after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 ASGI's shape
        await self._streams.play(self._recording, receive, send, self._after)
