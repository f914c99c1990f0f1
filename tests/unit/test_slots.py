"""The books of the KV cache, entry by entry."""

import pytest

from cobali_ray.core.lifecycle import Change
from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.plan import Span
from cobali_ray.core.prefix import Place
from cobali_ray.core.request import Request
from cobali_ray.core.sequence import Sequence
from cobali_ray.core.slots import SlotTable
from cobali_ray.errors import InvariantError


def open_slots(n_slots=2):
    return SlotTable(EngineLimits(n_slots=n_slots, n_ctx_slot=9, n_cells=18, token_budget=8, prefill_chunk=8))


def assigned(slots, slot_id, *, n_keep=0):
    sequence = Sequence(Request(request_id=str(slot_id), prompt=(1, 2, 3, 4), max_tokens=5), arrived_s=0.0)
    slots.assign(sequence, Place(slot_id, n_keep))
    sequence.change(Change.ASSIGN)
    return sequence


def books(slots):
    slots.check()
    return slots.n_cells_running, slots.n_cells_idle


def test_every_entry_is_counted():
    slots = open_slots()
    one, other = assigned(slots, 0), assigned(slots, 1)
    assert books(slots) == (0, 0)
    slots.advance([one, other], [Span(0, 0, 4, sample=True), Span(1, 0, 3, sample=False)])
    assert books(slots) == (7, 0)
    assert [(s.n_computed, s.n_in_flight) for s in (one, other)] == [(4, 1), (3, 0)]
    one.tokens.append(5)
    one.n_in_flight = 0
    slots.advance_decoding([one])
    assert books(slots) == (8, 0)
    assert (one.n_computed, one.n_in_flight) == (5, 1)
    assert [slots.n_short(n) for n in (9, 10, 11)] == [-1, 0, 1]
    slots.release(one, n_keep=4)
    assert books(slots) == (3, 4)
    slots.release(other, n_keep=0)
    assert books(slots) == (0, 4)


def test_a_reused_prefix_is_counted_once():
    slots = open_slots()
    one = assigned(slots, 0)
    slots.advance([one], [Span(0, 0, 4, sample=True)])
    slots.release(one, n_keep=4)
    assigned(slots, 0, n_keep=2)
    assert books(slots) == (2, 0), "what is not shared is cut"


def test_the_prefix_idle_longest_is_dropped_first():
    slots = open_slots(3)
    sequences = [assigned(slots, slot_id) for slot_id in range(3)]
    slots.advance(sequences, [Span(i, 0, 4, sample=True) for i in range(3)])
    for slot_id, n_keep in ((2, 3), (1, 0), (0, 4)):
        slots.release(sequences[slot_id], n_keep=n_keep)
    assert books(slots) == (0, 7)
    assert slots.drop_idle() == 2
    assert books(slots) == (0, 4)
    assert slots.drop_idle() == 0
    assert books(slots) == (0, 0)
    assert slots.drop_idle() is None


@pytest.mark.parametrize("name", ["n_cells_running", "n_cells_idle"])
def test_a_wrong_count_is_found(name):
    slots = open_slots()
    assigned(slots, 0)
    setattr(slots, name, 1)
    with pytest.raises(InvariantError, match="miscounted"):
        slots.check()
