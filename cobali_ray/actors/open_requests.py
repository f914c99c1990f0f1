"""OpenRequests: the requests that are open in an engine's process, and the way of their events out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

from cobali_ray.actors.tracing import EngineTracer
from cobali_ray.actors.wire import Pusher
from cobali_ray.core.request.events import End, EngineEvent
from cobali_ray.errors import CobaliError, EventsLostError

Outcome = asyncio.Future[CobaliError | None]


class OpenRequests:
    """Each is open until its end event is sent, or one of its events could not be.

    Opened and closed on the event loop; the tick thread publishes.
    """

    def __init__(self, pusher: Pusher, tracer: EngineTracer | None, cancel: Callable[[str], None]) -> None:
        """`cancel` ends a request whose events cannot be sent."""
        self._pusher, self._tracer, self._cancel = pusher, tracer, cancel
        self._open: dict[str, Outcome] = {}
        self._asyncio: asyncio.AbstractEventLoop | None = None
        self._lost: set[str] = set()
        """Open requests of which an event did not get out; of the tick thread."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

    @contextlib.contextmanager
    def opened(self, request_id: str) -> Iterator[Outcome]:
        """Open a request, and yield the future of its outcome."""
        self._asyncio = asyncio.get_running_loop()
        self._open[request_id] = outcome = self._asyncio.create_future()
        try:
            yield outcome
        finally:
            del self._open[request_id]
            outcome.cancel()  # one that ended without an event is waited for no longer

    async def wait(self, timeout_s: float) -> bool:
        """Wait until all have ended. Returns whether they did in time."""
        if self._open:
            await asyncio.wait(self._open.values(), timeout=timeout_s)
        return not self._open

    def publish(self, batch: list[tuple[str, EngineEvent]]) -> None:
        """Send one tick's events. Called by the tick thread."""
        try:
            # After a gap nothing more is sent: no answer looks whole that is not.
            whole = [(to, e) for to, e in batch if e.request_id not in self._lost] if self._lost else batch
            lost = self._pusher.send(whole)
            self._lost |= lost
            for request_id in lost:
                self._cancel(request_id)
        finally:
            if ended := [event for _, event in batch if isinstance(event, End)]:
                gaps = self._lost.intersection(end.request_id for end in ended)
                self._lost -= gaps
                if self._asyncio is not None:
                    # RuntimeError: the event loop is closed, so nobody waits any longer.
                    with contextlib.suppress(RuntimeError):
                        self._asyncio.call_soon_threadsafe(self._finish, ended, gaps, time.time_ns())

    def _finish(self, ended: list[End], gaps: set[str], ended_ns: int) -> None:
        for end in ended:
            outcome = self._open.get(end.request_id)
            if outcome is not None and not outcome.done():
                outcome.set_result(EventsLostError() if end.request_id in gaps else None)
        if self._tracer is not None:
            for end in ended:
                self._tracer.end(end, ended_ns)
