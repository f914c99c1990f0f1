"""The events of a call: from one generator, from several at once, or from none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from cobali_ray.api.fleet import Model
from cobali_ray.api.shared import SharedPrompts
from cobali_ray.api.translate import Call
from cobali_ray.core.events import End, Event, RequestStats

ResultT = TypeVar("ResultT")


def events_of(model: Model, call: Call) -> AsyncGenerator[list[Event], None]:
    """Return everything pending per wake-up for all choices of a call; closing it cancels them all."""
    if call.prompt_only:
        return _prompt_only(call)
    if len(call.requests) == 1:
        return model.generate(call.requests[0])
    events = merged([model.generate(request) for request in call.requests])
    return shared(events, SharedPrompts(call)) if call.n > 1 else events


async def shared(
    events: AsyncGenerator[list[Event], None], prompts: SharedPrompts
) -> AsyncGenerator[list[Event], None]:
    """Have all answers of a prompt told what is known of it."""
    async with aclosing(events) as batches:
        async for batch in batches:
            if told := prompts.share(batch):
                yield told


async def merged(sources: Sequence[AsyncGenerator[list[Event], None]]) -> AsyncGenerator[list[Event], None]:
    """Interleave generators. At most one list of each is in flight, so a slow reader slows them all.

    The first error of any of them is raised and closes the others.
    """
    waiting: dict[asyncio.Task[list[Event] | None], AsyncGenerator[list[Event], None]] = {
        _next(source): source for source in sources
    }
    try:
        while waiting:
            ready, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            pending: list[Event] = []
            # In the order of the choices, which the set `ready` has lost.
            for task in [task for task in waiting if task in ready]:
                source = waiting.pop(task)
                batch = task.result()
                if batch is not None:
                    pending += batch
                    waiting[_next(source)] = source
            if pending:
                yield pending
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.gather(*(source.aclose() for source in sources), return_exceptions=True)


def _next(source: AsyncGenerator[list[Event], None]) -> asyncio.Task[list[Event] | None]:
    async def step() -> list[Event] | None:
        return await anext(source, None)

    return asyncio.ensure_future(step())


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
