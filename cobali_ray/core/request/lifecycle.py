"""The states of a request, as a table of transitions: any other is an error."""

from __future__ import annotations

from enum import Enum, auto

from cobali_ray.errors import IllegalTransitionError


class Status(Enum):
    """The state of a request."""

    NOT_READY = auto()
    """Something it needs is still being prepared; it keeps its place, and the queue goes on without it."""
    QUEUED = auto()
    """It waits for a slot."""
    RUNNING = auto()
    """It holds a slot: prefilling or decoding."""
    FINISHED = auto()
    """Its last token is sampled and its slot is free; the text of that token is still to be sent."""
    RELEASING = auto()
    """It ended while the pass under way computes for it; its slot is free once that is over."""
    ENDED = auto()

    @property
    def waiting(self) -> bool:
        """Whether it waits for its first or next slot."""
        return self is Status.QUEUED or self is Status.NOT_READY

    @property
    def ended(self) -> bool:
        return self is Status.ENDED or self is Status.RELEASING


class StatusChange(Enum):
    """What can happen to a request."""

    READY = auto()
    ASSIGN = auto()
    PREEMPT = auto()
    FINISH = auto()
    """Its last token was sampled."""
    END = auto()
    """Its end event is sent, whatever the reason."""
    END_IN_FLIGHT = auto()
    """The same, while a pass computes for it."""
    RELEASE = auto()
    """That pass is over."""


TRANSITIONS: dict[tuple[Status, StatusChange], Status] = {
    (Status.NOT_READY, StatusChange.READY): Status.QUEUED,
    (Status.NOT_READY, StatusChange.END): Status.ENDED,
    (Status.QUEUED, StatusChange.ASSIGN): Status.RUNNING,
    (Status.QUEUED, StatusChange.END): Status.ENDED,
    (Status.RUNNING, StatusChange.PREEMPT): Status.QUEUED,
    (Status.RUNNING, StatusChange.FINISH): Status.FINISHED,
    (Status.RUNNING, StatusChange.END): Status.ENDED,
    (Status.RUNNING, StatusChange.END_IN_FLIGHT): Status.RELEASING,
    (Status.FINISHED, StatusChange.END): Status.ENDED,
    (Status.RELEASING, StatusChange.RELEASE): Status.ENDED,
}


def advance(status: Status, change: StatusChange) -> Status:
    """Return the status after `change`. Raises IllegalTransitionError where the table has no row."""
    try:
        return TRANSITIONS[status, change]
    except KeyError:
        raise IllegalTransitionError(status.name, change.name) from None
