"""The time the API needs, so that tests own it."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from cobali_ray.core.clock import Clock


class ApiClock(Clock, Protocol):
    """A monotonic clock that also knows the date and can wait."""

    def unix(self) -> int:
        """Return whole seconds since 1970."""

    async def sleep(self, seconds: float) -> None:
        """Wait on the event loop."""


class SystemClock:
    """The machine's clock and the running event loop."""

    def now(self) -> float:
        return time.monotonic()

    def unix(self) -> int:
        return int(time.time())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
