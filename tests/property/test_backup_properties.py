"""Backups: whatever happens, copying takes no more of a busy engine than it may, and waits in an idle one."""

from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.core.cache.backups import BUSY_QUIET_S, QUIET_S, Backups
from cobali_ray.core.cache.host_tier import MOVE_S

COPY_S = (0.0001, 0.001, 0.0019, 0.01, 0.2)
"""What copying takes, by slot."""
steps = st.lists(
    st.tuples(
        st.sampled_from(["ended", "busy", "busy", "idle"]),
        st.integers(0, len(COPY_S) - 1),
        st.sampled_from([0.001, 0.01, 0.1, 0.5, 3.0]),
    ),
    max_size=200,
)


@given(steps)
def test_copying_keeps_its_budget_and_every_slot_has_its_turn(steps):
    backups, now_s = Backups(), 0.0
    ended: dict[int, float] = {}
    copied: list[tuple[float, float]] = []
    for kind, slot_id, passes_s in steps:
        now_s += passes_s
        if kind == "ended":
            backups.ended(slot_id, now_s)
            ended[slot_id] = now_s
            continue
        due_s = backups.due_s(COPY_S.__getitem__)
        assert (due_s is None) == (not ended), "each that ended has a turn to come"
        copies = backups.next(now_s, COPY_S.__getitem__, idle=kind == "idle")
        if kind == "idle":
            assert (copies is not None) == (due_s is not None and due_s <= now_s), "who wakes for it does it"
        if copies is None:
            continue
        last_s, takes_s = max(ended.values()), COPY_S[copies]
        if kind == "busy":
            assert takes_s <= MOVE_S
            assert now_s - ended[copies] >= BUSY_QUIET_S, "nobody came back to it"
        else:
            assert now_s - last_s >= max(QUIET_S, 5 * takes_s) - 1e-9, "nobody came for a while"
        if copied:
            since_s, factor = copied[-1]
            assert now_s - since_s >= factor - 1e-9, "the one before is made up for"
        copied.append((now_s, takes_s * (100 if kind == "busy" else 5)))
        del ended[copies]
    now_s += 100
    for _ in range(len(ended)):
        assert backups.next(now_s, COPY_S.__getitem__, idle=True) in ended
        now_s += 1.0
    assert backups.due_s(COPY_S.__getitem__) is None
