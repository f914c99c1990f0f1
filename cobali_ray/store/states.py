"""The states of a batch, and how they follow each other. Pure.

A cancelled or expired batch keeps the answers that it has; each other line is answered by saying so.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from cobali_ray.errors import IllegalTransitionError


class BatchStatus(StrEnum):
    """By OpenAI's words."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


class BatchChange(StrEnum):
    """What happens to a batch."""

    START = "start"
    """Its lines can be asked, and are in order."""
    REFUSE = "refuse"
    """They cannot be."""
    ANSWER_ALL = "answer_all"
    """No line is left."""
    FINISH = "finish"
    """Its files are closed."""
    EXPIRE = "expire"
    """Its time is over."""
    CANCEL = "cancel"
    """Its owner wants no more of it."""
    STOP = "stop"
    """None of its lines is being answered any longer."""


TRANSITIONS: Final = {
    (BatchStatus.VALIDATING, BatchChange.START): BatchStatus.IN_PROGRESS,
    (BatchStatus.VALIDATING, BatchChange.REFUSE): BatchStatus.FAILED,
    (BatchStatus.VALIDATING, BatchChange.EXPIRE): BatchStatus.EXPIRED,
    (BatchStatus.VALIDATING, BatchChange.CANCEL): BatchStatus.CANCELLING,
    (BatchStatus.IN_PROGRESS, BatchChange.ANSWER_ALL): BatchStatus.FINALIZING,
    (BatchStatus.IN_PROGRESS, BatchChange.EXPIRE): BatchStatus.EXPIRED,
    (BatchStatus.IN_PROGRESS, BatchChange.CANCEL): BatchStatus.CANCELLING,
    (BatchStatus.FINALIZING, BatchChange.FINISH): BatchStatus.COMPLETED,
    (BatchStatus.CANCELLING, BatchChange.STOP): BatchStatus.CANCELLED,
}

OVER: Final = frozenset(
    {BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED}
)
"""Nothing happens to a batch any more."""


def may(status: BatchStatus, change: BatchChange) -> bool:
    """Whether a change can happen to a batch in this state."""
    return (status, change) in TRANSITIONS


def advance(status: BatchStatus, change: BatchChange) -> BatchStatus:
    """Return the next state. Raises IllegalTransitionError."""
    try:
        return TRANSITIONS[status, change]
    except KeyError:
        raise IllegalTransitionError(status, change) from None
