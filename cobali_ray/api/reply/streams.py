"""Streams that outlive their readers: whoever was cut off reads on behind the last event that came.

A task of its own writes an answer into a recording, as the ASGI messages that the reply sends, which knows
nothing of it; clients read that. Each event has a number, its `id:` line. When nobody reads, the answer goes
on for a while; then its requests are cancelled, and the recording is forgotten.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cobali_ray.api.door.clock import ApiClock
from cobali_ray.api.door.context import RequestContext
from cobali_ray.api.engines.apart import begin_apart, unless_gone
from cobali_ray.api.reply.keepalive import COMMENT
from cobali_ray.errors import InvalidParameterError, UnknownStreamError

KEPT_S: Final = 30.0
"""How long a stream waits for a reader."""
KEPT_BYTES: Final = 1 << 20
"""What is kept of one stream. What was sent goes first; what was not is waited for."""
MAX_STREAMS: Final = 128
"""Streams under way that may be recorded at once; others are plain ones."""
MAX_OF_KEY: Final = 32
"""Those of one API key among them."""
ENDED_BYTES: Final = 64 << 20
"""What is kept of all streams that are over and may be read to the end."""
STREAM_HEADER: Final = b"x-cobali-stream"
"""Says the id; the front end finds the process again by it."""


async def _nothing() -> Message:
    """Receive nothing, ever: readers come and go, and the answer does not hear of it."""
    return await asyncio.Future()


class StreamRecording:
    """The numbered events of one answer, and who reads them now."""

    def __init__(self, stream_id: str, tenant: str, reply: ASGIApp, scope: Scope) -> None:
        """Begin to answer, on the running event loop."""
        self.stream_id, self.tenant = stream_id, tenant
        self._start: Message | None = None
        self._events: list[bytes] = []
        self._comment = b""
        """A comment that was not passed on yet."""
        self._n_dropped, self._n_read, self.n_bytes = 0, 0, 0
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._reader: object | None = None
        self.writing = begin_apart(self._write(reply, scope))
        self.writing.add_done_callback(self._end)

    @property
    def begun(self) -> bool:
        """Whether it has said anything, so that a client can know of it."""
        return self._start is not None

    @property
    def read(self) -> bool:
        return self._reader is not None

    async def _write(self, reply: ASGIApp, scope: Scope) -> None:
        await reply(scope, _nothing, self._record)

    async def _record(self, message: Message) -> None:
        """Take what the answer sends; wait while nothing of it has been read and there is too much."""
        if message["type"] == "http.response.start":
            headers = [*message["headers"], (STREAM_HEADER, self.stream_id.encode())]
            self._start = {**message, "headers": headers}
            return
        if message["body"] == COMMENT:  # it is for who reads now, and is not read on from
            self._comment = COMMENT
            self._news.set()
            return
        for event in message["body"].split(b"\n\n")[:-1]:
            n = self._n_dropped + len(self._events) + 1
            self._events.append(b"id: %d\n%b\n\n" % (n, event))
            self.n_bytes += len(self._events[-1])
        self._news.set()
        self._trim()
        while self.n_bytes > KEPT_BYTES:
            self._room.clear()
            await self._room.wait()

    def _trim(self) -> None:
        """Drop what was read, the oldest first, where too much is kept."""
        n = 0
        while self.n_bytes > KEPT_BYTES and self._n_dropped + n < self._n_read:
            self.n_bytes -= len(self._events[n])
            n += 1
        del self._events[:n]
        self._n_dropped += n
        self._room.set()

    def _end(self, writing: asyncio.Future[None]) -> None:
        if not writing.cancelled():
            writing.exception()  # told to whoever reads
        self._news.set()

    def check(self, after: int) -> None:
        """Raise InvalidParameterError where the events behind this one are not to be had."""
        first, last = self._n_dropped, self._n_dropped + len(self._events)
        if not first <= after <= last:
            raise InvalidParameterError("after", f"must be from {first} to {last} here, got {after}")

    async def play(self, receive: Receive, send: Send, after: int) -> None:
        """Send the events behind one, and what comes, until it is over or somebody else reads.

        Raises what ended the answer before its first event, and ClientDisconnect.
        """
        self.check(after)
        self._reader = me = object()
        self._n_read = after
        self._trim()
        self._news.set()  # whoever read until now leaves
        try:
            await unless_gone(receive, self._play(me, send, after))
        finally:
            if self._reader is me:
                self._reader = None

    async def _play(self, me: object, send: Send, after: int) -> None:
        while self._start is None:
            if self.writing.done():
                self.writing.result()
                return
            await self._arrived()
        await send(self._start)
        while self._reader is me:
            comment, self._comment = self._comment, b""
            if events := self._events[after - self._n_dropped :]:
                after += len(events)
                self._n_read = after
                self._trim()
                await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})
            elif comment:
                await send({"type": "http.response.body", "body": comment, "more_body": True})
            elif self.writing.done():
                break
            else:
                await self._arrived()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _arrived(self) -> None:
        self._news.clear()
        await self._news.wait()


class StreamRecordings:
    """The recordings of one process, by their ids."""

    def __init__(self, clock: ApiClock) -> None:
        self._clock, self._closed = clock, False
        self._kept: dict[str, StreamRecording] = {}
        self._live: set[StreamRecording] = set()
        self._over: dict[str, StreamRecording] = {}
        """Those that are written to their ends, the first to end first."""
        self._n_over_bytes = 0
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """What forgets those that nobody reads."""

    def has_room(self, tenant: str) -> bool:
        """Say whether one more answer may be recorded."""
        n_of_key = sum(live.tenant == tenant for live in self._live)
        return len(self._live) < MAX_STREAMS and (not tenant or n_of_key < MAX_OF_KEY)

    def begin(self, stream_id: str, tenant: str, reply: ASGIApp, scope: Scope) -> StreamRecording:
        recording = self._kept[stream_id] = StreamRecording(stream_id, tenant, reply, scope)
        self._live.add(recording)
        recording.writing.add_done_callback(lambda _: self._end(recording))
        return recording

    def _end(self, recording: StreamRecording) -> None:
        self._live.discard(recording)
        if recording.stream_id not in self._kept:
            return
        self._over[recording.stream_id] = recording
        self._n_over_bytes += recording.n_bytes
        if self._n_over_bytes > ENDED_BYTES:
            unread = [over for over in self._over.values() if not over.read]
            for over in unread:
                if self._n_over_bytes > ENDED_BYTES:
                    self._forget(over)

    def find(self, stream_id: str, tenant: str) -> StreamRecording:
        """Return a recording to whose it is. Raises UnknownStreamError."""
        found = self._kept.get(stream_id)
        if found is None or found.tenant != tenant:
            raise UnknownStreamError
        return found

    async def play(self, recording: StreamRecording, receive: Receive, send: Send, after: int) -> None:
        """Have a client read; see StreamRecording. When it leaves, the recording waits for the next one."""
        if (leaving := self._leaving.pop(recording.stream_id, None)) is not None:
            leaving.cancel()
        try:
            await recording.play(receive, send, after)
        finally:
            if not recording.begun or (self._closed and not recording.read):
                self._forget(recording)
            elif not recording.read and recording.stream_id in self._kept:
                self._leaving[recording.stream_id] = asyncio.ensure_future(self._wait(recording))

    async def _wait(self, recording: StreamRecording) -> None:
        await self._clock.sleep(KEPT_S)
        del self._leaving[recording.stream_id]
        self._forget(recording)

    def _forget(self, recording: StreamRecording) -> None:
        """Let go of a recording, and cancel what is still being written."""
        if self._kept.pop(recording.stream_id, None) is None:
            return
        if self._over.pop(recording.stream_id, None) is not None:
            self._n_over_bytes -= recording.n_bytes
        if (leaving := self._leaving.pop(recording.stream_id, None)) is not None:
            leaving.cancel()
        recording.writing.cancel()

    def close(self) -> None:
        """Forget all that nobody reads, now and later, so that a stop waits for none of them."""
        self._closed = True
        for recording in [kept for kept in self._kept.values() if not kept.read]:
            self._forget(recording)


class RecordedReply(Response):
    """An answer that is written into a recording, and its first reader."""

    def __init__(
        self, streams: StreamRecordings, stream_id: str, reply: ASGIApp, context: RequestContext
    ) -> None:
        super().__init__()
        self._streams, self._stream_id, self._reply, self._context = streams, stream_id, reply, context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant = self._context.caller.tenant
        recording = self._streams.begin(self._stream_id, tenant, self._reply, scope)
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
