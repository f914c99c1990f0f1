"""What can go wrong before or between steps, said in one line."""

from __future__ import annotations


class TrainingError(Exception):
    """A reason why the training cannot start or go on, and what to do about it."""
