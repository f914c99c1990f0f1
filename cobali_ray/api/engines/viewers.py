"""Viewers: one poll of the engine's ticks, shared by all who watch this process; none while nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import orjson
import structlog

from cobali_ray.api.door.clock import ApiClock
from cobali_ray.api.engines.apart import begin_apart
from cobali_ray.api.engines.client import EngineClient
from cobali_ray.core.views.stats import EngineState, EngineStatus, TickFeed
from cobali_ray.errors import CobaliError

_log = structlog.get_logger(__name__)

PERIOD_S: Final = 0.25
"""Least time between two polls."""
MAX_PERIOD_S: Final = 2.0
EVENTS_PER_S: Final = 12
"""To all viewers together: the more there are, the longer the time between polls, up to the longest."""
N_INITIAL_TICKS: Final = 200
"""Ticks that a newcomer is shown."""
MAX_TICKS: Final = 4096
BACKLOG: Final = 16
"""Events that may wait for one viewer; one who lags further starts over."""


class Viewer:
    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.fresh = True
        """Whether it still needs the ticks so far."""
        self.gone_status: EngineStatus | None = None
        """The status last sent of an engine that is gone; None once ticks have been sent again."""
        self.closed = False
        self._waiting: list[bytes] = []
        self._arrived = asyncio.Event()

    def put(self, event: bytes) -> None:
        """Add an event; one too many makes the viewer start over."""
        self._waiting.append(event)
        if len(self._waiting) > BACKLOG:
            self._waiting.clear()
            self.fresh = True
        self._arrived.set()

    def close(self) -> None:
        self.closed = True
        self._arrived.set()

    async def take(self) -> bytes:
        """Wait for events and return all of them; nothing once the stream is over."""
        while not self._waiting and not self.closed:
            self._arrived.clear()
            await self._arrived.wait()
        events, self._waiting = b"".join(self._waiting), []
        return events


class Viewers:
    """Shows every tick to every viewer once, as long as the viewer keeps up."""

    def __init__(self, client: EngineClient, clock: ApiClock) -> None:
        self._client, self._clock = client, clock
        self._viewers: set[Viewer] = set()
        self._poll: asyncio.Task[None] | None = None
        self._incarnation_id, self._next = "", 0
        self._polled_s = -MAX_PERIOD_S
        self._closed = False

    def close(self) -> None:
        """End every stream after what is waiting, and later ones at once, so that a stop waits for none."""
        self._closed = True
        for viewer in self._viewers:
            viewer.close()

    async def watch(self, tenant: str) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events until closed, as a tenant may read them."""
        viewer = Viewer(tenant)
        viewer.closed = self._closed
        self._viewers.add(viewer)
        if self._poll is None:
            self._poll = begin_apart(self._poll_on())
            self._poll.add_done_callback(self._over)
        try:
            while events := await viewer.take():
                yield events
        finally:
            self._viewers.discard(viewer)
            if not self._viewers and self._poll is not None:
                self._poll.cancel()
                self._poll = None

    async def _poll_on(self) -> None:
        while True:
            await self._clock.sleep(max(0.0, self._polled_s + self._period_s() - self._clock.now()))
            self._polled_s = self._clock.now()
            try:
                await self._round()
            except CobaliError:
                self._send_gone(await self._client.state())

    def _period_s(self) -> float:
        """Return the time between polls: longer with more viewers, so that it costs the same."""
        return min(MAX_PERIOD_S, max(PERIOD_S, len(self._viewers) / EVENTS_PER_S))

    def _over(self, poll: asyncio.Future[None]) -> None:
        """Let no viewer wait for a poll that failed; they come back by themselves."""
        if not poll.cancelled():
            _log.error("feed_failed", error=repr(poll.exception()))
            self._poll = None
            for viewer in self._viewers:
                viewer.close()

    async def _round(self) -> None:
        """Send what is new to viewers that have the ticks so far, then these ticks to newcomers."""
        current = [viewer for viewer in self._viewers if not viewer.fresh]
        if current:
            update = await self._client.ticks(last=MAX_TICKS, since=self._next)
            if update.incarnation_id == self._incarnation_id:
                self._next = update.next
                _send(current, update)
            else:  # a new engine counts from 0
                for viewer in current:
                    viewer.fresh = True
        fresh = [viewer for viewer in self._viewers if viewer.fresh]
        if not fresh:
            return
        before = self._next if len(fresh) < len(self._viewers) else None
        past = await self._client.ticks(last=N_INITIAL_TICKS, before=before)
        if before is None:
            self._incarnation_id, self._next = past.incarnation_id, past.next
        elif past.incarnation_id != self._incarnation_id:
            return  # it died between the two: the next round sees that
        _send(fresh, past)

    def _send_gone(self, state: EngineState) -> None:
        """Send why the engine is gone, and again when its status changes; ticks show that it is ready."""
        data = {name: getattr(state, name) for name in ("engine_id", "status", "detail", "down_s")}
        event = b"event: gone\ndata: " + orjson.dumps(data) + b"\n\n"
        for viewer in self._viewers:
            if viewer.gone_status is None or state.status not in {viewer.gone_status, EngineStatus.READY}:
                viewer.gone_status = state.status
                viewer.put(event)


def _send(viewers: list[Viewer], feed: TickFeed) -> None:
    tenants = {viewer.tenant for viewer in viewers}
    events = {tenant: b"data: " + feed.body_for(tenant) + b"\n\n" for tenant in tenants}
    for viewer in viewers:
        viewer.fresh, viewer.gone_status = False, None
        viewer.put(events[viewer.tenant])
