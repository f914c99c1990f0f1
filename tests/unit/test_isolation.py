"""What is computed under one salt is of no use under another: neither in slots, nor in host memory."""

from array import array

import pytest
from answers import OnEngine

from cobali_ray.backend.scripted import CELL_BYTES, ScriptedBackend
from cobali_ray.core.cache.host_tier import HostTier
from cobali_ray.core.request.request import Request
from cobali_ray.testing import FakeClock

PROMPT = b"You are the assistant of a large company, and this is its secret handbook of 80 tokens."
SALTS = [
    pytest.param("one", "one", True, id="one-tenant"),
    pytest.param("", "", True, id="no-salt"),
    pytest.param("one", "other", False, id="two-tenants"),
    pytest.param("", "one", False, id="a-tenant-after-the-shared"),
    pytest.param("one", "", False, id="the-shared-after-a-tenant"),
    pytest.param(None, "", False, id="nothing-is-kept"),
    pytest.param("", None, False, id="nothing-is-used"),
    pytest.param(None, None, False, id="nothing-with-nothing"),
]


class Setup(OnEngine):
    """An engine with a slot or a few, and host memory for as much again."""

    def __init__(self, n_slots=2, *, copies=True):
        super().__init__(
            ScriptedBackend(n_slots=n_slots, n_ctx_slot=128, n_batch=64), clock=FakeClock(step_s=0.0001),
            prefill_chunk=64, min_prefix=8, copies=copies, n_host_cells=256, host_block=8,
            cell_bytes=CELL_BYTES,
        )  # fmt: skip

    def submit(self, request_id, salt, prompt=PROMPT, max_tokens=3):
        return self.engine.submit(
            Request(
                request_id=request_id, prompt=tuple(prompt), max_tokens=max_tokens, cache_salt=salt,
                reply_to="me",
            )
        )  # fmt: skip


@pytest.mark.parametrize(("one", "other", "shared"), SALTS)
@pytest.mark.parametrize("limits", [{"n_slots": 1}, {"n_slots": 2}, {"n_slots": 2, "copies": False}])
def test_an_idle_slot_serves_its_own_salt(limits, one, other, shared):
    s = Setup(**limits)
    s.submit("a", one)
    s.run()
    s.submit("b", other)
    s.run()
    assert s.cached("b") == (len(PROMPT) - 2) * shared


@pytest.mark.parametrize(("one", "other", "shared"), SALTS)
def test_a_running_slot_is_copied_for_its_own_salt(one, other, shared):
    s = Setup()
    s.submit("a", one, max_tokens=30)
    while not s.events.text("a"):
        s.engine.tick()
    s.submit("b", other)
    s.run()
    assert s.cached("b") == (len(PROMPT) - 2) * shared


@pytest.mark.parametrize(("one", "other", "shared"), SALTS)
def test_host_memory_gives_to_its_own_salt(one, other, shared):
    s = Setup(n_slots=1)
    s.submit("a", one)
    s.run()
    s.submit("displaces a", "third", b"something else that is longer than a block")
    s.run()
    assert bool(s.engine.scheduler.tiers.host.n_used) is (one is not None)
    s.submit("b", other)
    s.run()
    assert s.cached("b") == len(PROMPT) // 8 * 8 * shared, "the last block is the answer's too"
    assert s.engine.scheduler.tiers.host.n_hits == shared


def test_who_shares_nothing_leaves_its_slot_empty():
    s = Setup(n_slots=1)
    s.submit("a", None)
    s.run()
    assert s.engine.slots.n_cells_idle == 0
    assert s.backend._hashes == [[]]


def text(n, start=0):
    return array("i", range(start, start + n))


def test_the_host_tiers_salts_share_its_room_and_nothing_else():
    tier = HostTier(24, block=8)
    tier.insert(text(20), 20, "one")
    assert [b.end for b in tier.match(text(20), 20, "one")] == [8, 16, 20]
    assert tier.match(text(20), 20) == tier.match(text(20), 20, "other") == []
    new, gone = tier.insert(text(20), 20, "other")
    assert sum(b.n_tokens for b in new) == 20, "nothing of it was there"
    assert len(gone) == 3, "and the first tenant's had to go"
    assert [b.end for b in tier.match(text(20), 20, "other")] == [8, 16, 20]
    assert tier.n_used <= 24
    assert tier.problems() == []


def test_a_salt_that_holds_nothing_takes_no_memory():
    tier = HostTier(8, block=8)
    for i in range(100):
        tier.insert(text(8, i), 8, f"tenant {i}")
    assert len(tier._roots) == 1
    tier.insert(text(3), 3, "tail")
    tier.insert(text(8), 8, "tail")
    assert [b.end for b in tier.match(text(8), 8, "tail")] == [8]
    tier.drop(list(tier._blocks))
    assert not tier._roots
    assert HostTier(0).insert(text(8), 8, "no room") == ([], [])
