"""Sends on time, stamps what comes back. Closed loop, open loop, and an intruder beside either."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from cobali_workloads.load.reply import Exchange, read_reply
from cobali_workloads.load.target import Job, Target

Send: TypeAlias = Callable[[Job, float], Awaitable[Exchange]]
"""Sends a job that was due at a time; returns what came back, whatever happened."""
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class Timer(Protocol):
    """The clock of a load run."""

    def now(self) -> float:
        """Return seconds since an arbitrary moment."""
        ...

    async def until(self, at_s: float) -> None:
        """Wait for a moment of this clock; one in the past does not wait."""
        ...


class LoopTimer:
    """The machine's monotonic clock and the running event loop's sleep."""

    def now(self) -> float:
        """Return seconds since an arbitrary moment."""
        return time.perf_counter()

    async def until(self, at_s: float) -> None:
        """Wait for a moment of this clock."""
        delay = at_s - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)


class HttpStream(asyncio.Protocol):
    """One HTTP/1.1 request on a connection of its own; keeps the pieces and knows when the answer ends."""

    def __init__(self, request: bytes, now: Callable[[], float], done: asyncio.Future[None]) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self._request, self._now, self._done = request, now, done
        self._head = b""
        self._left: int | None = None
        """Body bytes still to come, where the head says how many there are."""
        self._chunked = self._headed = False
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Stamp what arrived; end at the last byte, as some servers keep the connection open."""
        self.pieces.append((self._now(), data))
        if not self._headed:
            data = self._read_head(data)
        if self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                self._finish()
        elif self._chunked:
            self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
            if self._tail == _LAST_CHUNK:
                self._finish()

    def _read_head(self, data: bytes) -> bytes:
        self._head += data
        head, separator, body = self._head.partition(b"\r\n\r\n")
        if not separator:
            return b""
        self._headed = True
        for line in head.lower().split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name == b"transfer-encoding" and b"chunked" in value:
                self._chunked = True
            elif name == b"content-length" and value.strip().isdigit():
                self._left = int(value)
        # An empty chunked body has its last chunk right after the head.
        self._tail = b"\r\n"
        return body

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end, and why if it was no end."""
        if self._done.done():
            return
        if exc is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(exc)


class Sender:
    """Sends jobs to one target."""

    def __init__(
        self, target: Target, timer: Timer, *, ignore_eos: bool, timeout_s: float, stream: bool = True
    ) -> None:
        self._target, self._timer = target, timer
        self._ignore_eos, self._timeout_s, self._stream = ignore_eos, timeout_s, stream
        self._tls = ssl.create_default_context() if target.tls else None

    async def __call__(self, job: Job, due_s: float) -> Exchange:
        """Send one job on a new connection and wait for its answer; `sent_s` is before connecting."""
        loop = asyncio.get_running_loop()
        raw = self._target.request(job, ignore_eos=self._ignore_eos, stream=self._stream)
        done: asyncio.Future[None] = loop.create_future()
        stream = HttpStream(raw, self._timer.now, done)
        sent_s, error, transport = self._timer.now(), "", None
        name = self._target.host if self._tls else None
        try:
            async with asyncio.timeout(self._timeout_s):
                transport, _ = await loop.create_connection(
                    lambda: stream,
                    self._target.address,
                    self._target.port,
                    ssl=self._tls,
                    server_hostname=name,
                )
                await done
        except TimeoutError:
            error = f"no whole answer within {self._timeout_s:g} s"
        except OSError as problem:
            error = f"connection: {problem!r}"
        finally:
            if transport is not None:
                (transport.abort if error else transport.close)()
        return Exchange(
            due_s=due_s, sent_s=sent_s, closed_s=self._timer.now(),
            pieces=stream.pieces, error=error, role=job.role,
        )  # fmt: skip


async def closed_loop(send: Send, clients: Sequence[Sequence[Job]], timer: Timer) -> list[Exchange]:
    """Let each client send its jobs, one after the other; all begin at once.

    A job that does not begin a conversation is sent with its client's earlier prompts and answers.
    """

    async def client(jobs: Sequence[Job]) -> list[Exchange]:
        exchanges: list[Exchange] = []
        history: tuple[tuple[str, str], ...] = ()
        for number, planned in enumerate(jobs):
            job = planned if planned.begins else replace(planned, history=history)
            exchanges.append(await send(job, timer.now()))
            if number + 1 < len(jobs) and not jobs[number + 1].begins:
                answer = read_reply(exchanges[-1].pieces).text
                history = (*job.history, (job.prompt, answer))
        return exchanges

    return [exchange for done in await asyncio.gather(*map(client, clients)) for exchange in done]


async def open_loop(send: Send, jobs: Iterable[Job], timer: Timer) -> list[Exchange]:
    """Send each job at its time, whatever comes back."""
    start = timer.now()
    running = []
    for job in jobs:
        await timer.until(start + job.at_s)
        running.append(asyncio.ensure_future(send(job, start + job.at_s)))
    return list(await asyncio.gather(*running))


async def with_intruder(
    load: Awaitable[list[Exchange]], send: Send, intruders: Iterable[Job], timer: Timer
) -> list[Exchange]:
    """Send intruders at their times for as long as the load lasts; return what both got."""
    start = timer.now()
    running: list[asyncio.Future[Exchange]] = []

    async def intrude() -> None:
        for job in intruders:
            await timer.until(start + job.at_s)
            running.append(asyncio.ensure_future(send(job, start + job.at_s)))

    intrusion = asyncio.ensure_future(intrude())
    try:
        exchanges = await load
    finally:
        intrusion.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await intrusion
    return [*exchanges, *await asyncio.gather(*running)]
