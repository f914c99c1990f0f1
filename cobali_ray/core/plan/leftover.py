"""Leftovers: what requests of the last class may compute beside others. Pure.

They take part in a pass as far as the others are not slowed down: as many of their streams as lengthen it by
`NOTICED` at most, by the measured times of passes. On a device where a row more costs next to nothing that is
all of them; on a CPU, where each row takes its time, it is mostly none while others are there. So that they
go on under a load that never ends, one pass in `TURN` computes for all of them, and takes no longer than any
other that has more to do than the streams' next tokens.

A request of another class that comes while only these run waits for the pass under way, on average for half
of it. So while others came lately, no pass is longer than makes their first tokens `NOTICED` later, as far as
passes can be so short. Otherwise passes have no such limit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence as Seq
from math import inf
from typing import Final, NamedTuple

from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.request.request import MAX_PRIORITY
from cobali_ray.core.request.sequence import Sequence

NOTICED: Final = 0.02
"""How much longer a pass may take, as a share of what it takes without them."""
TURN: Final = 200
"""Of so many passes beside others one takes longer: less than half of one gap of a stream in a hundred."""
LATELY_S: Final = 30.0
"""For how long after their last first token others are expected to come again."""
AHEAD: Final = 1.5
"""How long a pass may take, in times of what is noticed, or of the shortest pass: a request that comes
waits for half of one on average."""
_LEARN: Final = 0.2


class Turnout(NamedTuple):
    """The streams and prompts that take part in a pass."""

    streams: Seq[Sequence]
    prompts: Seq[Sequence]
    within_s: float = inf
    """How long the pass may take."""
    whole: bool = True
    """Whether none is left out."""


class Leftovers:
    """Counts passes, and remembers when others had their first tokens."""

    def __init__(self) -> None:
        self._ttft_s, self._last_s = 0.0, -inf
        """How long others waited for their first tokens, as a mean, and when the last one came."""
        self._n_passed = self._n_without_texts = 0
        """Passes since the last turn in which not all could take part; those in which no text could."""
        self._turns: dict[str, int] = {}
        """The number of each adapter's last turn."""

    def spoke(self, sequence: Sequence, now_s: float) -> None:
        if sequence.priority != MAX_PRIORITY:
            ttft_s = now_s - sequence.arrived_s
            self._ttft_s += (_LEARN if self._ttft_s else 1.0) * (ttft_s - self._ttft_s)
            self._last_s = now_s

    def beside(
        self,
        streams: Seq[Sequence],
        prompts: Seq[Sequence],
        pacer: Pacer,
        now_s: float,
        *,
        away: Seq[Sequence] = (),
    ) -> Turnout:
        """Return what takes part. Changes nothing; `begin` records what is computed.

        Others that run under another adapter are `away`: they wait for this pass.
        """
        mine = [s for s in streams if s.priority == MAX_PRIORITY]
        others = [s for s in streams if s.priority != MAX_PRIORITY]
        prompts_of_others = [s for s in prompts if s.priority != MAX_PRIORITY]
        if (not mine and len(prompts_of_others) == len(prompts)) or not pacer.model.knows_decode:
            return Turnout(streams, prompts)
        if not others and not prompts_of_others:
            if away:  # it is the turn of this adapter
                waiting = [s for s in away if s.decoding] or away[:1]
                return Turnout(streams, prompts, self._turn_s(streams, waiting, pacer))
            if now_s - self._last_s > LATELY_S:
                return Turnout(streams, prompts)
            within_s = AHEAD * max(NOTICED * self._ttft_s, pacer.model.decode_s(1, 0))
            if prompts:  # both in one pass would take as long as two
                return Turnout([], prompts, within_s)
            mine.sort(key=_waits_longest)
            n = max(_n_within(mine, [], within_s, pacer), 1)
            chosen = {s.slot_id for s in mine[:n]}
            return Turnout([s for s in streams if s.slot_id in chosen], prompts, within_s)
        if self._n_passed >= TURN:
            return Turnout(streams, prompts, self._turn_s(streams, others, pacer))
        others_s = pacer.model.decode_s(len(others), sum([s.n_computed for s in others]))
        mine.sort(key=_waits_longest)
        n = _n_within(mine, others, (1 + NOTICED) * others_s, pacer)
        chosen = {s.slot_id for s in (*others, *mine[:n])}
        taking_part = [s for s in streams if s.slot_id in chosen]
        whole = len(taking_part) == len(streams) and len(prompts_of_others) == len(prompts)
        return Turnout(taking_part, prompts_of_others, whole=whole)

    def _turn_s(self, streams: Seq[Sequence], others: Seq[Sequence], pacer: Pacer) -> float:
        """Return how long a pass may take in which all take part, for others' streams."""
        others_s, all_s = [
            pacer.model.decode_s(len(some), sum([s.n_computed for s in some])) for some in (others, streams)
        ]
        return max(pacer.most_s(others_s), all_s)

    def members(self, running: Seq[Sequence]) -> tuple[Seq[Sequence], str | None]:
        """Return whose adapters may compute next: others', where there are some.

        But in one pass of `TURN` it is the returned adapter of the last class, that had its turn longest ago.
        """
        others = [s for s in running if s.priority != MAX_PRIORITY]
        if not others or len(others) == len(running):
            return running, None
        if self._n_passed < TURN:
            return others, None
        adapters = dict.fromkeys([s.adapter for s in running if s.priority == MAX_PRIORITY])
        return others, min(adapters, key=lambda adapter: self._turns.get(adapter, 0))

    def texts_turn(self) -> bool:
        """Count a pass beside which texts of the last class wait; return whether it is theirs."""
        self._n_without_texts = (self._n_without_texts + 1) % TURN
        return not self._n_without_texts

    def begin(self, turnout: Turnout, adapter: str) -> None:
        if turnout.whole and self._n_passed >= TURN:
            self._turns[adapter] = max(self._turns.values(), default=0) + 1
        self._n_passed = 0 if turnout.whole else self._n_passed + 1


def _waits_longest(stream: Sequence) -> float:
    return stream.last_token_s or 0.0


def _n_within(mine: Seq[Sequence], others: Seq[Sequence], most_s: float, pacer: Pacer) -> int:
    """Return how many of these streams fit in the others' pass without making it longer."""
    cells = sum([s.n_computed for s in others])

    def seconds(n: int) -> float:
        return pacer.model.decode_s(len(others) + n, cells + sum([s.n_computed for s in mine[:n]]))

    return bisect_right(range(1, len(mine) + 1), most_s, key=seconds)
