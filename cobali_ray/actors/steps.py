"""What `cobali serve` says while it starts: a line for each step with its seconds, and a spinner."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console


class Steps:
    """Says what is being waited for. `now` is a monotonic clock."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._console, self._now = console, now
        self._began_s = now()

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show `what` while inside, and how long it took once it is done; nothing of one that fails."""
        began_s = self._now()
        with self._console.status(f"{what} ...") if self._console.is_terminal else contextlib.nullcontext():
            yield
        self._say(what, self._now() - began_s)

    def ready(self) -> None:
        """Say what the whole of it took."""
        self._say("ready after", self._now() - self._began_s)

    def _say(self, what: str, seconds: float) -> None:
        self._console.print(f"{what:<24}{seconds:6.1f} s", highlight=False)
