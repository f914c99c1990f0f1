"""Tenants never share a cell, whatever they send in whatever order: each has hashes of its own."""

import zlib
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request
from cobali_ray.engine.engine import Engine
from cobali_ray.testing import EventRecorder, FakeClock

SHARED = b"the same instructions for all of them, "
SALTS = ["", "other", None]


class Tenanted(ScriptedBackend):
    """Begins the hashes of each slot with what its sequence may share: its salt, or it alone."""

    def __init__(self, **scripted):
        super().__init__(**scripted)
        self.seeds = {}

    def expect(self, slot_id, row):
        super().expect(slot_id, row)
        self._seeds[slot_id] = self.seeds[row]


def run(requests, n_ticks, *, n_slots, n_cells, **limits):
    """Submit one after the other with some ticks in between; return texts and cached tokens."""
    backend = Tenanted(n_slots=n_slots, n_ctx_slot=96, n_cells=n_cells, n_batch=64)
    base = {
        "n_slots": n_slots, "n_ctx_slot": 96, "n_cells": n_cells, "token_budget": 64, "prefill_chunk": 32,
        "host_block": 8, "cell_bytes": 1024,
    }  # fmt: skip
    events = EventRecorder()
    engine = Engine(
        backend, EngineLimits(**(base | limits)), FakeClock(), events, entropy=lambda: 0, check_every=1
    )
    for request, n in zip(requests, n_ticks, strict=True):
        engine.submit(request)
        salt = request.request_id if request.cache_salt is None else request.cache_salt
        backend.seeds[engine.samplers.of(request.request_id)] = zlib.crc32(salt.encode())
        for _ in range(n):
            engine.tick()
    while engine.has_work:
        engine.tick()
    names = [request.request_id for request in requests]
    ends = [events.ends(name)[0].stats for name in names]
    return [events.text(name) for name in names], [stats.n_cached for stats in ends]


@cache
def alone(request):
    ((text,), _) = run([request], [0], n_slots=1, n_cells=96, min_prefix=0)
    return text


def ask(i, salt, prompt, max_tokens):
    return Request(
        request_id=f"r{i}", prompt=tuple(prompt), max_tokens=max_tokens, cache_salt=salt, reply_to="me"
    )


asked = st.lists(
    st.tuples(
        st.sampled_from(SALTS),
        st.builds(lambda n, tail: SHARED[:n] + tail, st.integers(20, 39), st.binary(min_size=1, max_size=9)),
        st.integers(1, 20),
        st.integers(0, 6),
    ),
    min_size=2,
    max_size=12,
)


@given(
    asked,
    st.integers(1, 4),
    st.sampled_from([1.0, 0.5]),
    st.sampled_from([1, 8]),
    st.sampled_from([1000, 60, 0]),
    st.booleans(),
)
def test_tenants_share_no_cell(asked, n_slots, room, min_prefix, n_host_cells, copies):
    requests = [ask(i, *one) for i, (*one, _) in enumerate(asked)]
    n_cells = max(int(96 * n_slots * room), 96)
    limits = {"min_prefix": min_prefix, "n_host_cells": n_host_cells, "copies": copies}
    texts, n_cached = run(requests, [n for *_, n in asked], n_slots=n_slots, n_cells=n_cells, **limits)
    assert texts == [alone(request) for request in requests], (
        "who began with a foreign cell says what it says"
    )
    seen = set()
    for request, n in zip(requests, n_cached, strict=True):
        if request.cache_salt is None or request.cache_salt not in seen:
            assert n == 0, "the first of a tenant begins with nothing, and who shares nothing always does"
        seen.add(request.cache_salt)
