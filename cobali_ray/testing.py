"""Test doubles, shipped: a clock that tests drive, a sink that remembers, a Serve handle without Ray."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Generator
from typing import Any

from cobali_ray.core.request.events import Delta, End, EngineEvent


class FakeClock:
    """A clock that moves only by `advance`, and by `step_s` at every look."""

    def __init__(self, start_s: float = 0.0, step_s: float = 0.0) -> None:
        self._now_s, self._step_s = start_s, step_s

    def now(self) -> float:
        """Return the current time and move by the step."""
        self._now_s += self._step_s
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds


class EventRecorder:
    """A sink that keeps every event, by request."""

    def __init__(self) -> None:
        self.events: dict[str, list[EngineEvent]] = defaultdict(list)
        self.batches: list[list[tuple[str, EngineEvent]]] = []

    def __call__(self, batch: list[tuple[str, EngineEvent]]) -> None:
        self.batches.append(batch)
        for _, event in batch:
            self.events[event.request_id].append(event)

    def text(self, request_id: str) -> str:
        """Return all text of a request so far."""
        return "".join(e.text for e in self.events[request_id] if isinstance(e, Delta))

    def ends(self, request_id: str) -> list[End]:
        """Return the end events of a request: exactly one, once it ended."""
        return [e for e in self.events[request_id] if isinstance(e, End)]


class LocalResponse:
    """A Serve response over a coroutine of this process: cancelled only by `cancel`, failed by `die`."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.task = asyncio.ensure_future(coroutine)
        self.n_cancels = 0
        self._outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._outcome.add_done_callback(lambda outcome: outcome.cancelled() or outcome.exception())
        self.task.add_done_callback(self._settle)

    def _settle(self, task: asyncio.Task[Any]) -> None:
        if self._outcome.done():
            return
        if task.cancelled():
            self._outcome.cancel()
        elif error := task.exception():
            self._outcome.set_exception(error)
        else:
            self._outcome.set_result(task.result())

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.shield(self._outcome).__await__()

    def cancel(self) -> None:
        """Cancel the call, as its caller would."""
        self.n_cancels += 1
        self.task.cancel()

    def die(self, error: Exception) -> None:
        """Fail the call, unless it is over, as the end of the process that answers it would."""
        if not self._outcome.done():
            self._outcome.set_exception(error)
        self.task.cancel()


class LocalHandle:
    """A Serve handle: `handle.name.remote(*args)` becomes `call(name, args)`, which subclasses define."""

    def __getattr__(self, name: str) -> _LocalMethod:
        return _LocalMethod(self, name)

    def call(self, name: str, args: tuple[Any, ...]) -> LocalResponse:
        raise NotImplementedError


class _LocalMethod:
    def __init__(self, handle: LocalHandle, name: str) -> None:
        self._handle, self._name = handle, name

    def remote(self, *args: Any) -> LocalResponse:
        return self._handle.call(self._name, args)
