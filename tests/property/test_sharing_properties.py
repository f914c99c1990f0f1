"""Sharing against slots that hold their cells as objects."""

from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.core.cache.sharing import Sharing

N_SLOTS = 5
steps = st.lists(
    st.tuples(
        st.sampled_from(["share", "cut", "grow"]),
        st.integers(0, N_SLOTS - 1),
        st.integers(0, N_SLOTS - 1),
        st.integers(1, 9),
    ),
    min_size=20,
    max_size=60,
)


@given(steps)
def test_cells_that_several_slots_hold_are_counted_once(steps):
    sharing, cells = Sharing(), [[object() for _ in range(9)] for _ in range(N_SLOTS)]
    for what, slot_id, donor_id, n in steps:
        held, donor = cells[slot_id], cells[donor_id]
        if what == "grow":
            held += [object() for _ in range(n)]
        elif what == "cut":
            sharing.cut(slot_id, min(n, len(held)))
            del held[n:]
        elif n <= len(donor) and donor_id != slot_id:
            sharing.cut(slot_id, 0)
            sharing.share(donor_id, slot_id, n)
            held[:] = donor[:n]
        for among in (None, lambda i: i % 2 == 0):
            some = [held for i, held in enumerate(cells) if among is None or among(i)]
            assert sum(map(len, some)) - len(set().union(*some)) == sharing.n_twice(among)
    for slot_id in range(N_SLOTS):
        sharing.cut(slot_id, 0)
    assert sharing.n_twice() == 0
    assert not sharing._runs, "nothing is kept of what nobody shares"
