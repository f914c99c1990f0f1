"""Programs: tasks of agents, each from what a person asked to the last answer, with tools run between. Pure.

After an answer that calls a tool the conversation comes back with the result, mostly in seconds. So its next
request is ordered by when the program began, not by when it came, and what its slot holds is kept for it for
a while from programs that began later (Li et al., "Continuum", arXiv 2511.02230). For how long, its
tenant's last calls of the same tools say: as long as the time that is expected to be saved most exceeds that
for which others go without the slot. The first answer of a program is mostly the only one, so it is kept once
others with its tools came back.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from math import inf
from typing import Final, TypeVar

from cobali_ray.core.request.request import Request

MAX_PROGRAMS: Final = 4096
"""Most programs that are remembered, the latest; and as many kinds of them."""
N_CALLS: Final = 128
"""The last calls of a kind that count."""
MIN_CALLS: Final = 8
FIRST_S: Final = (1.0, 4.0, 16.0)
"""How long calls of a program that has come back before are taken to last, until `MIN_CALLS` are known."""
SAVED: Final = 3.0
"""What keeping a prefix saves, in times that computing it again takes: all waiting requests pay for that."""
LONGER: Final = 1.25
"""How much longer is kept than a call took: another one takes longer as often as not."""
_K = TypeVar("_K")
_T = TypeVar("_T")


class _ToolRun:
    """A program's time between an answer and its next request."""

    __slots__ = ("gap_s", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s, self.gap_s = since_s, inf


class _Program:
    __slots__ = ("began_s", "call")

    def __init__(self, began_s: float) -> None:
        self.began_s, self.call = began_s, _ToolRun(began_s)


class Programs:
    """The programs under way, and how soon they come back."""

    def __init__(self) -> None:
        self._programs: OrderedDict[tuple[str, str], _Program] = OrderedDict()
        self._calls: OrderedDict[tuple[str, str, bool], deque[_ToolRun]] = OrderedDict()
        """By tenant, tools, and whether the program had come back before."""

    def enter(self, request: Request, now_s: float) -> float:
        """Record a request; return when its program began, which is now if a person asks."""
        if (program := request.program) is None:
            return now_s
        key = request.tenant, program.name
        state = self._programs.get(key)
        if state is None or not program.returns:
            state = _Program(now_s)
        if state.call.gap_s == inf:  # the first of several requests that come back at once, or one by one
            state.call.gap_s = now_s - state.call.since_s
        _put(self._programs, key, state)
        return state.began_s

    def answered(self, request: Request, again_s: float, now_s: float) -> float:
        """Record the end of an answer; return until when to keep its prefix, which costs `again_s`."""
        program = request.program
        if program is None or (state := self._programs.get((request.tenant, program.name))) is None:
            return now_s
        kind = request.tenant, program.tools, program.returns
        calls = _put(self._calls, kind, self._calls.get(kind) or deque(maxlen=N_CALLS))
        longest_s = max([call.gap_s for call in calls if call.gap_s < inf], default=inf)
        # A program that is away for no longer than others were may yet come back.
        gaps = [call.gap_s for call in calls if call.gap_s < inf or now_s - call.since_s > longest_s]
        if program.returns and len(gaps) < MIN_CALLS:
            gaps += FIRST_S
        state.call = _ToolRun(now_s)
        calls.append(state.call)
        return now_s + keep_s(gaps, SAVED * again_s)


def keep_s(gaps_s: Iterable[float], saved_s: float) -> float:
    """Return how long to keep a prefix that saves `saved_s` if its program comes back in time.

    `gaps_s` says how long past calls took; inf for those that never came back.
    """
    gaps_s = sorted(gaps_s)
    best_s, most_s, back_s = 0.0, 0.0, 0.0
    for n, gap_s in enumerate(gaps_s, 1):
        if gap_s == inf:
            break
        back_s += gap_s
        gain_s = n * saved_s - back_s - (len(gaps_s) - n) * gap_s
        if gain_s > most_s:
            best_s, most_s = gap_s, gain_s
    return LONGER * best_s


def _put(latest: OrderedDict[_K, _T], key: _K, entry: _T) -> _T:
    """Put an entry last, and drop the first one if there are too many."""
    latest[key] = entry
    latest.move_to_end(key)
    if len(latest) > MAX_PROGRAMS:
        latest.popitem(last=False)
    return entry
