"""Gaps: which slots exchange their sequence ids, so that the busy ones are neighbours.

llama.cpp computes rows of a split cache in one pass over the weights as long as their ids follow each other,
and in another one behind each gap. A slot is not the id that it computes under, so what two ids hold can be
exchanged while every slot keeps what it has.

A gap opens when requests come and go, so it is looked for when a sequence came or left. Ids stay as they are
in a unified cache, and where sliding windows leave a sequence's state incomplete. What both ids hold is
written again by the backend (`LlamaBackend.swap`); all books are by slot and do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from cobali_ray.core.cost.runs import run_lengths

HORIZON = 8
"""Ticks in which an exchange must pay: about as often a request comes or leaves."""


def closing(busy: Sequence[bool], cells: Sequence[int]) -> list[tuple[int, int]]:
    """Return which pairs of ids to exchange so that the busy ones are neighbours, with fewest cells moved.

    One cell more is counted for each id that is exchanged, so that of equals the fewest are.
    """
    n = sum(busy)
    # Inside the stretch of ids that will be busy, idle ones are moved and busy ones need not be.
    costs = [-n_cells - 1 if is_busy else n_cells + 1 for is_busy, n_cells in zip(busy, cells, strict=True)]
    before = list(accumulate(costs, initial=0))
    first = min(range(len(busy) - n + 1), key=lambda start: before[start + n] - before[start])
    inside = range(first, first + n)
    idle = [i for i in inside if not busy[i]]
    return list(zip(idle, [i for i, is_busy in enumerate(busy) if is_busy and i not in inside], strict=True))


def exchanges(
    busy: Sequence[bool], cells: Sequence[int], runs_s: Callable[[Sequence[int]], float], cell_s: float
) -> list[tuple[int, int]]:
    """Return which pairs of ids to exchange; none where that takes longer than it saves in `HORIZON` ticks.

    `runs_s` says what passes with so many rows each take, one after another, and `cell_s` what moving a cell
    does.
    """
    lengths = run_lengths([i for i, is_busy in enumerate(busy) if is_busy])
    if not lengths:
        return []
    pairs = closing(busy, cells)
    n_moved = sum([cells[a] + cells[b] for a, b in pairs])
    saved_s = runs_s(lengths) - runs_s([sum(lengths)])
    return pairs if n_moved * cell_s <= HORIZON * saved_s else []
