"""The engine on real llama.cpp: the same answers whatever runs beside a request, and room made when full.

Reproducible on a CPU: a split cache with flash attention off. Everything else may round differently.
"""

import random

import pytest

from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.engine import Engine
from cobali_ray.testing import EventRecorder, FakeClock

pytestmark = pytest.mark.model

N_CTX, MAX_TOKENS = 1024, 16
LENGTHS = (3, 18, 41, 131, 201, 310, 620, 1, 65, 285, 16, 150)
"""Prompt lengths in tokens; no chunk size below leaves one of them a last piece of a single token."""


def sampling(i):
    kinds = (
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, ignore_eos=True, n_logprobs=2),
        SamplingParams(temperature=0.8, top_k=40, top_p=0.9, seed=i, repetition_penalty=1.1),
        SamplingParams(temperature=0.8, top_p=0.95, seed=i, frequency_penalty=0.3, presence_penalty=0.2),
        SamplingParams(temperature=0.8, min_p=0.02, seed=i, logit_bias=((17, 2.0),), ignore_eos=True),
    )
    return kinds[i % len(kinds)]


def make_requests(n, *, seed=1, max_tokens=MAX_TOKENS, shared=()):
    """Make `n` requests with prompts of random tokens, `shared` in front of each."""
    rng = random.Random(seed)
    return [
        Request(
            request_id=f"r{i}",
            prompt=(*shared, *(rng.randrange(8, 4000) for _ in range(LENGTHS[i % len(LENGTHS)]))),
            max_tokens=max_tokens,
            sampling=sampling(i),
        )
        for i in range(n)
    ]


class Run:
    """All requests through one engine; afterwards their tokens, ends and the ticks' statistics."""

    def __init__(self, path, requests, *, arrive_every=0, check=None, **changes):
        asked = {"n_slots": 16, "chunk": 512, "budget": 528, "min_prefix": 0, "unified": False} | changes
        backend = LlamaBackend(
            LlamaConfig(
                path=path,
                n_slots=asked["n_slots"],
                n_ctx=N_CTX,
                kv_cells=asked.get("n_cells"),
                n_batch=asked["budget"],
                n_threads=asked.get("n_threads", 1),
                kv="unified" if asked["unified"] else "split",
                flash_attn=asked.get("flash_attn", "off"),
                device_sampling=asked.get("device_sampling", "off"),
                **{
                    name: asked[name] for name in ("devices", "n_gpu_layers", "worker_cache") if name in asked
                },
            )
        )
        limits = EngineLimits(
            n_slots=asked["n_slots"],
            n_ctx_slot=backend.n_ctx_slot,
            n_cells=backend.n_cells,
            token_budget=asked["budget"],
            prefill_chunk=asked["chunk"],
            min_prefix=asked["min_prefix"],
            n_host_cells=asked.get("n_host_cells", 0),
            cell_bytes=backend.measure_cell() if "n_host_cells" in asked else 0,
            copies=backend.copies,
            shares=backend.shares,
            dense=backend.dense,
        )
        self.recorder, self.ticks, self.sequences = EventRecorder(), [], {}
        engine = Engine(backend, limits, FakeClock(step_s=0.001), self.recorder)
        engine.scheduler.pacer.model.runs_s = lambda rows: asked.get("pass_s", 0.0) * len(rows)
        waiting, n_rounds = list(requests), 0
        while waiting or engine.has_work:
            while waiting and n_rounds >= arrive_every * len(self.sequences):
                request = waiting.pop(0)
                engine.submit(request)
                self.sequences[request.request_id] = engine.scheduler.sequence(request.request_id)
            self.ticks.append(engine.tick())
            n_rounds += 1
            engine.scheduler.check()
            if check:
                check(engine, backend)
        backend.close()
        self.answers = {i: s.tokens[s.n_prompt :].tolist() for i, s in self.sequences.items()}

    @property
    def n_preempted(self):
        return sum(t.n_preempted for t in self.ticks if t)

    def ends(self):
        return {i: [(e.finish_reason, e.error) for e in self.recorder.ends(i)] for i in self.sequences}

    def logprobs(self, *request_ids):
        events = self.recorder.events
        told = [event for i in request_ids or sorted(events) for event in events[i]]
        return [event.logprobs for event in told if getattr(event, "logprobs", ())]


@pytest.fixture(scope="module")
def requests():
    return make_requests(9)  # one more than slots


@pytest.fixture(scope="module")
def alone(tiny, requests):
    """What each request answers when it is served alone, its prompt computed whole."""
    return Run(tiny, requests, n_slots=1, chunk=N_CTX, budget=N_CTX)


COMPANY = [
    pytest.param(
        {"n_slots": 8, "chunk": 48, "budget": 200, "n_threads": 2},
        id="chunks-of-48-packed-tight-on-two-threads",
    ),
    pytest.param({"n_slots": 3, "arrive_every": 3}, id="arrivals-one-at-a-time", marks=pytest.mark.thorough),
]


@pytest.mark.parametrize("changes", COMPANY)
def test_answers_do_not_depend_on_company(tiny, requests, alone, changes):
    run = Run(tiny, requests, **changes)
    assert run.answers == alone.answers
    assert run.ends() == alone.ends()
    assert {i: run.recorder.text(i) for i in run.answers} == {i: alone.recorder.text(i) for i in run.answers}
    assert len(run.logprobs()) > 20
    assert run.logprobs() == alone.logprobs(), "bit for bit"


def make_long_answers(n, max_tokens=100):
    rng = random.Random(5)
    return [
        Request(
            request_id=f"r{i}",
            prompt=tuple(rng.randrange(8, 4000) for _ in range(90 + i)),
            max_tokens=max_tokens,
            sampling=SamplingParams(temperature=0.0, ignore_eos=True),
        )
        for i in range(n)
    ]


def books_match(engine, backend):
    """Compare what the engine believes of each slot with what llama.cpp holds."""
    lc = backend._lc
    for slot_id, sequence in enumerate(engine.slots.by_slot):
        ours = engine.slots._held[slot_id].n_tokens if sequence is None else sequence.n_computed
        seq_id = engine.slots.seq_ids[slot_id]
        assert backend._seq_ids[slot_id] == seq_id
        assert lc.llama_memory_seq_pos_max(backend._memory, seq_id) + 1 == ours == backend._n_cached[slot_id]


@pytest.mark.parametrize("flash_attn", [pytest.param("off", marks=pytest.mark.thorough), "on"])
def test_preempted_requests_go_on_from_host_memory(tiny, flash_attn):
    requests = make_long_answers(8)
    shape = {"n_slots": 8, "chunk": 64, "budget": 72, "min_prefix": 16, "flash_attn": flash_attn}
    tight = {"unified": True, "n_cells": 1024, "check": books_match}
    kept = Run(tiny, requests, **shape, **tight, n_host_cells=10_000)
    lost = Run(tiny, requests, **shape, **tight)
    n_kept, n_lost = (sum(t.n_tokens for t in run.ticks if t) for run in (kept, lost))
    n_whole = sum(r.n_prompt + r.max_tokens - 1 for r in requests)
    assert kept.n_preempted >= 3
    for run in (kept, lost):
        assert run.ends() == {r.request_id: [("length", None)] for r in requests}
        assert run.n_preempted == sum(s.n_preempted for s in run.sequences.values())
    assert n_kept <= 1.05 * n_whole < n_lost
    assert sum(t.n_host_hits for t in kept.ticks if t) >= 3


def test_the_books_match_llama_cpp_through_cancels_in_a_split_cache(tiny, monkeypatch):
    victims, swaps, swap = iter(["r1", "r7", "r3", "r11", "r12"]), [], LlamaBackend.swap
    monkeypatch.setattr(LlamaBackend, "swap", lambda *pair: swaps.append(pair) or swap(*pair))

    def cancel_one(engine, backend):
        if len(engine.slots.running) > 2:
            engine.cancel(next(victims, ""))
        books_match(engine, backend)

    run = Run(
        tiny,
        make_requests(14, seed=8, shared=range(100, 180)),
        n_slots=6,
        min_prefix=32,
        pass_s=1.0,
        check=cancel_one,
    )
    assert swaps, "gaps were closed"
    ends = run.ends()
    assert all(len(of) == 1 for of in ends.values())
    assert sum(of[0][1] is not None for of in ends.values()) == 5


def one_token_answer(request_id):
    rng = random.Random(38)
    prompt = tuple(rng.randrange(8, 4000) for _ in range(33))
    sampling = SamplingParams(temperature=0.0, n_logprobs=0)
    return Request(request_id=request_id, prompt=prompt, max_tokens=1, sampling=sampling)


def test_a_prompt_is_never_left_with_one_token(tiny):
    chunked = Run(tiny, [one_token_answer("a")], n_slots=1, chunk=32)
    whole = Run(tiny, [one_token_answer("a")], n_slots=1, chunk=N_CTX, budget=N_CTX)
    assert chunked.logprobs() == whole.logprobs() != []


def test_prefix_reuse_leaves_two_tokens_to_compute(tiny):
    run = Run(tiny, [one_token_answer("first"), one_token_answer("again")], n_slots=1, min_prefix=16)
    assert run.logprobs("again") == run.logprobs("first") != []
