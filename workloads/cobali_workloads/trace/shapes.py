"""What a trace is made of: rows of nested slices, and counters. Moments are seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that lasted. Its children lie inside it, in order, and do not overlap."""

    start_s: float
    end_s: float
    name: str
    args: dict[str, Any] = field(default_factory=dict)
    children: tuple[Slice, ...] = ()
    flow: int | None = None
    """Slices of one number are joined by an arrow, in order of time."""
    journey: str | None = None
    """The same for slices of several timelines, by a name."""

    def within(self, start_s: float, end_s: float) -> Slice:
        """Return it cut to a time, and its children with it."""
        start = min(max(self.start_s, start_s), end_s)
        end = min(max(self.end_s, start), end_s)
        return replace(self, start_s=start, end_s=end, children=in_order(self.children, start, end))


def in_order(
    slices: Iterable[Slice], start_s: float = float("-inf"), end_s: float = float("inf")
) -> tuple[Slice, ...]:
    """Return slices by their start, each cut to begin where the one before has ended.

    Rounding and clocks read in turn make neighbours overlap by nanoseconds; a viewer would nest them.
    """
    placed: list[Slice] = []
    for item in sorted(slices, key=lambda item: item.start_s):
        placed.append(item.within(placed[-1].end_s if placed else start_s, end_s))
    return tuple(placed)


@dataclass(frozen=True, slots=True)
class Track:
    """A row of slices that do not overlap."""

    name: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows under one name."""

    name: str
    tracks: tuple[Track, ...]


@dataclass(frozen=True, slots=True)
class Counter:
    """A value that holds from each point to the next."""

    name: str
    unit: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything of one engine, in the order it is shown."""

    name: str
    now_s: float
    unix_s: float
    """The wall clock at `now_s`."""
    node: str
    """Its machine: another one has another clock."""
    rows: tuple[Track | Group | Counter, ...]
