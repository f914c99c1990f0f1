"""Device sampling on real llama.cpp, with the CPU as the device: the same tokens as from whole rows."""

import random
from array import array

import numpy as np
import pytest
import structlog
from test_llama_engine import Run, make_requests

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.device_candidates import N_CANDIDATES, Attachment, DeviceCandidates
from cobali_ray.backend.sampling import RowSampler
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.request import GREEDY, Request, SamplingParams
from cobali_ray.engine.opening import open_backend
from cobali_ray.settings import read_settings

pytestmark = pytest.mark.model

N_VOCAB = 4096
TOP = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, seed=3)
WHOLE = SamplingParams(temperature=1.0, seed=3)


def prompt(seed, length):
    rng = random.Random(seed)
    return array("i", [rng.randrange(8, 4000) for _ in range(length)])


class Pair:
    """The same model twice: once the device picks the candidates, once all rows are copied."""

    def __init__(self, open_tiny, **changes):
        asked = {"flash_attn": "on"} | changes
        self.device = open_tiny(device_sampling="on", **asked)
        self.host = open_tiny(device_sampling="off", **asked)
        self.tokens = [prompt(seed, 300) for seed in range(4)]
        self.batch = TickBatch(256)
        self.rows = {}

    def expect(self, params, *slot_ids):
        for slot_id in slot_ids:
            pair = []
            for backend in (self.device, self.host):
                row = RowSampler(params, (), end_tokens=backend.end_tokens, n_vocab=N_VOCAB)
                backend.expect(slot_id, row)
                pair.append(row)
            self.rows[slot_id] = pair

    def step(self, *spans):
        """Compute the spans twice; return the host's whole rows."""
        spans = [Span(*span) for span in spans]
        self.batch.fill(tuple(spans), [self.tokens[span.slot_id] for span in spans])
        for backend in (self.device, self.host):
            backend.forward(self.batch)
        n_rows = sum(span.sample for span in spans)
        return self.host._read_logits(n_rows).copy() if n_rows else None

    def sample(self, *slot_ids):
        """Sample the rows of these slots; return the tokens, which both ways agree about."""
        ours, theirs = (
            backend.sample([self.rows[slot_id][i] for slot_id in slot_ids])
            for i, backend in enumerate((self.device, self.host))
        )
        assert ours.tokens == theirs.tokens
        assert ours.failed == theirs.failed == {}
        return ours.tokens

    @property
    def attached(self):
        return self.device._device.attached


TICKS = {
    "prompts-of-unlike-length": [(0, 0, 40, True), (1, 0, 7, True), (3, 0, 19, True)],
    "one-slot": [(2, 0, 5, True)],
    "some-give-no-row": [(0, 0, 40, False), (1, 0, 7, True), (2, 0, 2, False), (3, 0, 9, True)],
}


@pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])
@pytest.mark.parametrize("spans", TICKS.values(), ids=TICKS.keys())
def test_candidates_are_the_likeliest_tokens_of_each_row(open_tiny, spans, unified):
    pair = Pair(open_tiny, unified=unified)
    pair.expect(GREEDY, 0, 1, 2, 3)
    pair.step((0, 0, 3, False))
    pair.device.truncate(0, 0)
    pair.host.truncate(0, 0)
    for tick in (spans, [(slot_id, length, 1, True) for slot_id, _, length, _ in spans]):
        rows = pair.step(*tick)
        values, ids = pair.device._device.read(pair.device._context, len(rows))
        assert values.shape == ids.shape == (len(rows), N_CANDIDATES)
        for row, row_values, row_ids in zip(rows, values, ids, strict=True):
            assert sorted(row_ids.tolist()) == sorted(np.argsort(-row, kind="stable")[:N_CANDIDATES].tolist())
            assert np.array_equal(row[row_ids], row_values)


def test_a_row_needed_whole_detaches_the_chains_and_quiet_brings_them_back(open_tiny):
    pair = Pair(open_tiny)
    pair.device._device._attachment = Attachment(patience=8)
    pair.expect(GREEDY, 0)
    pair.expect(TOP, 1)
    pair.step((0, 0, 10, True), (1, 0, 4, True))
    pair.sample(0, 1)
    assert pair.attached
    pair.expect(WHOLE, 3)
    pair.step((0, 10, 1, True), (1, 4, 1, True), (3, 0, 30, False))
    pair.sample(0, 1)
    assert pair.attached, "a chunk that gives no row needs none whole"
    pair.step((0, 11, 1, True), (1, 5, 1, True), (3, 30, 5, True))
    pair.sample(0, 1, 3)
    assert not pair.attached
    pair.step((0, 12, 1, True), (1, 6, 1, True), (3, 35, 1, True))
    pair.sample(0, 1, 3)
    states = []
    for at in range(7, 37):
        pair.step((1, at, 1, True))
        pair.sample(1)
        states.append(pair.attached)
    assert states == [False] * 16 + [True] * 14, "twice as patient, because it came early"
    rows = pair.step((0, 13, 1, True), (1, 37, 1, True))
    values, ids = pair.device._device.read(pair.device._context, 2)
    assert np.array_equal(np.take_along_axis(rows, ids, axis=1), values), "new chains pick as the first did"


def test_slots_nobody_spoke_for_give_whole_rows(open_tiny):
    pair = Pair(open_tiny)
    assert np.array_equal(pair.step((0, 0, 9, True)), pair.device._read_logits(1))


def test_the_reproducible_configuration_and_a_cpu_by_itself_do_without(open_tiny):
    assert open_tiny(device_sampling="on", flash_attn="off")._device is None
    assert open_tiny(device_sampling="auto", flash_attn="auto", n_slots=32)._device is None


def test_the_setting_reaches_the_backend(tiny):
    asked = {"n_slots": 2, "n_ctx": 256, "threads_wait": "passive", "n_gpu_layers": 0}
    for value, picks in (("on", True), ("off", False)):
        backend = open_backend(read_settings({**asked, "device_sampling": value}), tiny)
        assert (backend._device is not None) is picks
        backend.close()


def test_a_device_without_top_k_is_noticed(open_tiny, monkeypatch):
    def unsupported(self):
        # No device has it: the chain passes whole rows on, as one of top_k would on a device without that.
        chain = self._lc.llama_sampler_chain_init(self._lc.llama_sampler_chain_default_params())
        self._lc.llama_sampler_chain_add(chain, self._lc.llama_sampler_init_typical(0.5, 1))
        return chain

    monkeypatch.setattr(DeviceCandidates, "_new_chain", unsupported)
    with structlog.testing.capture_logs() as logs:
        pair = Pair(open_tiny)
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["no_device_sampling"]
    assert pair.device._device is None
    pair.expect(TOP, 0)
    assert np.array_equal(pair.step((0, 0, 20, True)), pair.device._read_logits(1))
    pair.sample(0)


def candidate_requests(n):
    kinds = (
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, ignore_eos=True),
        SamplingParams(temperature=0.9, top_k=40, top_p=0.9, seed=1, min_tokens=5),
        SamplingParams(temperature=1.3, top_k=100, typical_p=0.9, min_p=0.01, seed=2, ignore_eos=True),
        SamplingParams(temperature=0.0, logit_bias=((17, -100.0), (33, -1.0)), min_tokens=3),
    )
    return [
        Request(
            request_id=f"r{i}",
            prompt=tuple(prompt(i, 3 + 37 * i % 200)),
            max_tokens=24,
            sampling=kinds[i % len(kinds)],
        )
        for i in range(n)
    ]


def test_requests_of_every_kind_mix(tiny):
    states = []
    requests = candidate_requests(8) + [
        Request(
            request_id=f"m{request.request_id}",
            prompt=request.prompt[:40],
            max_tokens=request.max_tokens,
            sampling=request.sampling,
        )
        for request in make_requests(12)
    ]
    asked = {"n_slots": 6, "chunk": 64, "budget": 72, "flash_attn": "on", "arrive_every": 2}

    def note(_engine, backend):
        states.append(backend._device.attached)

    on_device = Run(tiny, requests, device_sampling="on", check=note, **asked)
    on_host = Run(tiny, requests, device_sampling="off", **asked)
    assert on_device.answers == on_host.answers
    assert set(states) == {True, False}
