"""States: saved states of models whose slots can be cut only to where a state was saved. Pure.

A recurrent layer keeps no cell per token but one state, and a sliding window its last tokens. So a slot is
not cut to any prefix: it goes back to where its *state* was saved, and the cells of its other layers are cut
there. A state stands for all tokens before it, so it is named like a block that would end there, and is of
use wherever the cells of the other layers are: in a slot, or in host memory. A model that has no other layers
begins from a state alone, in any slot. On disk it has the same name.

All states of a model take the same number of bytes, and the tokens that one saves grow with its depth. So few
are kept, and deep ones: each is worth what its tokens, back to the state before it, cost to compute again,
counted from the level at its last use; the level is that of the state evicted last (GreedyDual, as in
placement.py).

Where states are saved follows from where prompts are likely to part: see `cuts_of`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from cobali_ray.core.cache.host_tier import NAME_BYTES, chain, name_behind
from cobali_ray.core.cache.placement import recompute_cost

SPARSE_STEP = 1024
"""Tokens after which a state is saved even where prompts are not likely to part."""
_MIDDLE = 8
_SHARE = 4
"""One prompt may take one in so many of all states for such places."""
_LEARN = 0.2


class State:
    """The state of a slot after its first `n` tokens."""

    __slots__ = ("n", "name", "state_id", "worth_until")

    def __init__(self, state_id: int, name: bytes, n: int) -> None:
        self.state_id, self.name, self.n = state_id, name, n
        self.worth_until = 0.0
        """The level at which it is worth nothing."""


class StateIndex:
    """Finds the states along a text. Read by any thread, changed by one."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._tails: dict[bytes, Mapping[int, int]] = {}
        """By the block before them, how many tokens behind it there are states, and of how many texts;
        replaced, never changed."""

    def add(self, name: bytes) -> None:
        counts = self._tails.get(before := name[:NAME_BYTES], {})
        self._tails[before] = {**counts, name[NAME_BYTES]: counts.get(name[NAME_BYTES], 0) + 1}

    def remove(self, name: bytes) -> None:
        before, n_tail = name[:NAME_BYTES], name[NAME_BYTES]
        left = {n: count - (n == n_tail) for n, count in self._tails[before].items()}
        if any(left.values()):
            self._tails[before] = {n: count for n, count in left.items() if count}
        else:
            del self._tails[before]

    def n_names(self) -> int:
        return sum(sum(counts.values()) for counts in self._tails.values())

    def along(
        self, blocks: Iterable[tuple[int, bytes]], tokens: array[int], most: int
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the names that a text's states have, at up to `most` of its tokens, the shallowest first.

        `blocks` is its `chain`, which is hashed only as far as names are taken.
        """
        most = min(most, len(tokens))
        for start, before in blocks if self._tails else ():
            for n_tail in sorted(self._tails.get(_whole(before), ())):
                if start + n_tail <= most:
                    yield start + n_tail, state_name(before, tokens[start : start + n_tail])


def state_name(before: bytes, tail: array[int]) -> bytes:
    """Return the name of the state after these tokens, which follow the block with the name `before`.

    It begins with that name and the number of tokens, and ends like the name of a block of them.
    """
    return _whole(before) + bytes([len(tail)]) + name_behind(before, tail.tobytes())


def _whole(name: bytes) -> bytes:
    """Return a block's name, also of the root that has none."""
    return name.ljust(NAME_BYTES, b"\0")


class States:
    """The books of saved states, whose bytes are kept elsewhere by their ids."""

    def __init__(self, n_most: int, block: int = 64) -> None:
        """`n_most`: how many there is room for. `block`: tokens of a block, by which they are named."""
        self.n_most, self._block = n_most, block
        self.n_saved = self.n_restored = self.n_evicted = 0
        """States so far: saved, restored, evicted."""
        self.seconds = 0.0
        """Seconds that saving or restoring one takes; 0: not known."""
        self._by_name: dict[bytes, State] = {}
        self._by_id: dict[int, State] = {}
        self._index = StateIndex(block)
        self._next_id = 0
        self._level = 0.0

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, tokens: array[int], most: int, salt: str | None) -> list[State]:
        """Return the states of a text at up to `most` of its tokens, the shallowest first. For any thread."""
        return [] if salt is None else self._along(chain(tokens, most, salt, self._block), tokens, most)

    def _along(self, blocks: Iterable[tuple[int, bytes]], tokens: array[int], most: int) -> list[State]:
        names = self._index.along(blocks, tokens, most)
        return [state for _, name in names if (state := self._by_name.get(name)) is not None]

    def keeps(self, state: State) -> bool:
        return state.state_id in self._by_id

    def use(self, state: State, before: int) -> None:
        """Record that a state is used; the one before it in the same text is at `before` tokens."""
        state.worth_until = self._level + recompute_cost(before, state.n)

    def add(self, tokens: array[int], n: int, salt: str, least: int = 1) -> tuple[State | None, list[int]]:
        """Keep the state after the first `n` tokens; return it if it is new, and the ids of those evicted.

        None where another one is less than `least` tokens before it, or all are worth more.
        """
        blocks = [*chain(tokens, n, salt, self._block)]
        states = self._along(blocks, tokens, n)
        before = states[-1].n if states else 0
        if not self.n_most or n - before < least:
            return None, []
        start, name = blocks[-1]
        state = State(self._next_id, state_name(name, tokens[start:n]), n)
        self.use(state, before)
        evicted: list[int] = []
        while len(self._by_id) >= self.n_most:
            least_worth = min(self._by_id.values(), key=lambda kept: kept.worth_until)
            if least_worth.worth_until > state.worth_until:
                return None, evicted
            self._level = max(self._level, least_worth.worth_until)
            self._remove(least_worth)
            self.n_evicted += 1
            evicted.append(least_worth.state_id)
        self._next_id += 1
        self._by_name[state.name] = self._by_id[state.state_id] = state
        self._index.add(state.name)
        self.n_saved += 1
        return state, evicted

    def drop(self, state_ids: Iterable[int]) -> list[int]:
        """Forget states whose bytes are lost; return the ids of those that were known."""
        dropped = [self._by_id[state_id] for state_id in dict.fromkeys(state_ids) if state_id in self._by_id]
        for state in dropped:
            self._remove(state)
        return [state.state_id for state in dropped]

    def clear(self) -> None:
        self._by_name, self._by_id, self._index = {}, {}, StateIndex(self._block)

    def learn(self, n: int, seconds: float) -> None:
        """Learn how long saving or restoring `n` states took."""
        before = self.seconds
        self.seconds = before + (_LEARN if before else 1.0) * (seconds / n - before)

    def _remove(self, state: State) -> None:
        del self._by_name[state.name], self._by_id[state.state_id]
        self._index.remove(state.name)

    def problems(self) -> list[str]:
        """Return what does not balance."""
        problems = []
        if len(self._by_id) > self.n_most:
            problems.append(f"{len(self._by_id)} states are kept, and there is room for {self.n_most}")
        if set(self._by_name.values()) != set(self._by_id.values()):
            problems.append("states are known by name and not by id, or the other way round")
        if self._index.n_names() != len(self._by_name):
            problems.append("the places of states are miscounted")
        return problems


def cuts_of(
    *,
    start: int,
    end: int,
    turns: Collection[int],
    fork: int,
    least: int,
    step: int,
    pays: Callable[[int, int], bool] = lambda _start, _end: True,
) -> tuple[int, ...]:
    """Return at how many of a prompt's tokens its state is to be saved, in ascending order.

    That is where others are likely to part from it, between what it begins from, `start`, and the last place
    from which it could begin again, `end`: where its turns begin, the first of which ends the instructions
    that conversations share, and the last of which the question that may be answered again; where it parted
    from another prompt that a slot holds (`fork`; a third one may part there too); and `end` itself. In long
    stretches between these there is one every `step` tokens.

    None is less than `least` tokens behind another, `_MIDDLE` times as many for turns in the middle, or where
    `pays` says that computing the tokens between two again takes less time than keeping a state does.
    """
    inside = sorted({n for n in turns if start < n <= end})
    likely = {n for n in (*inside[:1], *inside[-1:], fork, end) if start < n <= end}
    places: list[int] = []
    last = start
    for n in sorted({*inside, *likely}):
        grid = range((last // step + 1) * step, n - step // 2, step)
        places += [*[place for place in grid if place - last >= step // 2], n]
        last = n
    cuts: list[int] = []
    last = start
    for n in places:
        if n - last >= (least if n in likely else _MIDDLE * least) and pays(last, n):
            cuts.append(n)
            last = n
    return tuple(cuts)


def sparse_step(n_most: int, n_ctx_slot: int) -> int:
    """Return how far apart states lie where nothing is likely: one prompt must not take all the room."""
    return max(SPARSE_STEP, _SHARE * n_ctx_slot // max(n_most, 1))
