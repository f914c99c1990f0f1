"""Test doubles, shipped: a clock that tests drive and a sink that remembers."""

from __future__ import annotations

from collections import defaultdict

from cobali_ray.core.events import Delta, End, Event


class FakeClock:
    """A clock that moves only when told to, plus `step_s` at every look."""

    def __init__(self, start_s: float = 0.0, step_s: float = 0.0) -> None:
        self._now_s, self._step_s = start_s, step_s

    def now(self) -> float:
        """Return the current time and move by the step."""
        self._now_s += self._step_s
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds


class Recorder:
    """A sink that keeps every event, by request."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = defaultdict(list)
        self.batches: list[list[tuple[str, Event]]] = []

    def __call__(self, batch: list[tuple[str, Event]]) -> None:
        """Take one tick's events."""
        self.batches.append(batch)
        for _, event in batch:
            self.events[event.request_id].append(event)

    def text(self, request_id: str) -> str:
        """Return all text of a request so far."""
        return "".join(e.text for e in self.events[request_id] if isinstance(e, Delta))

    def ends(self, request_id: str) -> list[End]:
        """Return the end events of a request: exactly one, once it ended."""
        return [e for e in self.events[request_id] if isinstance(e, End)]
