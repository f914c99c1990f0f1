"""Adapters: low-rank changes of a model (LoRA), and under which of them the next pass computes. Pure.

A pass computes under one adapter, or under none, and llama.cpp lays out its graph anew whenever that changes;
with small models that takes half as long as a pass. So sequences in slots are computed in runs, all of one
adapter together, then all of the next, in the order in which they had their last turn. A run is long enough
to be worth the change, and short enough that streams that wait for theirs still meet the ITL target.

An adapter's key is the hash of its file and its scale. It is part of a request's salt, so that slots, host
memory, the disk and the router keep what was computed under each apart.

An *activated* adapter (aLoRA) changes nothing before the tokens that invoke it, where these stand last in a
prompt. What is before them is computed without it, shared with all others of the salt, and all that is kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from math import inf
from typing import NamedTuple

from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.request.sequence import Sequence

RUN = 8
"""Passes of a run while others wait, where the ITL target allows as many. With 8 and 8 streams of a model of
4 layers, changing after every pass gives 0.65 of the tokens per second of changing after 32; after 2 passes
it is 0.75, after 4 0.89, after 8 0.91, after 16 0.97."""


_WIDTH = array("i").itemsize


class Adapter(NamedTuple):
    """An adapter that is served beside its model."""

    name: str
    """The model name that clients ask for."""
    key: str
    """What it computes with: the file's hash and the scale, "" where that is what the model computes without.
    What is computed under one key is of no use under another."""
    path: str
    scale: float
    invocation: tuple[int, ...] = ()
    """The tokens after which it is in effect; none: it always is."""

    def begins(self, prompt: Seq[int]) -> int | None:
        """Return the first token of a prompt that it changes; None: it changes nothing."""
        if not self.key:
            return None
        data, invocation = array("i", prompt).tobytes(), array("i", self.invocation).tobytes()
        end = len(data) if invocation else 0
        while (at := data.rfind(invocation, 0, end)) > 0 and at % _WIDTH:  # it began inside a token
            end = at + len(invocation) - 1
        return None if at < 0 else at // _WIDTH


class AdapterTurns:
    """Decides which adapter computes, from the run under way and the order of past turns."""

    def __init__(self) -> None:
        self.adapter = ""
        """Of the last pass."""
        self._n, self._began_s = 0, 0.0
        """Passes of the run under way, and when it began."""
        self._line: dict[str, None] = {}
        """Adapters by their last turn, that longest ago first; new ones behind all others."""

    def next(self, members: Seq[Sequence], now_s: float, times: Pacer) -> tuple[str, float]:
        """Return the adapter of the next pass, and how long that may take for streams that wait.

        That is in seconds, and inf if none waits. `members` is not empty. The run under way goes on if it is
        short of `RUN` passes and one more lets the others have their next token in time, as far as is known;
        with prompts, if half of its time is left, because a pass takes as much of them as there is time for.
        An adapter that waits has its turn after one run of each other.
        """
        crowds: dict[str, list[Sequence]] = {}
        for member in members:
            crowds.setdefault(member.adapter, []).append(member)
        adapters = list(crowds)
        for adapter in adapters:
            self._line.setdefault(adapter)
        if len(adapters) == 1:
            return adapters[0], inf
        streams = {a: [m for m in crowd if m.decoding] for a, crowd in crowds.items()}
        own_s = {a: times.decode_s(len(s), sum([m.n_computed for m in s])) for a, s in streams.items()}
        run_s = {a: _run_s(a, own_s, times.round_s(sum(own_s.values()))) for a in adapters}
        chosen, spent_s = self.adapter, now_s - self._began_s
        goes_on = chosen in crowds and self._n < RUN
        if goes_on:
            has_prompts = len(streams[chosen]) < len(crowds[chosen])
            next_s = max(own_s[chosen], run_s[chosen] / 2 if has_prompts else 0.0)
            goes_on = spent_s + next_s <= run_s[chosen]
        if not goes_on:
            chosen, spent_s = next(a for a in self._line if a in crowds), 0.0
        waits = any(s for a, s in streams.items() if a != chosen)
        return chosen, max(run_s[chosen] - spent_s, 0.0) if waits else inf

    def begin(self, adapter: str, now_s: float) -> bool:
        """Record that a pass is computed under an adapter; return whether it is another than before."""
        changed = adapter != self.adapter
        if changed:
            self.adapter, self._n, self._began_s = adapter, 0, now_s
        self._n += 1
        self._line.pop(adapter, None)
        self._line[adapter] = None
        return changed


def _run_s(adapter: str, own_s: Mapping[str, float], target_s: float) -> float:
    """Return how long a run may take: a waiting stream gets a token after a run of each other adapter."""
    next_s = max([s for a, s in own_s.items() if a != adapter])
    return (target_s - next_s) / (len(own_s) - 1)
