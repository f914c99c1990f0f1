"""Who may be sampled from candidates, when the device picks them, and that its chains are held right."""

from __future__ import annotations

import ctypes
import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.device_candidates import N_CANDIDATES, PATIENCE, Attachment, DeviceCandidates
from cobali_ray.backend.row_sampler import RowSampler
from cobali_ray.backend.sampling_top import sample_candidates
from cobali_ray.core.request.request import SamplingParams
from cobali_ray.errors import InvariantError

N_VOCAB = 1000
INF, NAN = math.inf, math.nan


def sampler(*, end=(), n_vocab=N_VOCAB, **params):
    asked = SamplingParams(**{"temperature": 0.0} | params)
    return RowSampler(asked, (1, 2), end_tokens=frozenset(end), n_vocab=n_vocab, entropy=lambda: 5)


@pytest.mark.parametrize(
    ("params", "n", "enough"),
    [
        pytest.param({}, 2, True, id="greedy-takes-one-and-one-to-spare"),
        pytest.param({}, 1, False, id="greedy-without-one-to-spare"),
        pytest.param({"top_k": 500}, 2, True, id="greedy-whatever-top-k"),
        pytest.param({"temperature": 1, "top_k": 40}, 41, True, id="top-k"),
        pytest.param({"temperature": 1, "top_k": 40}, 40, False, id="top-k-without-one-to-spare"),
        pytest.param({"temperature": 1, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.9}, 41, True),
        pytest.param({"temperature": 1}, 999, False, id="nothing-cut-off"),
        pytest.param({"temperature": 1, "top_p": 0.1}, 999, False, id="top-p-alone-needs-the-row's-mass"),
        pytest.param({"temperature": 1, "min_p": 0.9}, 999, False, id="min-p-alone-has-no-fixed-number"),
        pytest.param({"n_logprobs": 0}, 999, False, id="logprobs-need-the-row's-mass"),
        pytest.param({"ignore_eos": True, "end": (7, 8)}, 4, True, id="bans-take-two-out"),
        pytest.param({"ignore_eos": True, "end": (7, 8)}, 3, False, id="bans-need-two-more"),
        pytest.param({"min_tokens": 1, "end": (7,)}, 3, True, id="min-tokens-ban-for-a-while"),
        pytest.param({"min_tokens": 1, "end": (7,)}, 2, False, id="min-tokens-need-one-more"),
        pytest.param({"logit_bias": ((3, -5.0), (4, 0.0))}, 4, True, id="bias-that-lowers-two"),
        pytest.param({"logit_bias": ((3, -5.0), (4, 0.0))}, 3, False, id="bias-that-lowers-needs-two-more"),
        pytest.param({"logit_bias": ((3, 0.1),)}, 999, False, id="bias-that-lifts"),
        pytest.param({"logit_bias": ((3, 2.0), (3, -1.0))}, 999, False, id="biases-that-lift-in-sum"),
        pytest.param({"logit_bias": ((3, 2.0), (3, -3.0))}, 3, True, id="biases-that-lower-in-sum"),
        pytest.param({"repetition_penalty": 1.1}, 999, False, id="penalties"),
        pytest.param({"stop_token_ids": (3, 4)}, 2, True, id="stop-tokens-that-never-wait"),
        pytest.param({"stop_token_ids": (3, 4), "min_tokens": 1}, 4, True, id="stop-tokens-that-wait"),
        pytest.param({"stop_token_ids": (3, 4), "min_tokens": 1}, 3, False, id="stop-tokens-need-two-more"),
        pytest.param({"bad_words": ((3,), (3, 4), (5, 4))}, 4, True, id="bad-words-end-in-two-tokens"),
        pytest.param({"bad_words": ((3,), (3, 4), (5, 4))}, 3, False, id="bad-words-need-two-more"),
        pytest.param({"allowed_token_ids": (1, 2)}, 999, False, id="allowed-tokens-may-be-anywhere"),
        pytest.param({"top_n_sigma": 1.0}, 999, False, id="deviations-are-of-the-row"),
        pytest.param({"presence_penalty": -0.5}, 999, False, id="penalties-that-lift"),
        pytest.param({"temperature": 1, "top_k": 15, "n_vocab": 16}, 16, True, id="all-tokens-are-at-hand"),
    ],
)
def test_candidates_suffice_where_they_decide(params, n, enough):
    assert sampler(**params).suffices(n) is enough


def draw(values, ids, *made):
    return sample_candidates(np.array(values, np.float32), np.array(ids, np.int32), made)


def test_rows_that_need_more_are_refused():
    with pytest.raises(InvariantError, match="suffice"):
        draw([[1.0, 2.0, 0.0]], [[4, 5, 6]], sampler(n_logprobs=1))
    with pytest.raises(InvariantError, match="1 rows"):
        draw([[1.0, 2.0, 0.0]] * 2, [[4, 5, 6]] * 2, sampler())
    assert draw(np.zeros((0, 3)), np.zeros((0, 3))).tokens == []


def config(**changes):
    asked = {"n_slots": 32, "n_ctx": 64, "n_batch": 64, "n_threads": 1, "n_gpu_layers": -1}
    return LlamaConfig(path=Path("m.gguf"), **asked | changes)


@pytest.mark.parametrize(
    ("changes", "offloads", "picks"),
    [
        pytest.param({}, True, True, id="all-on-a-gpu"),
        pytest.param({}, False, False, id="no-gpu"),
        pytest.param({"n_gpu_layers": 0}, True, False, id="gpu-not-used"),
        pytest.param({"n_gpu_layers": 24}, True, False, id="output-layer-not-on-the-gpu"),
        pytest.param({"n_gpu_layers": 25}, True, True, id="layer-by-layer-all"),
        pytest.param({"n_slots": 31}, True, False, id="few-slots"),
        pytest.param({"device_sampling": "off"}, True, False, id="off"),
        pytest.param(
            {"device_sampling": "on", "n_slots": 1, "n_gpu_layers": 0}, False, True, id="on-on-a-cpu"
        ),
        pytest.param(
            {"device_sampling": "on", "n_gpu_layers": 0, "flash_attn": "off"}, False, False, id="reproducible"
        ),
    ],
)
def test_where_the_device_picks(changes, offloads, picks):
    assert config(**changes).picks_on_device(offloads=offloads, n_layers=24) is picks


def passes(attachment, needs):
    return [attachment.decide(whole=whole) for whole in needs]


def test_the_first_whole_row_detaches_and_quiet_brings_the_chains_back():
    attachment = Attachment()
    assert passes(attachment, [False] * 3) == [True] * 3
    assert passes(attachment, [True, False, True, False]) == [False] * 4
    detached = passes(attachment, [False] * 3 * PATIENCE).index(True)
    assert PATIENCE - 1 <= detached <= 2 * PATIENCE + 1


def test_a_mixed_load_stops_changing():
    attachment, states = Attachment(), []
    for _ in range(100):
        states += passes(attachment, [True] + [False] * 3 * PATIENCE)
    changes = sum(one is not other for one, other in itertools.pairwise(states))
    assert changes <= 6
    assert passes(attachment, [False] * (1 << 17))[-1], "and starts again once whole rows are history"
    calm = passes(attachment, [False] * 2 * PATIENCE + [True] + [False] * (PATIENCE + 1))
    assert calm[-2:] == [False, True], "patience was regained"


class Library:
    """Keeps the books of chains: who made, attached and freed them, and never twice."""

    def __init__(self):
        self.lc = self
        self.live, self.attached, self.spent = set(), {}, set()
        self.llama_sampler_seq_config = type(
            "Config",
            (ctypes.Structure,),
            {"_fields_": [("seq_id", ctypes.c_int), ("sampler", ctypes.c_void_p)]},
        )

    def llama_sampler_chain_default_params(self):
        return None

    def llama_sampler_init_top_k(self, k):
        return k

    def llama_sampler_chain_init(self, _):
        address = 4096 + 16 * (len(self.live) + len(self.spent))
        self.live.add(address)
        return address

    def llama_sampler_chain_add(self, chain, k):
        assert chain in self.live
        assert k == N_CANDIDATES

    def llama_set_sampler(self, context, slot_id, chain):
        assert context == "context"
        if chain is None:
            self.spent.add(self.attached.pop(slot_id))
            return
        assert chain in self.live - self.spent, "a chain is attached once"
        self.attached[slot_id] = chain

    def llama_sampler_free(self, chain):
        assert chain not in self.attached.values(), "the context borrows it"
        self.live.remove(chain)


def test_chains_are_attached_once_and_freed_once():
    library, params = Library(), SimpleNamespace()
    device = DeviceCandidates(library, n_slots=3, n_vocab=N_VOCAB)
    device.configure(params)
    library.attached = {c.seq_id: c.sampler for c in params.samplers[: params.n_samplers]}
    first = set(library.attached.values())
    assert first == library.live
    assert len(first) == 3
    for slot_id in range(3):
        device.expect(slot_id, sampler())
    device.prepare("context", [0, 1, 2])
    assert device.attached
    device.expect(1, sampler(n_logprobs=2))
    device.prepare("context", [])  # a pass without rows
    device.prepare("context", [0, 2])
    assert device.attached, "slot 1 gives no row yet"
    device.prepare("context", [0, 1])
    assert not device.attached
    assert library.attached == {}
    for _ in range(3 * PATIENCE):
        device.prepare("context", [0, 2])
    assert device.attached
    assert set(library.attached) == {0, 1, 2}
    assert first & library.live == set()
    library.attached.clear()  # the context is freed
    device.close()
    device.close()
    assert library.live == set()


def test_a_grammar_that_begins_to_hold_needs_whole_rows_from_then_on():
    library = Library()
    device = DeviceCandidates(library, n_slots=2, n_vocab=N_VOCAB)
    library.attached = dict(enumerate(sorted(library.live)))
    rows = [sampler(), sampler()]
    rows[1].matcher = SimpleNamespace(holds=False)
    for slot_id, row in enumerate(rows):
        device.expect(slot_id, row)
    device.prepare("context", [0, 1])
    assert device.attached
    rows[1].matcher.holds = True
    device.prepare("context", [0])
    assert device.attached, "slot 1 gives no row"
    device.prepare("context", [0, 1])
    assert not device.attached
    device.expect(1, sampler())
    for _ in range(3 * PATIENCE):
        device.prepare("context", [0, 1])
    assert device.attached, "its slot is another's"
