"""Speculation: whether a tick computes drafts, too, by the tokens per second expected of it.

A draft's rows cost time whether they turn out right or not: on two cores, 2 rows of a stream take 1.1 to 2
times as long as one, and 8 take 2 to 4. So a tick gets drafts only if the tokens expected of it, divided by
the time predicted for it, are clearly more than without. Both are learned: how often a stream's guesses are
right (`StreamDrafts`), and how many times as long ticks of a shape take as the tick-time model says of them
without drafts.

A tick's drafts come from one source: from the streams' own text, or from the model's head, whose passes are a
part of what such ticks take. Whichever promises more is chosen; what is not computed of a head is not learned
either, so it is tried now and then although nothing good is known of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from itertools import product
from operator import itemgetter
from typing import NamedTuple

from cobali_ray.core.plan.drafts import HEAD_ODDS, DraftAcceptance, StreamDrafts
from cobali_ray.core.request.sequence import Sequence

MAX_STREAMS = 4
"""With more streams even right drafts gain next to nothing, and none are made."""
SIZES = (1, 3, 7, 15)
"""Tokens of a draft: with the token sampled last 2, 4, 8 and 16 rows, as the kernels have it."""
MAX_ROWS = 32
"""Rows of one pass, drafts and all."""
GAIN = 1.1
"""So many times the tokens per second have to be expected."""
TRY_EVERY, TRY_OTHERS_EVERY = 256, 16
"""Drafts that would pay but for the measured time of ticks with them are tried once in so many ticks, and
where drafts do pay, other sizes are: what was learned of their time may hold no longer."""
PLAIN_FIRST, PLAIN_EVERY = 16, 32
"""So many ticks have no drafts before the first that has, and then one in so many: the time without must be
known."""
_ROW, _PASS, _HEAD = 0.35, 0.5, 0.15
"""What a row, a micro-batch and a head's pass probably take, as parts of what a plain tick takes."""
_KNOWN_OF_HEAD = 16.0
"""Tries of other streams that count for a new one."""
_STEP, _FIRST_STEP = 0.03, 0.3


class DraftPlan(NamedTuple):
    """How many streams of how many draft how many tokens each, at most: the key for ticks of similar time."""

    n_streams: int
    n_drafting: int
    size: int
    head: bool = False
    """Whether the model's head guesses them."""

    @property
    def n_drafted(self) -> int:
        return self.n_drafting * self.size


class Drafts(NamedTuple):
    """Drafts for a tick, and the numbers behind the choice."""

    tokens: Mapping[int, array[int]]
    """By slot; only their number counts where the head is to guess them."""
    plain_s: float
    """How long the tick would take without."""
    choice: DraftPlan | None = None
    """None: too little is known to say whether they pay."""
    paid: bool | None = None
    """True: they were expected to pay; False: they would have been but for their time; None: neither."""


class Speculation:
    """Chooses the drafts of ticks without prefill, and learns from the results."""

    def __init__(self, max_draft: int = SIZES[-1], *, head: bool = False) -> None:
        """`max_draft`: most tokens of a draft that can be cut off. `head`: whether the model has one."""
        self._sizes = [size for size in SIZES if size <= max_draft]
        self._heads = (False, True) if head else (False,)
        self._head = DraftAcceptance(HEAD_ODDS, _KNOWN_OF_HEAD)
        self._headed: dict[int, int] = {}
        """How many tokens the head guesses for the tick under way, by slot."""
        self._guesses: dict[int, StreamDrafts] = {}
        """Of the streams of the last choice, by slot."""
        self._ratios: dict[DraftPlan, tuple[float, int]] = {}
        """How many times as long as without drafts, and from how many ticks that is known."""
        self._n_paid = self._n_unpaid = 0
        """Ticks in which drafts were expected to pay, and in which but for their time they would have."""
        self._choice: DraftPlan | None = None
        self._plain_s = 0.0

    def choose(self, streams: Seq[Sequence], *, plain_s: float, most_s: float, room: int) -> Drafts:
        """Return drafts for a tick in which these streams decode. Changes nothing; `begin` records them.

        Without them it would take `plain_s`; with them it shall not take longer than `most_s`, nor compute
        more than `room` further tokens.
        """
        if not 0 < len(streams) <= MAX_STREAMS or plain_s <= 0:
            return Drafts({}, plain_s)
        plain = DraftPlan(len(streams), 0, 0)
        none = Drafts({}, plain_s, plain)
        if plain not in self._ratios or self._ratios[plain][1] < PLAIN_FIRST:
            return none
        guesses = self._renew(streams)
        hope = sum(g.n_expected(self._sizes[-1], head=False) for g in guesses)
        if True not in self._heads and hope < (GAIN - 1) * len(streams):
            return none  # they would not pay if they took no time
        best, paid = self._decide(guesses, len(streams), most_s / plain_s, room)
        if best is None:
            return none._replace(paid=paid)
        chosen = _by_gain(guesses, best)[: best.n_drafting]
        tokens = {g.sequence.slot_id: g.tokens(best.size, head=best.head) for _, g in chosen}
        tokens = {slot_id: draft for slot_id, draft in tokens.items() if draft}
        return Drafts(tokens, plain_s, best, paid)

    def begin(self, drafts: Drafts | None) -> None:
        """Record what the next tick computes; None: no drafts were considered."""
        self._choice, self._headed = None, {}
        if drafts is not None:
            if drafts.choice is not None and drafts.choice.head:
                self._headed = {slot_id: len(draft) for slot_id, draft in drafts.tokens.items()}
            self._choice, self._plain_s = drafts.choice, drafts.plain_s
            self._n_paid += drafts.paid is True
            self._n_unpaid += drafts.paid is False

    def _renew(self, streams: Seq[Sequence]) -> list[StreamDrafts]:
        """Return the guesses of streams; the same until they have a new token."""
        before, self._guesses = self._guesses, {}
        for s in streams:
            guesses = before.get(s.slot_id)
            if guesses is None or guesses.sequence is not s:
                guesses = StreamDrafts(s, self._head.odds)
            self._guesses[s.slot_id] = guesses
            most = s.n_most - len(s.tokens) - 1  # the token after a draft is drawn too
            guesses.renew(min(self._sizes[-1], most))
        return list(self._guesses.values())

    def _decide(
        self, guesses: Seq[StreamDrafts], n_streams: int, most_ratio: float, room: int
    ) -> tuple[DraftPlan | None, bool | None]:
        """Return what to draft, None for nothing, and `Drafts.paid`."""
        best, value = self._best(guesses, n_streams, most_ratio, room, self._ratio)
        if value >= GAIN:
            number = self._n_paid + 1
            if number % PLAIN_EVERY == 0:
                best = None
            elif number % TRY_OTHERS_EVERY == 0:
                best, _ = self._best(guesses, n_streams, most_ratio, room, _likely_ratio)
            return best, True
        other, hope = self._best(guesses, n_streams, most_ratio, room, _likely_ratio)
        if hope < GAIN:
            if True not in self._heads or n_streams > room:
                return None, None
            other = DraftPlan(n_streams, n_streams, self._sizes[0], head=True)
        return (other if (self._n_unpaid + 1) % TRY_EVERY == 0 else None), False

    def _best(
        self,
        guesses: Seq[StreamDrafts],
        n_streams: int,
        most_ratio: float,
        room: int,
        ratio_of: Callable[[DraftPlan], float],
    ) -> tuple[DraftPlan | None, float]:
        """Return the choice with the most expected tokens per second, as a multiple of those without."""
        best, most, plain = None, 0.0, ratio_of(DraftPlan(n_streams, 0, 0))
        for head, size in product(self._heads, self._sizes):
            expected = float(n_streams)
            of_size = DraftPlan(n_streams, n_streams, size, head)
            for n, (gain, _) in enumerate(_by_gain(guesses, of_size), 1):
                expected += gain
                choice = of_size._replace(n_drafting=n)
                if not gain or choice.n_drafted > min(room, MAX_ROWS - n_streams):
                    break
                ratio = ratio_of(choice)
                value = expected / n_streams * plain / ratio
                if value > most and ratio <= most_ratio:
                    best, most = choice, value
        return best, most

    def _ratio(self, choice: DraftPlan) -> float:
        if (learned := self._ratios.get(choice)) is not None:
            return learned[0]
        plain, _ = self._ratios.get(DraftPlan(choice.n_streams, 0, 0)) or (1.0, 0)
        return plain * _likely_ratio(choice)

    def learn(self, seconds: float) -> float:
        """Learn a tick's time; return its prediction if drafts were considered for it, else 0.

        Ratios follow the median, which other processes' bursts do not move. Ticks without drafts have one
        too: the tick-time model follows the mean, and it learns of few ticks where most have drafts.
        """
        headed, self._headed = self._headed, {}
        for slot_id, n in headed.items():
            if (guesses := self._guesses.get(slot_id)) is not None:
                self._head.learn(0, guesses.judge_head(n), n)
        choice, self._choice = self._choice, None
        if choice is None:  # none were considered: it had prefill, or many streams
            return 0.0
        ratio, n = self._ratios.get(choice) or (_likely_ratio(choice), 0)
        step = 1 + max(_STEP, _FIRST_STEP / (n + 1))
        longer = seconds > ratio * self._plain_s
        self._ratios[choice] = (ratio * step if longer else ratio / step, n + 1)
        return ratio * self._plain_s


def _likely_ratio(choice: DraftPlan) -> float:
    """Return how many times as long ticks of such a choice probably take, before any was seen."""
    ragged = 0 < choice.n_drafting < choice.n_streams  # a micro-batch of its own
    guessing = _HEAD * choice.size * choice.head
    return 1 + _ROW * choice.n_drafted / choice.n_streams + _PASS * ragged + guessing


def _by_gain(guesses: Seq[StreamDrafts], choice: DraftPlan) -> list[tuple[float, StreamDrafts]]:
    """Return (tokens expected, drafts) of each stream for this source and size, the most promising first."""
    expected = [(g.n_expected(choice.size, head=choice.head), g) for g in guesses]
    return sorted(expected, key=itemgetter(0), reverse=True)
