"""Placement: which slot a prompt gets, by what it can reuse there and what is lost.

Every slot may hold tokens: an idle one those of the sequence it had last, a busy one those that are computed.
A prompt can begin in place, after the prefix that an idle slot shares with it, or in any idle slot after a
copy of the longest prefix that any slot shares with it, where the backend copies, or of what host memory has.
Either way the chosen slot loses what it held beyond that. What was computed under another salt
is never reused, however much of it is equal: it can only be lost. All of it is counted in tokens of prefill
(`recompute_cost`), so that the choice with the largest difference wins.

What a prefix is worth fades as others are destroyed: each destroyed one raises the level below which a prefix
is worth nothing, and a prefix stands its own cost above the level of its last use (GreedyDual: Young, "The
k-server dual and loose competitiveness for paging", Algorithmica 1994). So a long history outlives many short
ones, but not for ever.

Where a slot goes back only to saved states (states.py), a shared prefix ends at the deepest of these, or
where the slot stands.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

from cobali_ray.core.request.events import Tier
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.media import Rows, whole_prefix

_DEPTH = 2048
"""Where attention has made a token twice as dear; between 400 and 4,000 on the models measured."""
_COPY_COST = 1 / 256
"""What copying a token costs, in tokens of prefill; at most that was measured. A copy takes all that
its donor holds, whatever is kept of it."""


class MoveCosts(NamedTuple):
    """Costs of restoring from host memory, in tokens of prefill; guesses until they are measured."""

    token: float = 1 / 64
    state: float = 16.0
    """Of a state, beyond the cost of its tokens."""


GUESSED = MoveCosts()


class SlotContents(NamedTuple):
    """What a slot holds."""

    slot_id: int
    tokens: array[int]
    n_tokens: int
    """How many of `tokens` are in the cache."""
    worth_until: float
    """The level at which the prefix will be worth nothing; of idle slots only."""
    idle: bool
    salt: str | None = ""
    """Only requests with the same salt can reuse it."""


class Placement(NamedTuple):
    """The slot of a prompt, and the prefix that it reuses."""

    slot_id: int
    n_keep: int
    """Its first tokens that need not be computed."""
    donor_id: int | None = None
    """The slot they are copied from; None: they are in the chosen slot, or in host memory."""
    lost: float = 0.0
    """The worth of the tokens that this evicts."""
    from_host: bool = False
    """Whether they are restored from host memory, into a slot that is emptied for them."""
    n_alike: int = 0
    """Its first tokens that some slot holds too, whether they can be reused or not."""

    @property
    def tier(self) -> Tier:
        """The tier they come from."""
        if not self.n_keep:
            return "none"
        return "host" if self.from_host else "slot" if self.donor_id is None else "copy"


def recompute_cost(start: int, end: int) -> float:
    """Return what computing the tokens `start .. end` of a sequence costs, in tokens of prefill."""
    return max(end - start, 0) * (1.0 + (start + end) / (2 * _DEPTH))


def n_shared(a: array[int], b: array[int], most: int) -> int:
    """Return the length of the longest common prefix, at most `most`, by bisection over slices."""
    low, high = 0, min(len(a), len(b), most)
    if high <= 0 or a[0] != b[0]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def choose_placement(
    tokens: array[int],
    slots: Sequence[SlotContents],
    limits: EngineLimits,
    *,
    level: float,
    n_free_cells: int,
    n_on_host: int = 0,
    salt: str | None = "",
    most: int | None = None,
    rows: Sequence[Rows] = (),
    depths: Sequence[int] | None = None,
    costs: MoveCosts = GUESSED,
) -> Placement:
    """Choose among the idle `slots`, of which there is at least one; equal choices go to the first.

    A shared prefix counts from `min_prefix` tokens (0: never), and has at most `most`; None: all but the last
    two, as in `Sequence.n_reusable`. It ends inside no image of `rows`. A copy may take at most the
    `n_free_cells` and those that the chosen slot gives back. Host memory holds the first `n_on_host` tokens.
    `depths` are those of the prompt's saved states, ascending; None: a slot can be cut to any prefix.
    """
    most = len(tokens) - 2 if most is None else most
    alike = [whole_prefix(_n_hit(tokens, held, limits.min_prefix, salt, most), rows) for held in slots]
    shared = [reach(n, held.n_tokens, depths) for held, n in zip(slots, alike, strict=True)]
    if depths is not None:
        shared = [n if n >= limits.min_prefix else 0 for n in shared]
    n_copied = max(shared) if limits.copies else 0
    donors = [held for held, n in zip(slots, shared, strict=True) if n == n_copied > 0]
    donor = min(donors, key=attrgetter("n_tokens"), default=slots[0])
    best: list[tuple[float, Placement]] = []
    for held, n_own, n_alike in zip(slots, shared, alike, strict=True):
        if not held.idle:
            continue
        lost = worth(held, n_own, level)
        best.append((recompute_cost(0, n_own) - lost, Placement(held.slot_id, n_own, None, lost)))
        lost, n_needed, state_cost = worth(held, 0, level), n_copied, 0.0
        if depths is not None:  # the whole donor is copied: what the slot shares with the prompt is not lost
            lost, n_needed, state_cost = worth(held, n_alike, level), donor.n_tokens, costs.state
        if n_own < n_copied and n_needed <= n_free_cells + held.n_tokens:
            gain = recompute_cost(0, n_copied) - donor.n_tokens * _COPY_COST - state_cost
            best.append((gain - lost, Placement(held.slot_id, n_copied, donor.slot_id, lost)))
        if max(n_own, n_copied) < n_on_host >= limits.min_prefix:
            gain = recompute_cost(0, n_on_host) - n_on_host * costs.token - state_cost
            best.append((gain - lost, Placement(held.slot_id, n_on_host, None, lost, from_host=True)))
    return max(best, key=itemgetter(0))[1]._replace(n_alike=max(alike))


def reach(n: int, n_held: int, depths: Sequence[int] | None) -> int:
    """Return how many can be reused of `n` tokens shared with a slot that holds `n_held`.

    All of it where slots can be cut anywhere (`depths` None), or where that is all that the slot holds.
    """
    return n if depths is None or n == n_held else deepest(depths, n)


def deepest(depths: Sequence[int], most: int) -> int:
    """Return the largest of ascending depths that is at most `most`; 0 if none is."""
    at = bisect_right(depths, most)
    return depths[at - 1] if at else 0


def _n_hit(tokens: array[int], held: SlotContents, min_prefix: int, salt: str | None, most: int) -> int:
    """Return how many tokens of a prompt need not be computed after what a slot holds."""
    if held.salt != salt or salt is None:
        return 0
    most = min(most, held.n_tokens)
    if not min_prefix or most < min_prefix or tokens[:min_prefix] != held.tokens[:min_prefix]:
        return 0
    return n_shared(tokens, held.tokens, most)


def worth(held: SlotContents, n_keep: int, level: float) -> float:
    """Return the present worth of a slot's tokens beyond the first `n_keep`."""
    return min(max(held.worth_until - level, 0.0), recompute_cost(n_keep, held.n_tokens))
