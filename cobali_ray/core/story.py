"""Story: the last events a scheduler took and what it answered, to be read, kept in a file and told again."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from copy import deepcopy
from typing import Any, Protocol, Self

from cobali_ray.core.embedding import EmbeddingRequest
from cobali_ray.core.instructions import (
    Compute,
    Embed,
    Emit,
    Event,
    Finish,
    Hold,
    Instruction,
    Listed,
    Load,
    Loaded,
    Sampled,
    Store,
    Submitted,
    Written,
)
from cobali_ray.errors import InvariantError

N_EVENTS = 256
_N_SHOWN = 40


class Story:
    """The last `n_most` events with their answers. `text` shows nothing that a request says, `dump` all."""

    def __init__(self, n_most: int | None = N_EVENTS) -> None:
        """`n_most` None keeps all."""
        self._entries: deque[tuple[Event, Seq[Instruction]]] = deque(maxlen=n_most)
        self._n_events = 0
        self.opening: Mapping[str, Any] = {}
        """What the scheduler was made with, as it was then: the arguments for another like it."""

    def begin(self, **opening: Any) -> None:
        """Note what the scheduler is made with, and copy it: a pacer learns."""
        self.opening = deepcopy(opening)

    def add(self, event: Event, instructions: Seq[Instruction]) -> None:
        """Note an event and its answer."""
        self._entries.append((event, instructions))
        self._n_events += 1

    @property
    def events(self) -> list[Event]:
        """What is kept of the events, oldest first."""
        return [event for event, _ in self._entries]

    @property
    def answers(self) -> list[Seq[Instruction]]:
        """What was answered to each of them."""
        return [instructions for _, instructions in self._entries]

    @property
    def whole(self) -> bool:
        """Whether nothing of it was dropped, so that it can be told again."""
        return len(self._entries) == self._n_events

    def dump(self) -> bytes:
        """Return it for a file, with all that the requests held. Raises InvariantError if it is not whole."""
        if not self.whole:
            raise InvariantError(f"only {len(self._entries)} of {self._n_events} events are kept")
        return pickle.dumps((self.opening, list(self._entries)))

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Return a story from a file, which must be one's own: reading it can run what is in it."""
        story = cls(None)
        story.opening, entries = pickle.loads(data)  # noqa: S301  # said above
        for event, instructions in entries:
            story.add(event, instructions)
        return story

    def text(self, n_shown: int = _N_SHOWN) -> str:
        """Return the last entries, one line each."""
        first = max(len(self._entries) - n_shown, 0)
        entries = list(self._entries)[first:]
        number = self._n_events - len(entries)
        lines = [f"{number + i}: {tell(e)} -> {_all(out)}" for i, (e, out) in enumerate(entries)]
        return "\n".join(["the story:", *lines])


def tell(one: Event | Instruction) -> str:
    """Describe an event or an instruction in a few words, by what does not change later."""
    name = type(one).__name__
    if isinstance(one, Submitted):
        request = one.request
        wanted = f"{len(request.ends)} texts" if isinstance(request, EmbeddingRequest) else request.max_tokens
        return f"{name}({request.request_id}, {request.n_prompt} + {wanted} at {one.now_s:.4f})"
    if isinstance(one, Embed):
        return f"{name}({' '.join([f'{p.request.request_id}:{p.text_id}' for p in one.pieces])})"
    if isinstance(one, Compute):
        plan = one.plan
        streams = " ".join([str(slot_id) for slot_id in plan.streams])
        chunks = " ".join([f"{c.slot_id}:{c.start}+{c.length}" for c in plan.chunks])
        return f"{name}(streams {streams or '-'}, chunks {chunks or '-'})"
    if isinstance(one, Emit):
        return f"{name}({' '.join([f'{request_id}:{token}' for request_id, token, *_ in one.tokens])})"
    if isinstance(one, Finish):
        end = one.end
        return f"{name}({end.request_id}, {end.finish_reason or type(end.error).__name__})"
    if isinstance(one, Sampled):
        return f"{name}({len(one.tokens)} rows, {len(one.failed)} failed at {one.now_s:.4f})"
    if isinstance(one, Listed | Written | Loaded | Load | Hold | Store):  # names are long, and may be many
        said = [f"{k}={len(v) if isinstance(v, Collection) else v}" for k, v in one._asdict().items()]
        return f"{name}({', '.join(said)})"
    values = [f"{k}={v!r}" for k, v in one._asdict().items()]
    return f"{name}({', '.join(values)})"


def _all(instructions: Seq[Instruction]) -> str:
    return "; ".join([tell(one) for one in instructions]) or "-"


class Told(Protocol):
    """What can be told a story: a scheduler."""

    @property
    def story(self) -> Story: ...
    def handle(self, event: Event) -> Seq[Instruction]: ...


def replay(events: Seq[Event], scheduler: Told) -> list[Seq[Instruction]]:
    """Tell a scheduler these events; return what it answered to each.

    Raises what the scheduler raises. Raises InvariantError if it has a past.
    """
    if scheduler.story.events:
        raise InvariantError("a story is told to a new scheduler")
    return [scheduler.handle(event) for event in events]
