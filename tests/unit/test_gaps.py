"""Which sequence ids exchange what they hold, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.core.cache.gaps import HORIZON, closing, exchanges


def ids(text):
    """Read who is busy and how many cells each id holds: `b9` is busy with nine, `i0` idle with none."""
    return [one[0] == "b" for one in text.split()], [int(one[1:]) for one in text.split()]


some_ids = st.lists(st.tuples(st.booleans(), st.integers(0, 50)), min_size=1, max_size=20)


@given(some_ids)
def test_after_closing_the_busy_are_neighbours_and_no_other_place_is_cheaper(held):
    busy, cells = map(list, zip(*held, strict=True))

    def moved(pairs):
        return sum(cells[a] + cells[b] + 2 for a, b in pairs)

    pairs, n = closing(busy, cells), sum(busy)
    assert len({i for pair in pairs for i in pair}) == 2 * len(pairs)
    after = list(busy)
    for a, b in pairs:
        assert after[a] != after[b], "only an idle id and a busy one"
        after[a], after[b] = after[b], after[a]
    assert not n or all(after[(first := after.index(True)) : first + n])
    for first in range(len(busy) - n + 1):
        inside = range(first, first + n)
        strangers = [i for i, is_busy in enumerate(busy) if is_busy != (i in inside)]
        assert moved(pairs) <= sum(cells[i] + 1 for i in strangers)


def each_pass(seconds):
    return lambda rows: seconds * len(rows)


@pytest.mark.parametrize(("n_cells", "closed"), [(100 * HORIZON, True), (100 * HORIZON + 1, False)])
def test_gaps_are_closed_where_it_pays_within_the_horizon(n_cells, closed):
    busy, cells = ids(f"b{n_cells} i0 b9999")
    assert bool(exchanges(busy, cells, each_pass(0.1), 0.001)) == closed


def test_what_costs_nothing_is_done_whatever_is_known():
    busy, cells = ids("b0 i0 b0 i7")
    assert exchanges(busy, cells, each_pass(0.0), 0.001) == [(1, 2)]
    assert exchanges([], [], each_pass(0.0), 0.001) == []
