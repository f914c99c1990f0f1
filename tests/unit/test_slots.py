"""The books of the KV cache, entry by entry."""

from array import array

import pytest

from cobali_ray.core.cache.placement import Placement
from cobali_ray.core.cache.slots import Slots
from cobali_ray.core.request.lifecycle import StatusChange
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.errors import InvariantError


def open_slots(n_slots=2, n_ctx_slot=9):
    limits = EngineLimits(
        n_slots=n_slots, n_ctx_slot=n_ctx_slot, n_cells=2 * n_ctx_slot, token_budget=8, prefill_chunk=8
    )
    return Slots(limits)


def assigned(slots, slot_id, *, n_keep=0, donor_id=None):
    sequence = Sequence(Request(request_id=str(slot_id), prompt=(1, 2, 3, 4), max_tokens=5), arrived_s=0.0)
    slots.assign(sequence, Placement(slot_id, n_keep, donor_id))
    sequence.change(StatusChange.ASSIGN)
    return sequence


def computed(slots, sequence, n):
    sequence.n_prefilled += n
    slots.n_cells_running += n


def released(slots, sequence, n_keep):
    slot_id, n_computed = sequence.slot_id, sequence.n_computed
    slots.release(sequence, n_computed=n_computed, n_keep=n_keep)
    return slot_id


def books(slots):
    assert slots.problems() == []
    return slots.n_cells_running, slots.n_cells_idle


def test_a_copied_prefix_is_counted_twice_and_its_donor_is_worth_nothing():
    slots = open_slots(3)
    one = assigned(slots, 0)
    computed(slots, one, 2)
    released(slots, one, 2)
    other = assigned(slots, 1)
    computed(slots, other, 1)
    released(slots, other, 1)
    assigned(slots, 2, n_keep=2, donor_id=0)
    assert books(slots) == (2, 3)
    assert slots.drop_idle()[0].slot_id == 0, "though it is the longer one"


def test_the_prefix_worth_least_is_dropped_first():
    slots = open_slots(3)
    sequences = [assigned(slots, slot_id) for slot_id in range(3)]
    for sequence in sequences:
        computed(slots, sequence, 3)
    for slot_id, n_keep in ((2, 3), (1, 0), (0, 2)):
        released(slots, sequences[slot_id], n_keep)
    assert books(slots) == (0, 5)
    assert slots.drop_idle()[0].slot_id == 0
    assert books(slots) == (0, 3)
    assert slots.drop_idle()[0].slot_id == 2
    assert books(slots) == (0, 0)
    assert slots.drop_idle() is None


def test_a_prefix_loses_its_end_and_little_more_than_is_needed():
    slots = open_slots(2, n_ctx_slot=1000)
    slots.hold(0, array("i", range(1000)), "")
    slots.hold(1, array("i", range(600)), "")
    for n, slot_id, n_keep in ((1, 1, 320), (650, 0, 320), (400, 1, 0), (None, 0, 0)):  # whole blocks
        n_before = slots.held(slot_id).n_tokens
        held, n_left = slots.drop_idle(n)
        assert (held.slot_id, held.n_tokens, n_left) == (slot_id, n_before, n_keep)
        assert slots.held(slot_id).tokens == array("i", range(n_keep))
        assert slots.problems() == []


def test_a_busy_slot_is_given_to_nobody():
    slots = open_slots()
    assigned(slots, 0)
    with pytest.raises(InvariantError, match="slot 0 is not idle"):
        assigned(slots, 0)
