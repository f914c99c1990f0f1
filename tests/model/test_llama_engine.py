"""The engine on real llama.cpp: the same answers whatever runs beside a request, and room made when full.

Reproducible on a CPU: a split cache with flash attention off. Everything else may round differently.
"""

import hashlib
import random
from dataclasses import replace
from itertools import starmap

import pytest

from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.block_files import BlockFiles
from cobali_ray.engine.disk import Disk
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
                type_k=asked.get("type_k", "f16"),
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
        clock = FakeClock(step_s=0.001)
        disk = None
        if (folder := asked.get("folder")) is not None:
            kind = hashlib.sha256(backend.cell_kind().encode()).hexdigest()[:32]
            each = {"cell_bytes": limits.cell_bytes, "block": limits.host_block}
            disk = Disk(lambda: BlockFiles(folder, kind, **each, most_bytes=1 << 30), clock)
        engine = Engine(backend, limits, clock, self.recorder, disk=disk)
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
        if asked.get("killed"):
            for _ in range(2 * limits.n_slots):
                clock.advance(1.0)
                assert engine.tick() is None
                engine.take_disk_events()
        else:
            engine.flush()
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


def test_answers_do_not_depend_on_prefix_reuse(tiny):
    shared = tuple(random.Random(9).randrange(8, 4000) for _ in range(200))
    requests = [r for r in make_requests(6, seed=2, shared=shared) if r.n_prompt > len(shared) + 1]
    cold = Run(tiny, requests, n_slots=1, chunk=N_CTX, budget=N_CTX)
    warm = Run(tiny, requests, n_slots=3, min_prefix=32)
    assert sum(s.n_cached for s in warm.sequences.values()) >= 200 * (len(requests) - 3)
    assert warm.answers == cold.answers


def test_a_seed_repeats_and_another_does_not(tiny):
    def ask(request_id, seed):
        drawn = SamplingParams(temperature=1.0, seed=seed, ignore_eos=True)
        return Request(request_id=request_id, prompt=(5, 6, 7), max_tokens=MAX_TOKENS, sampling=drawn)

    answers = Run(tiny, starmap(ask, [("a", 1), ("b", 1), ("c", 2)])).answers
    assert answers["a"] == answers["b"] != answers["c"]


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


def test_answers_from_host_memory_are_those_that_were_computed(tiny):
    """In the reproducible configuration, to the last bit: what comes back is what was there."""
    requests = make_long_answers(4, max_tokens=20)
    again = [replace(r, request_id=f"again {r.request_id}") for r in requests]
    shape = {"n_slots": 2, "min_prefix": 16, "arrive_every": 60}
    kept = Run(tiny, [*requests, *again], **shape, n_host_cells=10_000, check=books_match)
    computed = Run(tiny, [*requests, *again], **shape)
    assert kept.answers == computed.answers
    n_cached = [s.n_cached for i, s in kept.sequences.items() if i.startswith("again")]
    assert min(n_cached) >= 64
    assert sum(t.n_host_hits for t in kept.ticks if t) >= 2


@pytest.mark.parametrize(
    ("flash_attn", "unified", "killed"),
    [
        pytest.param("off", False, False, marks=pytest.mark.thorough),
        ("off", False, True),
        pytest.param("on", False, False, marks=pytest.mark.thorough),
        ("on", True, False),
    ],
)
def test_answers_from_disk_are_those_that_were_computed(tiny, tmp_path, flash_attn, unified, killed):
    """By another engine with another number of slots; in the reproducible configuration to the last bit."""
    requests = [r for r in make_requests(7, seed=3) if r.n_prompt > 100]
    shape = {"flash_attn": flash_attn, "unified": unified, "min_prefix": 16}
    kept = {"n_host_cells": 10_000, "folder": tmp_path, "check": books_match}
    Run(tiny, requests, **shape, **kept, n_slots=3, killed=killed)
    again = Run(tiny, requests, **shape, **kept, n_slots=8)
    computed = Run(tiny, requests, **shape, n_slots=8)
    assert [s.n_cached for s in again.sequences.values()] == [
        (s.n_prompt - 2) // 64 * 64 for s in again.sequences.values()
    ], "whole blocks"
    assert sum(t.n_disk_hits for t in again.ticks if t) == len(requests)
    assert again.ends() == computed.ends()
    if flash_attn == "off":
        assert len(computed.logprobs()) > 5
        assert again.answers == computed.answers
        assert again.logprobs() == computed.logprobs()


def test_what_another_kind_of_engine_wrote_is_not_read(tiny, tmp_path):
    requests = [r for r in make_requests(5, seed=3) if r.n_prompt > 100]
    kept = {"n_host_cells": 10_000, "folder": tmp_path, "min_prefix": 16}
    Run(tiny, requests, **kept)
    assert len(list(tmp_path.glob("*/*.kv"))) > 4
    for changes in ({"flash_attn": "on"}, {"unified": True}, {"type_k": "q8_0"}):
        other = Run(tiny, requests, **kept, **changes)
        assert {s.n_cached for s in other.sequences.values()} == {0}, changes


def test_the_books_match_llama_cpp_through_cancels_in_a_split_cache(tiny):
    victims = iter(["r1", "r7", "r3", "r11", "r12"])

    def cancel_one(engine, backend):
        if len(engine.slots.running) > 2:
            engine.cancel(next(victims, ""))
        books_match(engine, backend)

    run = Run(tiny, make_requests(14, seed=8), n_slots=6, min_prefix=32, check=cancel_one)
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


@pytest.mark.parametrize("flash_attn", ["off", pytest.param("on", marks=pytest.mark.thorough)])
def test_a_slot_taken_out_goes_on_in_another_engine_as_where_it_was_computed(tiny, flash_attn):
    (first,) = make_requests(1, shared=range(100, 400))

    def opened(n_slots):
        config = LlamaConfig(
            path=tiny, n_slots=n_slots, n_ctx=N_CTX, n_batch=512, n_threads=1, flash_attn=flash_attn
        )
        backend = LlamaBackend(config)
        limits = EngineLimits(
            n_slots=n_slots, n_ctx_slot=N_CTX, n_cells=backend.n_cells, token_budget=512, prefill_chunk=512,
            cell_bytes=backend.measure_cell(), copies=True,
        )  # fmt: skip
        return Engine(backend, limits, FakeClock(step_s=0.001), EventRecorder())

    def run(engine, request):
        sequence = engine.submit(request)
        while engine.has_work:
            engine.tick()
        return sequence

    engines = here, there = opened(4), opened(2)
    tokens = run(here, first).tokens
    kept = here.idle_slots.take_out(0)
    n_held, (cells,) = len(kept.tokens), kept.cells
    assert n_held == len(tokens) - 1
    assert cells.nbytes == n_held * here.limits.cell_bytes
    assert here.backend.cell_kind() == there.backend.cell_kind()
    there.idle_slots.put_in(1, kept)
    there.scheduler.check()
    more = replace(first, request_id="more", prompt=(*tokens, *range(50, 80)))
    brought, stayed = run(there, more), run(here, more)
    assert brought.n_cached == stayed.n_cached == n_held
    assert brought.tokens == stayed.tokens
    for engine in engines:
        engine.close()
