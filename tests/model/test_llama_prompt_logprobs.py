"""Prompt logprobs on real llama.cpp: those of an oracle that computes one token at a time."""

import math
import random
from array import array

import numpy as np
import pytest

from cobali_ray.backend.batch import TickBatch
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import GREEDY, Request, SamplingParams
from cobali_ray.engine.engine import Engine
from cobali_ray.errors import BackendError
from cobali_ray.models.registry import resolve
from cobali_ray.testing import EventRecorder, FakeClock

pytestmark = pytest.mark.model


def prompt(seed, n):
    rng = random.Random(seed)
    return tuple(rng.randrange(8, 4000) for _ in range(n))


PROMPTS = [prompt(seed, n) for seed, n in enumerate((150, 40, 1, 2, 77, 300))]


def oracle(backend, tokens):
    """Return the raw distribution behind each token of a prompt, each computed in a pass of its own."""
    rows, batch = [], TickBatch(backend.n_batch)
    for at in range(len(tokens) - 1):
        batch.fill((Span(0, at, 1, sample=True),), [array("i", tokens)])
        backend.forward(batch)
        row = backend._read_logits(1)[0].astype(np.float64)
        rows.append(row - row.max() - math.log(np.exp(row - row.max()).sum()))
    backend.truncate(0, 0)
    return rows


def play(backend, requests, *, chunk=128, target_s=None, n_scored_rows=None):
    """Return what each is told of its prompt, and its text."""
    limits = EngineLimits(
        n_slots=backend.n_slots, n_ctx_slot=backend.n_ctx_slot, n_cells=backend.n_cells, token_budget=256,
        prefill_chunk=chunk, n_scored_rows=n_scored_rows or backend.n_scored_rows, copies=backend.copies,
    )  # fmt: skip
    events = EventRecorder()
    engine = Engine(backend, limits, FakeClock(step_s=0.001), events, entropy=lambda: 0)
    for request in requests:
        engine.submit(request)
        engine.tick()
    while engine.has_work:
        engine.tick()
    assert all(events.ends(r.request_id)[0].error is None for r in requests)
    return {
        r.request_id: (
            [p for e in events.events[r.request_id][:-1] for p in e.prompt],
            events.text(r.request_id),
        )
        for r in requests
    }


def requests(n_top=3, **fields):
    return [
        Request(**{"request_id": str(i), "prompt": one, "max_tokens": 8, "n_prompt_logprobs": n_top} | fields)
        for i, one in enumerate(PROMPTS)
    ]


@pytest.fixture(scope="module")
def trained():
    """A model that has learned something: rounding is not made large by layers of noise."""
    return resolve("builtin:tiny")


@pytest.mark.parametrize(
    ("changes", "each", "mean"),
    [
        pytest.param({}, 0.3, 5e-3, id="reproducible"),
        pytest.param({"flash_attn": "on"}, 1.0, 0.05, id="flash", marks=pytest.mark.thorough),
        pytest.param(
            {"flash_attn": "on", "unified": True}, 1.0, 0.05, id="unified", marks=pytest.mark.thorough
        ),
        pytest.param({"flash_attn": "on", "device_sampling": "on"}, 1.0, 0.05, id="device"),
    ],
)
def test_they_are_those_of_one_token_at_a_time(open_tiny, trained, changes, each, mean):
    """A token alone, and flash attention from chunk to chunk, rounds otherwise: perplexities are the same."""
    backend = open_tiny(path=trained, **changes)
    streams = [
        Request(request_id=f"s{i}", prompt=prompt(99 + i, 20), max_tokens=60, sampling=SamplingParams(seed=i))
        for i in range(2)
    ]
    told = play(backend, [*streams, *requests()], n_scored_rows=50)
    lone = open_tiny(
        path=trained, **{name: one for name, one in changes.items() if name != "device_sampling"}
    )
    for i, tokens in enumerate(PROMPTS):
        first, *others = told[str(i)][0]
        assert (first.token_id, first.logprob) == (tokens[0], None)
        rows = oracle(lone, tokens)
        assert [p.token_id for p in others] == list(tokens[1:])
        for p, row in zip(others, rows, strict=True):
            own = row[p.token_id]
            assert p.logprob == pytest.approx(own, abs=each)
            assert p.top[0][2] == pytest.approx(row.max(), abs=each)
        n = max(len(others), 1)
        known = sum(row[token] for row, token in zip(rows, tokens[1:], strict=True)) / n
        assert sum(p.logprob for p in others) / n == pytest.approx(known, abs=mean)


def test_where_results_are_reproducible_company_changes_nothing(open_tiny):
    backend = open_tiny()
    alone = {}
    for one in requests():
        backend.clear()
        alone |= play(backend, [one])
    backend.clear()
    assert play(backend, requests(), n_scored_rows=33) == alone
    backend.clear()
    plain = play(backend, requests(None))
    assert {name: text for name, (_, text) in plain.items()} == {
        name: text for name, (_, text) in alone.items()
    }


def test_too_many_rows_are_refused_before_llama_cpp_sees_them(open_tiny):
    backend = open_tiny(n_slots=2)
    backend._n_outputs = 5
    batch = TickBatch(backend.n_batch)
    batch.fill((Span(0, 0, 6, sample=6),), [array("i", PROMPTS[0])])
    with pytest.raises(BackendError, match="6 rows"):
        backend.forward(batch)
    batch.fill((Span(0, 0, 5, sample=5),), [array("i", PROMPTS[0])])
    backend.forward(batch)


def test_a_pass_may_be_all_rows(open_tiny):
    backend = open_tiny(n_slots=4)
    told = play(backend, requests(0, max_tokens=0, sampling=GREEDY), chunk=256)
    assert [len(scored) for scored, _ in told.values()] == [len(one) for one in PROMPTS]
