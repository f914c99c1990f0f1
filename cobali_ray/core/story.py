"""Story: a scheduler's last events and its instructions, to be read, written to a file and replayed."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Collection
from collections.abc import Sequence as Seq
from copy import deepcopy
from typing import Any

from cobali_ray.core import messages
from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.errors import InvariantError

N_EVENTS = 256
_N_SHOWN = 40


class Story:
    """The last `n_most` events with their instructions, or all. `text` has no text of any request."""

    def __init__(self, n_most: int | None = N_EVENTS) -> None:
        self.entries: deque[tuple[messages.Event, Seq[messages.Instruction]]] = deque(maxlen=n_most)
        self.opening: dict[str, Any] = {}
        """What the scheduler was made with, as it was then: the arguments for another like it."""
        self._n_events = 0

    def begin(self, **opening: Any) -> None:
        """Record the scheduler's arguments, as copies: a pacer learns."""
        self.opening = deepcopy(opening)

    def add(self, event: messages.Event, instructions: Seq[messages.Instruction]) -> None:
        self.entries.append((event, instructions))
        self._n_events += 1

    def dump(self) -> bytes:
        """Return it for a file, with all of each request. Raises InvariantError if its beginning is gone."""
        if len(self.entries) < self._n_events:
            raise InvariantError(f"only {len(self.entries)} of {self._n_events} events are kept")
        return pickle.dumps((self.opening, list(self.entries)))

    def text(self) -> str:
        """Return the last entries, one line each."""
        last = list(self.entries)[-_N_SHOWN:]
        first = self._n_events - len(last)
        lines = [f"{i}: {describe(e)} -> {_all(out)}" for i, (e, out) in enumerate(last, first)]
        return "\n".join(["the story:", *lines])


def load(data: bytes) -> Story:
    """Return a story from a file, which must be one's own: reading it can run what is in it."""
    story = Story(None)
    story.opening, entries = pickle.loads(data)  # noqa: S301  # said above
    for event, instructions in entries:
        story.add(event, instructions)
    return story


def describe(message: messages.Event | messages.Instruction) -> str:
    """Describe an event or an instruction in a few words, without text of requests or what changes later."""
    name = type(message).__name__
    if isinstance(message, messages.Submitted):
        request = message.request
        output = f"{len(request.ends)} texts" if isinstance(request, EmbeddingRequest) else request.max_tokens
        return f"{name}({request.request_id}, {request.n_prompt} + {output} at {message.now_s:.4f})"
    if isinstance(message, messages.Embed):
        return f"{name}({' '.join([f'{p.request.request_id}:{p.text_id}' for p in message.pieces])})"
    if isinstance(message, messages.Compute):
        plan = message.plan
        streams = " ".join([str(slot_id) for slot_id in plan.streams])
        chunks = " ".join([f"{c.slot_id}:{c.start}+{c.length}" for c in plan.chunks])
        return f"{name}(streams {streams or '-'}, chunks {chunks or '-'})"
    if isinstance(message, messages.Emit):
        return f"{name}({' '.join([f'{request_id}:{token}' for request_id, token, *_ in message.tokens])})"
    if isinstance(message, messages.Finish):
        end = message.end
        return f"{name}({end.request_id}, {end.finish_reason or type(end.error).__name__})"
    return f"{name}({', '.join([f'{field}={_short(value)}' for field, value in message._asdict().items()])})"


def _short(value: object) -> str:
    """Return a value; of a collection only its length: it may be long, or text of a request."""
    return str(len(value)) if isinstance(value, Collection) and not isinstance(value, str) else repr(value)


def _all(instructions: Seq[messages.Instruction]) -> str:
    return "; ".join([describe(instruction) for instruction in instructions]) or "-"
