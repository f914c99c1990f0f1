"""Where a prompt goes, case by case, and what several conversations keep of their prefixes."""

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.core.cache.placement import (
    GUESSED,
    MoveCosts,
    Placement,
    SlotContents,
    choose_placement,
    n_shared,
    recompute_cost,
    worth,
)
from cobali_ray.core.cache.slots import Slots
from cobali_ray.core.request.lifecycle import StatusChange
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import Sequence


def tokens(*values):
    return array("i", values)


@pytest.mark.parametrize(
    ("a", "b", "most", "n"),
    [
        ((), (), 9, 0),
        ((1,), (2,), 9, 0),
        ((1, 2, 3), (1, 2, 4), 9, 2),
        ((1, 2), (1, 2, 3), 9, 2),
        ((5,) * 9, (5,) * 9, 9, 9),
        ((5,) * 9, (5,) * 9, 4, 4),
    ],
)
def test_n_shared(a, b, most, n):
    assert n_shared(tokens(*a), tokens(*b), most) == n


def limits(n_slots=4, **changes):
    base = {
        "n_slots": n_slots, "n_ctx_slot": 4096, "n_cells": 4096 * n_slots, "token_budget": 512,
        "prefill_chunk": 512, "min_prefix": 4, "copies": False,
    }  # fmt: skip
    return EngineLimits(**(base | changes))


def held(slot_id, *values, idle=True, fades=0.0):
    known = tokens(*values)
    return SlotContents(slot_id, known, len(known), recompute_cost(0, len(known)) - fades, idle)


PROMPT = tokens(*range(100))
LONG = (*range(40), *range(900, 2860))
"""A history of 2,000 tokens that shares 40 with the prompt."""


@pytest.mark.parametrize(
    ("slots", "changes", "expected"),
    [
        pytest.param([held(0), held(1)], {}, Placement(0, 0), id="the-first-of-equals"),
        pytest.param([held(0, *range(500, 600)), held(1)], {}, Placement(1, 0), id="an-empty-slot-first"),
        pytest.param([held(0), held(1, *range(50))], {}, Placement(1, 50), id="a-hit-that-destroys-nothing"),
        pytest.param([held(0, *range(3)), held(1)], {}, Placement(1, 0), id="a-prefix-too-short"),
        pytest.param([held(0, *range(50)), held(1)], {"min_prefix": 0}, Placement(1, 0), id="reuse-off"),
        pytest.param([held(0, *range(100))], {}, Placement(0, 98), id="two-tokens-are-computed-again"),
        pytest.param([held(0, *LONG), held(1)], {}, Placement(1, 0),
            id="a-hit-that-destroys-a-history-is-declined"),
        pytest.param([held(0, *LONG), held(1)], {"copies": True}, Placement(1, 40, 0),
            id="or-copied-where-it-can-be"),
        pytest.param([held(0, *LONG, idle=False), held(1)], {"copies": True}, Placement(1, 40, 0),
            id="from-a-busy-slot-too"),
        pytest.param([held(0, *LONG, idle=False), held(1, *range(900, 1900)), held(2, *range(900, 950))],
            {"copies": True}, Placement(2, 40, 0), id="and-over-the-least-valuable"),
        pytest.param([held(0, *LONG, idle=False), held(1, *range(40), 7, idle=False), held(2)],
            {"copies": True}, Placement(2, 40, 1), id="from-the-shortest-that-has-it"),
        pytest.param([held(0, *range(40), *range(900, 12_000)), held(1)], {"copies": True}, Placement(1, 0),
            id="not-where-the-copy-is-dearer-than-what-it-saves"),
        pytest.param([held(0, *LONG)], {"copies": True}, Placement(0, 40), id="taken-if-there-is-no-other"),
        pytest.param([held(0, *range(900, 1400)), held(1, *range(900, 1000)), held(2, *range(900, 1900))], {},
            Placement(1, 0), id="the-least-valuable-goes"),
        pytest.param([held(0, *range(900, 1100)), held(1, *range(900, 1400), fades=500)], {}, Placement(1, 0),
            id="a-faded-history-is-worth-less-than-a-fresh-short-one"),
    ],
)  # fmt: skip
def test_place(slots, changes, expected):
    chosen = choose_placement(PROMPT, slots, limits(len(slots), **changes), level=0.0, n_free_cells=10_000)
    assert chosen._replace(lost=0.0, n_alike=0) == expected


def test_a_copy_needs_cells():
    slots = [held(0, *LONG, idle=False), held(1, *range(7, 17))]
    for n_free, expected in ((29, 0), (30, 40)):
        chosen = choose_placement(PROMPT, slots, limits(2, copies=True), level=0.0, n_free_cells=n_free)
        assert chosen.n_keep == expected


@pytest.mark.parametrize(
    ("copies", "n_on_host", "expected"),
    [
        pytest.param(True, 39, (40, False), id="less-than-a-slot-has"),
        pytest.param(True, 40, (40, False), id="a-slot-is-nearer"),
        pytest.param(True, 60, (60, True), id="more"),
        pytest.param(False, 39, (39, True), id="what-the-slot-has-would-destroy-the-rest"),
    ],
)
def test_the_longest_of_slots_and_host_memory_wins(copies, n_on_host, expected):
    slots = [held(0, *LONG), held(1)]
    prompt = array("i", range(80))
    chosen = choose_placement(
        prompt, slots, limits(2, copies=copies), level=0.0, n_free_cells=99, n_on_host=n_on_host
    )
    assert (chosen.n_keep, chosen.from_host, chosen.slot_id) == (*expected, 1), "nothing is destroyed"


@pytest.mark.parametrize(("cost", "from_host"), [(1 / 64, True), (0.3, True), (1.5, False)])
def test_what_is_slower_to_bring_back_than_to_compute_is_computed(cost, from_host):
    prompt = array("i", range(100))
    slots = [SlotContents(0, array("i", [7]), 0, 0.0, idle=True)]
    chosen = choose_placement(
        prompt, slots, limits(1), level=0.0, n_free_cells=99, n_on_host=60, costs=MoveCosts(cost, 0.0)
    )
    assert (chosen.from_host, chosen.n_keep > 0) == (from_host, from_host)


def test_worth_fades_with_the_level_and_counts_what_is_destroyed_only():
    history = held(0, *range(1000))
    assert worth(history, 0, 0.0) == recompute_cost(0, 1000)
    assert worth(history, 990, 0.0) == recompute_cost(990, 1000) < 20
    assert worth(history, 0, recompute_cost(0, 1000) - 5.0) == pytest.approx(5.0)
    assert worth(history, 0, 1e9) == 0


class Server:
    """Slots alone, with people who take turns: each prompt is all that was said, and a new line."""

    def __init__(self, n_slots, **changes):
        self.slots = Slots(limits(n_slots, **changes))
        self.n_prompt = self.n_cached = 0

    def turn(self, prompt, n_answer):
        """Run one request from start to end; return its tokens."""
        sequence = Sequence(Request(request_id="r", prompt=tuple(prompt), max_tokens=n_answer), arrived_s=0.0)
        chosen = self.slots.choose(sequence, 0, sequence.n_reusable, None, GUESSED)
        self.slots.assign(sequence, chosen)
        sequence.change(StatusChange.ASSIGN)
        self.n_prompt += len(prompt)
        self.n_cached += chosen.n_keep
        sequence.tokens.extend(range(10**6, 10**6 + n_answer))
        n_computed = len(sequence.tokens) - 1
        self.slots.n_cells_running += n_computed - chosen.n_keep
        self.slots.release(sequence, n_computed=n_computed, n_keep=n_computed)
        assert self.slots.problems() == []
        return list(sequence.tokens)


class Person:
    def __init__(self, number, rng, system=()):
        self._number, self._rng, self._said = number, rng, list(system)

    def turn(self, server):
        line = [self._number * 10_000 + self._rng.randrange(9_000) for _ in range(self._rng.randint(20, 120))]
        self._said = server.turn(self._said + line, self._rng.randint(10, 80))


def share(n_people, n_slots, *, n_turns=6, system=(), seed=0, **changes):
    """Return the share of prompt tokens from the cache, and that of a cache that forgets nothing."""
    rng = random.Random(seed)
    server = Server(n_slots, **changes)
    people = [Person(i + 1, rng, system) for i in range(n_people)]
    best, seen = 0, []
    for _ in range(n_turns):
        rng.shuffle(people)
        for person in people:
            before = server.n_prompt
            shared = max((n_shared_lists(person._said, other) for other in seen), default=0)
            person.turn(server)
            best += shared
            seen.append(person._said)
            assert server.n_prompt > before
    return server.n_cached / server.n_prompt, best / server.n_prompt


def n_shared_lists(a, b):
    return n_shared(array("i", a), array("i", b), len(a))


@pytest.mark.parametrize("n_people", [2, 12])
def test_a_common_system_prompt_is_computed_once(n_people):
    ours, best = share(n_people, 16, system=range(1, 400), copies=True)
    assert ours >= 0.98 * best


@given(
    n_people=st.integers(1, 6), n_spare=st.integers(0, 2), seed=st.integers(0, 2**16), copies=st.booleans()
)
def test_no_history_is_lost_while_there_are_slots_for_all(n_people, n_spare, seed, copies):
    ours, best = share(n_people, n_people + n_spare, n_turns=4, seed=seed, copies=copies)
    assert ours >= 0.97 * best, "all but the tokens that are always computed again"


def test_strangers_do_not_wash_a_history_out():
    rng = random.Random(1)
    server, regular = Server(4), Person(1, rng)
    for _ in range(8):
        regular.turn(server)
    for stranger in range(2, 12):
        Person(stranger, rng).turn(server)
    n_cached = server.n_cached
    regular.turn(server)
    assert server.n_cached - n_cached > 400
