"""LiveStream: a stream as its client gets it, in which there is never silence for long.

Proxies and clients cut a connection on which nothing comes, and a long prompt, a full queue or a pause are
just that. After `ping_s` without a write, a comment is sent that parsers of server-sent events skip, or what
the API has in its place. If nothing was sent before, the status goes with it, and an error after that goes
into the stream.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, Self

from starlette.requests import ClientDisconnect
from starlette.types import Message, Send

from cobali_ray.api.door.clock import ApiClock

COMMENT: Final = b": keep-alive\n\n"
"""A comment of a stream of server-sent events."""
STREAM_HEADERS: Final = [
    (b"cache-control", b"no-cache"),
    # A proxy that buffers would turn a stream into an answer.
    (b"x-accel-buffering", b"no"),
]


class LiveStream:
    """Sends the writes of one answer, and pings between them; to be used as a context manager."""

    def __init__(self, send: Send, media_type: bytes, ping: bytes, ping_s: float, clock: ApiClock) -> None:
        """No pings without `ping`, or if `ping_s` is 0."""
        self._send, self._media_type, self._clock = send, media_type, clock
        self._ping, self._ping_s = ping, ping_s if ping else 0.0
        self._wrote_s = 0.0
        self._turn = asyncio.Lock()
        self._pinging: asyncio.Task[None] | None = None
        self.begun = False
        """Whether the status is sent."""
        self.broken = False
        """Whether sending failed: then nothing more is sent, not even the error."""

    async def __aenter__(self) -> Self:
        if self._ping_s:
            self._wrote_s = self._clock.now()
            self._pinging = asyncio.get_running_loop().create_task(self._keep_alive())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._pinging is not None:
            self._pinging.cancel()
            await asyncio.gather(self._pinging, return_exceptions=True)

    async def write(self, wire: bytes) -> None:
        """Send what comes next; waits while the reader is slow."""
        async with self._turn:
            await self._write(wire)

    async def end(self) -> None:
        """Send that nothing more comes."""
        async with self._turn:
            await self._begin()
            await self._put({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            headers = [(b"content-type", self._media_type), *STREAM_HEADERS]
            await self._put({"type": "http.response.start", "status": 200, "headers": headers})

    async def _write(self, wire: bytes) -> None:
        await self._begin()
        await self._put({"type": "http.response.body", "body": wire, "more_body": True})
        if self._ping_s:
            self._wrote_s = self._clock.now()

    async def _put(self, message: Message) -> None:
        try:
            await self._send(message)
        except Exception:
            self.broken = True
            raise

    async def _keep_alive(self) -> None:
        with suppress(ClientDisconnect):  # the next write of the answer raises it, too
            while True:
                async with self._turn:  # a write that waits for its reader comes first
                    left_s = self._wrote_s + self._ping_s - self._clock.now()
                    if left_s <= 0:
                        await self._write(self._ping)
                        left_s = self._ping_s
                await self._clock.sleep(left_s)
