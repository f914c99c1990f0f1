"""The steps of a start: each is shown while it goes on, and said with its seconds once it is done."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from cobali_ray.actors.output import Output
from cobali_ray.models.builtin import Progress


class Steps:
    """Says what is being waited for. `now` is a monotonic clock."""

    def __init__(self, output: Output, now: Callable[[], float] = time.monotonic) -> None:
        self._output, self._now = output, now
        self._began_s = now()

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[Progress]:
        """Show `what` while inside, and how long it took once it is done; nothing of one that fails."""
        began_s = self._now()
        with self._output.working(what) as progress:
            yield progress
        self._output.say("start_step", step=what, seconds=round(self._now() - began_s, 3))

    @property
    def seconds(self) -> float:
        return round(self._now() - self._began_s, 3)
