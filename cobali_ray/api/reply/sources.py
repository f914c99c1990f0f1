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
    """Return everything pending per wake-up for all choices of a call; closing it cancels them all."""
    if call.prompt_only:
        return _prompt_only(call)
    events = model.ask(*call.requests)
    return _shared(events, call) if call.n > 1 else events


async def _shared(events: EventStream, call: Call) -> AsyncGenerator[list[Event], None]:
    """Have all answers of a prompt told what is known of it."""
    prompts = SharedPrompts(call)
    async with aclosing(events) as batches:
        async for batch in batches:
            if told := prompts.share(batch):
                yield told


async def _prompt_only(call: Call) -> AsyncGenerator[list[Event], None]:
    """End every choice at once: the answer is the prompt, and no engine is asked."""
    for request in call.requests:
        stats = RequestStats(request.n_prompt, 0, 0, None, None, None, None, 0.0)
        yield [End(request.request_id, "length", None, stats)]


class SharedPrompts:
    """The logprobs of a prompt that has several answers: computed for one of them, told with each.

    No answer speaks before its prompt is told, as if it had asked itself.
    """

    def __init__(self, call: Call) -> None:
        self._requests, self._n = call.requests, call.n
        self._choice = {request.request_id: i for i, request in enumerate(call.requests)}
        firsts = call.requests[:: call.n]
        self._n_left = [0 if one.n_prompt_logprobs is None else one.n_prompt for one in firsts]
        self._held: dict[int, list[Event]] = defaultdict(list)

    def share(self, batch: Sequence[Event]) -> list[Event]:
        told: list[Event] = []
        for event in batch:
            prompt = self._choice[event.request_id] // self._n
            if isinstance(event, Delta) and event.prompt:
                answers = self._requests[prompt * self._n : (prompt + 1) * self._n]
                told += [event._replace(request_id=request.request_id) for request in answers]
                self._n_left[prompt] -= len(event.prompt)
                if not self._n_left[prompt]:
                    told += self._held.pop(prompt, [])
            elif self._n_left[prompt] and not _comes_first(event):
                self._held[prompt].append(event)
            else:
                told.append(event)
        return told


def _comes_first(event: Event) -> bool:
    """Whether it does not wait for what is known of the prompt."""
    return isinstance(event, RequestProgress) or (isinstance(event, End) and event.error is not None)
