"""The events of a call: from engines, or from none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeAlias

from cobali_ray.api.call.translate import Call
from cobali_ray.api.engines.dispatch import EventStream
from cobali_ray.api.engines.fleet import ServedModel
from cobali_ray.core.request.events import Delta, End, Event, RequestProgress, RequestStats

Events: TypeAlias = EventStream | AsyncGenerator[list[Event], None]
"""Lists of events, until all choices have ended."""


def events_of(model: ServedModel, call: Call) -> Events:
    """Return the events of all choices of a call, in a list per wake-up; closing it cancels them all."""
    if call.prompt_only:
        return _prompt_only(call)
    events = model.ask(*call.requests)
    return _shared(events, call) if call.n > 1 else events


async def _shared(events: EventStream, call: Call) -> AsyncGenerator[list[Event], None]:
    """Give every answer of a prompt the logprobs of that prompt."""
    prompts = SharedPrompts(call)
    async with aclosing(events) as batches:
        async for batch in batches:
            if shared := prompts.share(batch):
                yield shared


async def _prompt_only(call: Call) -> AsyncGenerator[list[Event], None]:
    """End every choice at once: the answer is the prompt, and no engine is asked."""
    for request in call.requests:
        stats = RequestStats(request.n_prompt, 0, 0, None, None, None, None, 0.0)
        yield [End(request.request_id, "length", None, stats)]


class SharedPrompts:
    """The logprobs of a prompt that has several answers: computed for one of them, sent with each.

    Each answer has them before its first text, as if they had been computed for it.
    """

    def __init__(self, call: Call) -> None:
        self._requests, self._n = call.requests, call.n
        self._choice = {request.request_id: i for i, request in enumerate(call.requests)}
        firsts = call.requests[:: call.n]
        self._n_left = [0 if request.n_prompt_logprobs is None else request.n_prompt for request in firsts]
        self._held: dict[int, list[Event]] = defaultdict(list)

    def share(self, batch: Sequence[Event]) -> list[Event]:
        shared: list[Event] = []
        for event in batch:
            prompt = self._choice[event.request_id] // self._n
            if isinstance(event, Delta) and event.prompt:
                answers = self._requests[prompt * self._n : (prompt + 1) * self._n]
                shared += [event._replace(request_id=request.request_id) for request in answers]
                self._n_left[prompt] -= len(event.prompt)
                if not self._n_left[prompt]:
                    shared += self._held.pop(prompt, [])
            elif self._n_left[prompt] and not _comes_first(event):
                self._held[prompt].append(event)
            else:
                shared.append(event)
        return shared


def _comes_first(event: Event) -> bool:
    """Whether an event need not wait for the logprobs of the prompt."""
    return isinstance(event, RequestProgress) or (isinstance(event, End) and event.error is not None)
