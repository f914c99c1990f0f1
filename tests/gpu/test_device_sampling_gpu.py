"""Candidates picked by a GPU against the whole rows of the same passes."""

import random
from array import array

import numpy as np
import pytest

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.device_candidates import N_CANDIDATES
from cobali_ray.backend.endpoint import is_endpoint
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.backend.sampling import RowSampler
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.request import GREEDY, SamplingParams
from cobali_ray.models.registry import resolve

pytestmark = pytest.mark.gpu

N_SLOTS = 32
KINDS = (GREEDY, SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1))


@pytest.fixture(scope="module")
def backends(devices):
    """Open the model twice: the device picks, all rows are copied."""
    if any(map(is_endpoint, devices)):
        pytest.skip("a worker serves one engine, and this needs two; tests/model has it on two workers")
    path = resolve("builtin:synthetic-tiny")
    pair = [
        LlamaBackend(
            LlamaConfig(
                path=path,
                n_slots=N_SLOTS,
                n_ctx=256,
                n_batch=512,
                n_threads=2,
                n_gpu_layers=-1,
                devices=devices,
                device_sampling=asked,
            )
        )
        for asked in ("auto", "off")
    ]
    yield pair
    for backend in pair:
        backend.close()


def test_a_gpu_picks_by_itself(backends):
    device, host = backends
    assert device._device is not None
    assert host._device is None


def test_a_gpu_gives_the_likeliest_tokens_and_the_same_answers(backends):
    device, host = backends
    rng = random.Random(1)
    known = [array("i", [rng.randrange(8, 4000) for _ in range(2 + i % 12)]) for i in range(N_SLOTS)]
    made = []
    for backend in backends:
        asked = [KINDS[i % len(KINDS)] for i in range(N_SLOTS)]
        made.append([RowSampler(p, (), end_tokens=frozenset(), n_vocab=backend.n_vocab) for p in asked])
        for slot_id, row in enumerate(made[-1]):
            backend.expect(slot_id, row)
    batch = TickBatch(512)
    spans = tuple(Span(i, 0, len(tokens), sample=True) for i, tokens in enumerate(known))
    for _ in range(20):
        batch.fill(spans, known)
        device.forward(batch)
        host.forward(batch)
        whole = host._read_logits(N_SLOTS).copy()
        values, ids = device._device.read(device._context, N_SLOTS)
        assert np.allclose(np.take_along_axis(whole, ids, axis=1), values, rtol=1e-5, atol=1e-5)
        least = np.sort(whole, axis=1)[:, -N_CANDIDATES]
        assert (values.min(axis=1) >= least - 1e-5).all()
        tokens = device.sample(made[0]).tokens
        assert tokens == host.sample(made[1]).tokens
        for sequence, token in zip(known, tokens, strict=True):
            sequence.append(token)
        spans = tuple(Span(i, len(sequence) - 1, 1, sample=True) for i, sequence in enumerate(known))
