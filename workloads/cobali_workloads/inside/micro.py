"""What single steps of a tick cost on this machine, one timed call each."""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from cobali_ray.actors.wire import encode
from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.pieces import Pieces
from cobali_ray.backend.sampling import RowSampler, sample_rows
from cobali_ray.backend.sampling_top import sample_candidates
from cobali_ray.core.messages import Compute, Emit, Emitted, Sampled, Submitted, TickBegun, TickEnded
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.events import Delta, End, RequestStats
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import GREEDY, Request, SamplingParams
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.core.request.stopping import TextStream
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.core.views.stats import TickStats
from cobali_ray.engine.emit import Emitter
from cobali_ray.telemetry.collector import Collector
from cobali_ray.telemetry.exposition import EngineMetrics, render_all
from cobali_ray.telemetry.names import ONLY_ENGINE

PIECES = (
    b"The ",
    "café".encode()[:4],
    "café".encode()[4:],
    "日".encode()[:2],
    "日".encode()[2:],
    b" x",
)
N_STREAMS = 128
TOP_K = SamplingParams(top_k=40, top_p=0.95, temperature=0.8, seed=1)


class Step(NamedTuple):
    """One thing to time. `per` is what one call does so many of: the cost is shown per piece."""

    name: str
    call: Callable[[], object]
    per: int = 1
    reference_us: str = "-"
    """Measured elsewhere: 2-core x86 without GPU, T4 / T152 are vocabularies of 4,096 / 151,936 tokens."""
    reset: Callable[[], object] | None = None
    """Run before each call and not timed."""


class Cost(NamedTuple):
    """Microseconds per piece."""

    p50_us: float
    p90_us: float
    n: int


def time_step(step: Step, *, seconds: float, n_least: int = 5, n_most: int = 20_000) -> Cost:
    """Time single calls for about `seconds`, after two to warm up."""
    times: list[float] = []
    for _ in range(2):
        if step.reset is not None:
            step.reset()
        step.call()
    spent, now, call, reset = 0.0, time.perf_counter, step.call, step.reset
    while len(times) < n_least or (spent < seconds and len(times) < n_most):
        if reset is not None:
            reset()
        began = now()
        call()
        took = now() - began
        times.append(took)
        spent += took
    per_us = [1e6 * t / step.per for t in times]
    return Cost(statistics.median(per_us), float(np.quantile(per_us, 0.9)), len(times))


def scheduling_steps() -> Iterator[Step]:
    """Yield what needs no model: planning, laying out, emitting, encoding, counting."""
    for n_slots in (16, 128):
        yield Step(f"tell the scheduler of a tick of {n_slots} streams", _ticks_of(n_slots))
    batch = TickBatch(1024)
    decode = tuple(Span(i, 100, 1, sample=True) for i in range(128))
    tokens = [array("i", range(101))] * 128
    yield Step("fill 128 decode rows", lambda: batch.fill(decode, tokens), 1, "2.0 to 123")
    chunk, prompt = (Span(0, 0, 512, sample=True),), [array("i", range(512))]
    yield Step("fill a 512-token chunk", lambda: batch.fill(chunk, prompt), 1, "2.7 to 11")
    yield from _publishing_steps()


def _publishing_steps() -> Iterator[Step]:
    request = Request(request_id="chatcmpl-0", prompt=(1,), max_tokens=1 << 20)
    life = Sequence(request, arrived_s=0.0).stats(0.0)
    emitter = Emitter(Pieces(lambda _: b" word", str, frozenset()), lambda _: life)
    names = [f"chatcmpl-{i}" for i in range(16)]
    for name in names:
        emitter.open(replace(request, request_id=name))
    emit = Emit(tuple([(name, 5, row, None) for row, name in enumerate(names)]))
    yield Step("emit 16 tokens", lambda: emitter.emit(emit, {}), 1, "48 with detokenising")
    deltas = [Delta(f"chatcmpl-{i:032d}", " word", (5,)) for i in range(16)]
    yield Step("encode 16 deltas for the wire", lambda: encode(ONLY_ENGINE, deltas))
    collector, tick, end = busy_collector()
    yield Step("count a tick of 128 streams", lambda: collector.on_tick(tick))
    yield Step("count an end", lambda: collector.on_end(end))
    yield Step("write the exposition of /metrics", lambda: render_all([EngineMetrics(collector.snapshot())]))
    stream = TextStream()
    yield Step(
        "incremental UTF-8, per token", lambda: [stream.feed(p) for p in PIECES], len(PIECES), "0.35 to 0.76"
    )


def sampling_steps(n_vocab: int, n_rows: int = 16) -> Iterator[Step]:
    """Yield greedy and top-k sampling of random logits, per row: of all of them, and of the likeliest."""
    logits = np.random.default_rng(0).normal(0.0, 3.0, (n_rows, n_vocab)).astype(np.float32)
    likeliest = np.argsort(-logits, axis=1)[:, :128].astype(np.int32)
    values = np.take_along_axis(logits, likeliest, axis=1)
    for name, params, reference in (
        ("greedy", GREEDY, "0.5 (T4), 13.5 (T152)"),
        ("top_k 40, top_p, temperature", TOP_K, "130 (T4), 148 (T152), top-k alone"),
    ):
        rows = [RowSampler(params, (1,), end_tokens=frozenset(), n_vocab=n_vocab) for _ in range(n_rows)]
        yield Step(
            f"{name}, per row of {n_rows}",
            partial(sample_rows, logits, rows),
            n_rows,
            reference,
        )
        yield Step(
            f"{name}, from {likeliest.shape[1]} candidates, per row of {n_rows}",
            partial(sample_candidates, values, likeliest, rows),
            n_rows,
        )
    penalised = SamplingParams(
        temperature=0, repetition_penalty=1.1, frequency_penalty=0.5, presence_penalty=0.5
    )
    prompts = np.random.default_rng(0).integers(0, n_vocab, (n_rows, 256)).tolist()
    rows = [RowSampler(penalised, prompt, end_tokens=frozenset(), n_vocab=n_vocab) for prompt in prompts]
    yield Step(f"greedy, all penalties, per row of {n_rows}", partial(sample_rows, logits, rows), n_rows)


def _ticks_of(n: int) -> Callable[[], None]:
    """Return what a tick of `n` streams is to the scheduler: four events, no backend."""
    limits = EngineLimits(
        n_slots=n, n_ctx_slot=1 << 21, n_cells=n << 21, token_budget=64 * n, prefill_chunk=512
    )
    scheduler = Scheduler(limits)
    for i in range(n):
        request = Request(request_id=f"chatcmpl-{i:032d}", prompt=tuple(range(1, 65)), max_tokens=1 << 20)
        scheduler.handle(Submitted(request, 0.0))

    def tick() -> None:
        plan = next(
            instruction.plan
            for instruction in scheduler.handle(TickBegun(0.0))
            if isinstance(instruction, Compute)
        )
        scheduler.handle(Sampled([5] * len(plan.rows), {}, 0.0))
        scheduler.handle(Emitted([], 0.0))
        scheduler.handle(TickEnded(0.01))

    while scheduler.n_prefilling or scheduler.slots.n_idle:
        tick()
    return tick


def busy_collector() -> tuple[Collector, TickStats, End]:
    """Return a collector with a history, and a tick of 128 streams and an end like those it has seen."""
    limits = EngineLimits(n_slots=N_STREAMS, n_cells=1 << 18, token_budget=2048, n_ctx_slot=8192)
    collector = Collector(limits, model_name="bench")
    rng = np.random.default_rng(0)
    for tick_id in range(1000):
        tick = sample_tick(tick_id, rng.lognormal(-4.5, 0.8, N_STREAMS))
        collector.on_tick(tick)
        ttft_s, decode_s = rng.lognormal(-2, 1, 2)
        life = RequestStats(512, 64, 128, ttft_s / 3, ttft_s / 2, ttft_s, decode_s, ttft_s + decode_s)
        end = End("r", "stop", None, life)
        collector.on_end(end)
    return collector, tick, end


def sample_tick(tick_id: int, gaps_s: np.ndarray[tuple[int], np.dtype[np.float64]]) -> TickStats:
    """Return the record of a full tick of 20 ms."""
    return TickStats(
        tick_id=tick_id,
        started_s=tick_id * 0.021,
        n_decode=N_STREAMS - 1,
        n_prefill=512,
        n_sequences=N_STREAMS,
        n_sampled=N_STREAMS - 1,
        n_idle=0,
        n_prefilling=1,
        n_generating=N_STREAMS - 1,
        n_queued=7,
        n_queued_tokens=3000,
        plan_s=2e-4,
        forward_s=0.018,
        sample_s=1e-3,
        publish_s=5e-4,
        total_s=0.02,
        n_cells=1 << 18,
        n_cells_used=100_000,
        n_cells_idle=20_000,
        n_reused_graphs=1,
        n_preempted=0,
        n_finished=1,
        gaps_s=gaps_s,  # type: ignore[arg-type]  # an array does what the collector needs of a sequence
    )
