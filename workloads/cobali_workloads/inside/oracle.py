"""How many prompt tokens a perfect prefix cache would have held. Pure.

The cache is a tree of cells, one for each token of each different text, so that texts with a common
beginning share its cells. Requests come one after another, in order of arrival; a request's whole sequence
lies in the cache while its turn lasts, and nothing is computed ahead of a request. A hit is what a prompt
begins with and the tree holds, all but the prompt's last token, which gives the logits. Between turns the
cache keeps what it likes: as many cells as there are, those whose next use comes soonest. No policy does
better, even one that knows the future (Belady's rule), and since the next use of a token is never later than
that of the tokens after it, what is kept are always whole prefixes.

For an engine that serves in order of arrival it is an upper bound: slots, cells of requests that run at the
same time and not knowing what comes only make things worse.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from cobali_ray.core.cache.placement import n_shared


class Visit(NamedTuple):
    """One request: the length of its prompt, and all that was computed of it, the prompt first."""

    n_prompt: int
    tokens: array[int]


def best_hits(visits: Sequence[Visit], n_cells: int | None = None) -> list[int]:
    """Return how many prompt tokens of each visit a perfect cache holds; None: cells without end."""
    kept: Counter[int] = Counter()
    """How many cells are kept for each visit that needs them next; they are all it will find."""
    hits = []
    for at, visit in enumerate(visits):
        hits.append(kept.pop(at, 0))
        if n_cells is not None:
            _forget(kept, kept.total() - max(n_cells - len(visit.tokens), 0))
        covered = 0
        for later in range(at + 1, len(visits)):
            if (shared := n_shared(visit.tokens, visits[later].tokens, len(visit.tokens))) > covered:
                # Beyond its prompt a visit computes anyway, so nothing is worth keeping for that.
                kept[later] += max(min(shared, visits[later].n_prompt - 1) - covered, 0)
                covered = shared
    return hits


def slot_hits(visits: Sequence[Visit], n_slots: int) -> list[int]:
    """Return how many prompt tokens of each visit slots hold that keep one sequence each.

    Whoever comes takes the slot whose sequence is needed last, or never, beside what the newcomer leaves
    behind; common beginnings are copied. Knows the future as `best_hits` does, but not what a hit is worth.
    """
    held: list[int] = []
    hits = []
    for at, visit in enumerate(visits):
        most = visit.n_prompt - 1
        hits.append(max((n_shared(visit.tokens, visits[i].tokens, most) for i in held), default=0))
        if len(held) == n_slots:
            held.remove(max(held, key=lambda i: _next_use(visits, i, at)))
        held.append(at)
    return hits


def _next_use(visits: Sequence[Visit], old: int, new: int) -> int:
    """Return the first visit after `new` that finds more in the sequence of `old` than in that of `new`."""
    for later in range(new + 1, len(visits)):
        n_prompt, tokens = visits[later]
        by_old, by_new = (n_shared(tokens, visits[i].tokens, n_prompt - 1) for i in (old, new))
        if by_old > by_new:
            return later
    return len(visits)


def _forget(kept: Counter[int], excess: int) -> None:
    """Drop `excess` cells, those first that are needed last."""
    for later in sorted(kept, reverse=True):
        if excess <= 0:
            return
        n_dropped = min(excess, kept[later])
        kept[later] -= n_dropped
        excess -= n_dropped
