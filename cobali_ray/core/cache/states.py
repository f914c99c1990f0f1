"""States: what is kept of models that can only go back to where a state of theirs was saved. Pure.

A recurrent layer keeps no cell per token but one state, and a sliding window its last tokens. So a slot is
not cut to any prefix: it goes back to where its *state* was saved, and the cells of its other layers are cut
there. A state stands for all tokens before it, so it is named by a hash of these, and is of use wherever the
cells of the other layers are: in a slot, or in host memory. A model that has no other layers begins from a
state alone, in any slot.

All states of a model take the same number of bytes, and the tokens that one saves grow with its depth. So few
are kept, and deep ones: each stands what its tokens, back to the state before it, cost to compute again above
the level of its last use, and the level is that of what was given up last (GreedyDual, as in placement.py).

Where states are saved follows from where prompts are likely to part: see `cuts_of`.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from hashlib import blake2b

from cobali_ray.core.cache.host_tier import root_name
from cobali_ray.core.cache.placement import recompute_cost

SPARSE_STEP = 1024
"""Tokens of a prompt without any likely place to part at which there is a state all the same."""
_MIDDLE = 8
_SHARE = 4
"""Part of all states that one prompt may take for such places: one in so many."""
_NAME_BYTES = 20
_LEARN = 0.2


class State:
    """What a slot remembered behind its first `n` tokens."""

    __slots__ = ("n", "name", "salt", "state_id", "worth_until")

    def __init__(self, state_id: int, name: bytes, n: int, salt: str) -> None:
        self.state_id, self.name, self.n, self.salt = state_id, name, n, salt
        self.worth_until = 0.0
        """The level at which it is worth nothing."""


class States:
    """The books of saved states. Whoever keeps the bytes knows them by their ids."""

    def __init__(self, n_most: int) -> None:
        """`n_most`: how many there is room for."""
        self.n_most = n_most
        self.n_saved = self.n_restored = self.n_evicted = 0
        """States so far: saved, put back into a slot, given up for room."""
        self.seconds = 0.0
        """How long it takes to save one or put it back; 0: nothing is known."""
        self._by_name: dict[bytes, State] = {}
        self._by_id: dict[int, State] = {}
        self._depths: dict[str, tuple[int, ...]] = {}
        """By salt, how many tokens lie before its states, in ascending order; replaced, never changed."""
        self._next_id = 0
        self._level = 0.0

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, tokens: array[int], most: int, salt: str | None) -> list[State]:
        """Return the states of a text at up to `most` of its tokens, the shallowest first. For any thread."""
        if salt is None:
            return []
        names = _names(tokens, self._depths.get(salt, ()), most, salt)
        return [state for name in names if (state := self._by_name.get(name)) is not None]

    def keeps(self, state: State) -> bool:
        return state.state_id in self._by_id

    def use(self, state: State, before: int) -> None:
        """Note that a state is of use, the next one before it in the same text being at `before` tokens."""
        state.worth_until = self._level + recompute_cost(before, state.n)

    def add(self, tokens: array[int], n: int, salt: str) -> tuple[State | None, list[int]]:
        """Keep the state behind the first `n` tokens; return it if it is new, and the ids of those given up.

        None where it is there already, or worth less than all that are.
        """
        (name,) = _names(tokens, (n,), n, salt)
        before = max([state.n for state in self.find(tokens, n - 1, salt)], default=0)
        if (known := self._by_name.get(name)) is not None:
            self.use(known, before)
            return None, []
        state = State(self._next_id, name, n, salt)
        self.use(state, before)
        gone: list[int] = []
        while len(self._by_id) >= self.n_most:
            least = min(self._by_id.values(), key=lambda one: one.worth_until, default=None)
            if least is None or least.worth_until > state.worth_until:
                return None, gone
            self._level = max(self._level, least.worth_until)
            self._remove(least)
            self.n_evicted += 1
            gone.append(least.state_id)
        self._next_id += 1
        self._by_name[name] = self._by_id[state.state_id] = state
        depths = list(self._depths.get(salt, ()))
        insort(depths, n)
        self._depths[salt] = tuple(depths)
        self.n_saved += 1
        return state, gone

    def drop(self, state_ids: Iterable[int]) -> list[int]:
        """Forget states whose bytes are lost; return the ids of those that were known."""
        gone = [self._by_id[state_id] for state_id in dict.fromkeys(state_ids) if state_id in self._by_id]
        for state in gone:
            self._remove(state)
        return [state.state_id for state in gone]

    def clear(self) -> None:
        self._by_name, self._by_id, self._depths = {}, {}, {}

    def learn(self, n: int, seconds: float) -> None:
        """Take how long it took to save `n` states or put them back."""
        known = self.seconds
        self.seconds = known + (_LEARN if known else 1.0) * (seconds / n - known)

    def _remove(self, state: State) -> None:
        del self._by_name[state.name], self._by_id[state.state_id]
        depths = list(self._depths[state.salt])
        depths.remove(state.n)
        self._depths[state.salt] = tuple(depths)
        if not depths:
            del self._depths[state.salt]

    def problems(self) -> list[str]:
        """Return what does not balance."""
        problems = []
        if len(self._by_id) > self.n_most:
            problems.append(f"{len(self._by_id)} states are kept, and there is room for {self.n_most}")
        if set(self._by_name.values()) != set(self._by_id.values()):
            problems.append("states are known by name and not by id, or the other way round")
        depths = sorted((state.salt, state.n) for state in self._by_id.values())
        if depths != sorted((salt, n) for salt, known in self._depths.items() for n in known):
            problems.append("the depths of states are miscounted")
        return problems


def _names(tokens: array[int], depths: Sequence[int], most: int, salt: str) -> Iterator[bytes]:
    """Yield the name of all tokens before each depth, once each, as far as there are `most` tokens."""
    so_far, start, most = blake2b(root_name(salt), digest_size=_NAME_BYTES), 0, min(most, len(tokens))
    for n in depths:
        if n > most:
            return
        if n > start:
            so_far.update(tokens[start:n])
            start = n
            yield so_far.copy().digest()


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
