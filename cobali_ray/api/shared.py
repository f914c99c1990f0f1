"""The logprobs of a prompt that has several answers: computed for one of them, told with each. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from cobali_ray.api.translate import Call
from cobali_ray.core.events import Delta, End, Event


class SharedPrompts:
    """Who of a call's answers may speak: none before its prompt is told, as if it had asked itself."""

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
            elif self._n_left[prompt] and not (isinstance(event, End) and event.error is not None):
                self._held[prompt].append(event)
            else:
                told.append(event)
        return told
