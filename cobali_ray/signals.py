"""What signals do while a block runs."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG: Final = 1


@contextlib.contextmanager
def on_signals(act: Callable[[int], object], numbers: Iterable[int] = STOPPING) -> Iterator[None]:
    """Call `act` with its number on each of these signals while inside."""
    before = {number: signal.getsignal(number) for number in numbers}
    for number in before:
        signal.signal(number, lambda number, _frame: act(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ended_in_order(numbers: Iterable[int] = STOPPING) -> contextlib.AbstractContextManager[None]:
    """Let these signals unwind this process, and so end what it started.

    SIGINT is among them because a shell that starts a job in the background lets it ignore SIGINT.
    """
    return on_signals(lambda number: sys.exit(128 + number), numbers)


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Have Linux send this process a signal when the thread that started it ends, however it ends.

    Whatever it executes afterwards keeps that.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
