"""Candidates picked by a device against the whole rows of the same passes."""

import random
from array import array
from contextlib import closing

import numpy as np
import pytest

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.device_candidates import N_CANDIDATES
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.backend.sampling import RowSampler
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.request import GREEDY, SamplingParams
from cobali_ray.models.registry import resolve

pytestmark = pytest.mark.gpu

N_SLOTS, N_TICKS = 32, 20
KINDS = (GREEDY, SamplingParams(temperature=0.8, top_k=40, top_p=0.95, seed=1))


class Ticks:
    """The same tokens computed tick by tick, on a model that is opened for this alone."""

    def __init__(self, where, device_sampling):
        self.backend = LlamaBackend(
            LlamaConfig(
                path=resolve("builtin:synthetic-tiny"), n_slots=N_SLOTS, n_ctx=256, n_batch=512, n_threads=2,
                device_sampling=device_sampling, **where,
            )
        )  # fmt: skip
        asked, backend = [KINDS[i % len(KINDS)] for i in range(N_SLOTS)], self.backend
        self.rows = [RowSampler(p, (), end_tokens=frozenset(), n_vocab=backend.n_vocab) for p in asked]
        for slot_id, row in enumerate(self.rows):
            backend.expect(slot_id, row)
        rng = random.Random(1)
        self.known = [array("i", [rng.randrange(8, 4000) for _ in range(2 + i % 12)]) for i in range(N_SLOTS)]
        self.spans = tuple(Span(i, 0, len(tokens), sample=True) for i, tokens in enumerate(self.known))
        self.batch = TickBatch(512)

    def forward(self):
        self.batch.fill(self.spans, self.known)
        self.backend.forward(self.batch)

    def sample(self):
        """Draw each row's token, which the next tick computes."""
        tokens = self.backend.sample(self.rows).tokens
        for sequence, token in zip(self.known, tokens, strict=True):
            sequence.append(token)
        self.spans = tuple(Span(i, len(tokens) - 1, 1, sample=True) for i, tokens in enumerate(self.known))
        return tokens


def test_a_device_gives_the_likeliest_tokens_and_the_same_answers(where):
    picked = []
    ticks = Ticks(where, "auto")
    with closing(ticks.backend) as backend:
        for _ in range(N_TICKS):
            ticks.forward()
            values, ids = backend._device.read(backend._context, N_SLOTS)
            picked.append((values.copy(), ids.copy(), ticks.sample()))
    ticks = Ticks(where, "off")
    with closing(ticks.backend) as backend:  # after it, as a worker serves one engine at a time
        assert backend._device is None
        for values, ids, tokens in picked:
            ticks.forward()
            whole = backend._read_logits(N_SLOTS).copy()
            assert np.allclose(np.take_along_axis(whole, ids, axis=1), values, rtol=1e-5, atol=1e-5)
            least = np.sort(whole, axis=1)[:, -N_CANDIDATES]
            assert (values.min(axis=1) >= least - 1e-5).all()
            assert ticks.sample() == tokens
