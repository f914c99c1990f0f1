"""States of recurrent and hybrid models and of those with windows: where a slot goes back to, it goes on as
if fresh. Windows are 32 tokens, and cells that left one are given to later tokens.

The oracle is the same text computed in an empty slot, in the same chunks.
"""

from array import array
from dataclasses import replace

import archs
import numpy as np
import pytest

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.cache_need import cache_need
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.core.plan.plan import Span
from cobali_ray.errors import BackendError
from cobali_ray.models.ggufmeta import read_header

pytestmark = pytest.mark.model

FAMILIES = ["hybrid-delta", "hybrid-mamba", "hybrid-convolution", "recurrent"]
WINDOWS = ["window", "window-one-in-four", "window-norms-behind", "window-sinks", "window-shared-kv"]
KINDS = {"split": {}, "unified": {"kv": "unified"}, "q8_0": {"type_k": "q8_0", "type_v": "q8_0"}}
N, MORE, REST = 300, 330, 30
CHUNK = 100


def text(seed, n):
    return np.random.default_rng(seed).integers(0, archs.N_VOCAB - 8, n).tolist()


A, B, C = text(1, N), text(2, MORE), text(3, REST)


class Slots:
    """A backend, and the tokens that each of its slots is given."""

    def __init__(self, path, **settings):
        config = LlamaConfig(path=path, n_slots=3, n_ctx=1024, n_batch=128, n_threads=1, **settings)
        self.backend, self.backend.path = LlamaBackend(config), path
        self.backend.measure_state()
        self.backend.measure_cell()

    def go_on(self, slot_id, start, tokens):
        """Compute tokens behind the first `start` of a slot, in chunks; return the logits of the last."""
        for at in range(0, len(tokens), CHUNK):
            part, n = tokens[at : at + CHUNK], start + at
            batch = TickBatch(128)
            batch.fill((Span(slot_id, n, len(part), True),), [array("i", [0] * n + part)])
            self.backend.forward(batch)
        return self.backend._read_logits(1)[0].copy()

    def fresh(self, *parts):
        """Return the logits behind parts that are computed one by one in an empty slot."""
        self.backend.truncate(2, 0)
        start = 0
        for part in parts:
            logits = self.go_on(2, start, part)
            start += len(part)
        self.backend.truncate(2, 0)
        return logits


@pytest.fixture
def slots(request, models):
    family, kind = request.param
    slots = Slots(models(family), **KINDS[kind])
    slots.kind = kind
    yield slots
    slots.backend.close()


QUICK = {"hybrid-delta", "recurrent", "window", "window-one-in-four"}
SPLIT = [
    pytest.param((family, "split"), id=family, marks=() if family in QUICK else pytest.mark.thorough)
    for family in FAMILIES + WINDOWS
]
OTHERS = [(family, kind) for family in ("hybrid-delta", "window") for kind in ("unified", "q8_0")]


@pytest.mark.parametrize("slots", SPLIT + OTHERS, indirect=True)
def test_a_slot_goes_back_is_copied_and_filled_again(slots):
    backend, noise = slots.backend, {"split": 0.0, "unified": 0.02, "q8_0": 0.0}[slots.kind]
    assert backend.keeps_states
    assert not backend.cuts_tails
    if slots.kind != "q8_0":
        need = cache_need(read_header(backend.path).metadata)
        assert backend.measure_state() == pytest.approx(need.state_bytes, rel=0.05, abs=100)
    expected = slots.fresh(A, C)
    assert np.abs(expected - slots.fresh(A, B, C)).max() > 0.01, "what came before matters"

    slots.go_on(0, 0, A)
    state = backend.save_state(0, N)
    assert len(state) <= backend.measure_state()
    slots.go_on(0, N, B)
    cells = None if backend.states_alone else backend.save(0, [(0, 64), (64, N + MORE)])
    backend.restore_state(0, state, N)
    assert np.abs(slots.go_on(0, N, C) - expected).max() <= noise

    backend.copy(0, 1, N + REST)  # a fork of a slot that went on
    backend.restore_state(1, state, N)
    assert np.abs(slots.go_on(1, N, C) - expected).max() <= noise
    assert np.abs(slots.go_on(0, N + REST, B) - slots.fresh(A, C, B)).max() <= max(noise, 0.01), (
        "the donor goes on"
    )

    backend.truncate(0, 0)
    backend.truncate(1, 0)
    backend.restore(1, cells or [], N, state)
    assert np.abs(slots.go_on(1, N, C) - expected).max() <= noise


def test_the_kind_of_cells_says_whether_their_vectors_were_rotated(models, monkeypatch):
    slots = Slots(models("hybrid-delta"), type_k="q8_0")
    kinds = [slots.backend.cell_kind()]
    for said in ("0", "no", "1"):
        monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", said)
        kinds.append(slots.backend.cell_kind())
    slots.backend.close()
    assert kinds[0] == kinds[1] == kinds[2] != kinds[3]


@pytest.mark.parametrize("slots", SPLIT, indirect=True)
def test_what_cannot_be_gone_back_to_leaves_a_slot_empty_and_others_as_they_were(slots):
    backend = slots.backend
    slots.go_on(0, 0, A)
    slots.go_on(1, 0, B)
    state = backend.save_state(0, N)
    for wrong in (N - 1, N + 1, 0):
        with pytest.raises(BackendError):
            backend.save_state(0, wrong)
    with pytest.raises(BackendError, match="cannot be copied"):
        backend.copy(0, 2, N - 1)
    if not backend.states_alone:
        with pytest.raises(BackendError, match="cannot go back"):
            backend.restore_state(2, state, N)  # llama.cpp takes it, and computes something else
    with pytest.raises(BackendError):
        backend.restore_state(0, state[:100].copy(), N)
    assert np.abs(slots.go_on(0, 0, A) - slots.fresh(A)).max() < 0.02, "it is empty"
    assert np.abs(slots.go_on(1, MORE, C) - slots.fresh(B, C)).max() < 0.02


def test_a_file_that_says_of_its_window_that_there_is_none_has_states(tmp_path, monkeypatch):
    family = archs.FAMILIES["hybrid-delta"]
    without = replace(family, keys=family.keys | {"attention.sliding_window": 0})
    monkeypatch.setitem(archs.FAMILIES, "no window", without)
    slots = Slots(archs.write(tmp_path / "m.gguf", "no window"))
    assert slots.backend.keeps_states
    slots.backend.close()
