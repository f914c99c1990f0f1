"""The events of a call: from engines, or from none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeAlias, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from cobali_ray.api.dispatch import EventStream
from cobali_ray.api.fleet import Model
from cobali_ray.api.shared import SharedPrompts
from cobali_ray.api.translate import Call
from cobali_ray.core.events import End, Event, RequestStats

ResultT = TypeVar("ResultT")
Events: TypeAlias = EventStream | AsyncGenerator[list[Event], None]
"""Lists of events, until all choices have ended."""


def events_of(model: Model, call: Call) -> Events:
    """Return everything pending per wake-up for all choices of a call; closing it cancels them all."""
    if call.prompt_only:
        return _prompt_only(call)
    events = model.generate(*call.requests)
    return shared(events, SharedPrompts(call)) if call.n > 1 else events


async def shared(events: EventStream, prompts: SharedPrompts) -> AsyncGenerator[list[Event], None]:
    """Have all answers of a prompt told what is known of it."""
    async with aclosing(events) as batches:
        async for batch in batches:
            if told := prompts.share(batch):
                yield told


async def _prompt_only(call: Call) -> AsyncGenerator[list[Event], None]:
    """End every choice at once: the answer is the prompt, and no engine is asked."""
    for request in call.requests:
        stats = RequestStats(request.n_prompt, 0, 0, None, None, None, None, 0.0)
        yield [End(request.request_id, "length", None, stats)]


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Do the work and return its result; cancel it as soon as the client goes away.

    Cancelling the caller cancels the work, and waits until it has cleaned up. Raises ClientDisconnect.
    """

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)
