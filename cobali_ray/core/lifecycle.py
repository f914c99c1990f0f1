"""The life of a request as a table: what it lacks is an error."""

from __future__ import annotations

from enum import Enum, auto

from cobali_ray.errors import IllegalTransitionError


class Status(Enum):
    """Where a request stands."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()
    CANCELLED = auto()
    FAILED = auto()

    @property
    def ended(self) -> bool:
        """Whether nothing can happen any more."""
        return self in _ENDED


class Change(Enum):
    """What can happen to a request."""

    ASSIGN = auto()
    PREEMPT = auto()
    STOP = auto()
    CANCEL = auto()
    FAIL = auto()


_ENDED = frozenset({Status.FINISHED, Status.CANCELLED, Status.FAILED})

TRANSITIONS: dict[tuple[Status, Change], Status] = {
    (Status.WAITING, Change.ASSIGN): Status.RUNNING,
    (Status.WAITING, Change.CANCEL): Status.CANCELLED,
    (Status.WAITING, Change.FAIL): Status.FAILED,
    (Status.RUNNING, Change.PREEMPT): Status.WAITING,
    (Status.RUNNING, Change.STOP): Status.FINISHED,
    (Status.RUNNING, Change.CANCEL): Status.CANCELLED,
    (Status.RUNNING, Change.FAIL): Status.FAILED,
}


def advance(status: Status, change: Change) -> Status:
    """Return the status after `change`. Raises IllegalTransitionError where the table has no row."""
    try:
        return TRANSITIONS[status, change]
    except KeyError:
        raise IllegalTransitionError(status.name, change.name) from None
