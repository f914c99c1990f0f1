"""Which idle slot shares the longest prefix with a prompt."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import NamedTuple


class Place(NamedTuple):
    """Where a prompt goes: the slot, and how many of its first tokens that slot already holds."""

    slot_id: int
    n_keep: int


def n_shared(a: array[int], b: array[int]) -> int:
    """Return the length of the longest common prefix, by bisection over slice comparisons."""
    low, high = 0, min(len(a), len(b))
    if not high or a[0] != b[0]:
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def choose_slot(tokens: array[int], idle: Iterable[tuple[int, array[int]]], min_prefix: int) -> Place:
    """Pick an idle slot for `tokens`; `idle` gives (slot_id, tokens it still holds).

    The slot with the longest shared prefix wins if that is at least `min_prefix` tokens (0: never look);
    otherwise the lowest id, because split KV is fast only while busy ids are dense. The last two tokens
    are always computed again: the last gives the logits, and one alone rounds differently (see `piece`).
    """
    lowest, best = -1, Place(-1, 0)
    most = len(tokens) - 2
    for slot_id, held in idle:
        if lowest < 0 or slot_id < lowest:
            lowest = slot_id
        if min_prefix and len(held) >= min_prefix:
            n_keep = min(n_shared(tokens, held), most)
            if n_keep >= min_prefix and (-n_keep, slot_id) < (-best.n_keep, best.slot_id):
                best = Place(slot_id, n_keep)
    return best if best.n_keep else Place(lowest, 0)
