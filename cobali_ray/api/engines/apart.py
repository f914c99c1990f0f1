"""Work that a request begins: what does not end with it, and what does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from cobali_ray.api.door.clock import ApiClock

ResultT = TypeVar("ResultT")


def begin_apart(work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
    """Begin work that goes on when the client of this request leaves.

    In a context of its own: of a request whose client leaves, Serve cancels every call that was made in its
    context, whichever task made it.
    """
    return asyncio.get_running_loop().create_task(work, context=Context())


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Do the work and return its result; cancel it as soon as the client goes away.

    Cancelling the caller cancels the work, and waits until it has cleaned up. Raises ClientDisconnect.
    """

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def until_set(event: asyncio.Event, clock: ApiClock, most_s: float) -> None:
    """Wait for an event, but no longer than this."""
    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(most_s))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
