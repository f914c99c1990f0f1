"""What single steps of a tick cost on this machine, one timed call each."""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from cobali_ray.actors.wire import encode
from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.sampling import RowSampler, sample_rows
from cobali_ray.backend.sampling_top import sample_candidates
from cobali_ray.bench.telemetry import busy_collector
from cobali_ray.core.events import Delta
from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.plan import Span, plan_tick
from cobali_ray.core.request import GREEDY, Request, SamplingParams
from cobali_ray.core.sequence import Sequence
from cobali_ray.core.text import TextStream
from cobali_ray.engine.emit import Emitter
from cobali_ray.telemetry.names import ONLY_ENGINE

PIECES = (
    b"The ",
    "café".encode()[:4],
    "café".encode()[4:],
    "日".encode()[:2],
    "日".encode()[2:],
    b" x",
)
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
        slots = _generating(n_slots)
        limits = EngineLimits(
            n_slots=n_slots,
            n_ctx_slot=4096,
            n_cells=4096 * n_slots,
            token_budget=512 + n_slots,
            prefill_chunk=512,
        )
        yield Step(f"plan a tick of {n_slots} decoding slots", partial(plan_tick, slots, limits))
    batch = TickBatch(1024)
    decode = tuple(Span(i, 100, 1, sample=True) for i in range(128))
    known = [array("i", range(101))] * 128
    yield Step("fill 128 decode rows", lambda: batch.fill(decode, known), 1, "2.0 to 123")
    chunk, prompt = (Span(0, 0, 512, sample=True),), [array("i", range(512))]
    yield Step("fill a 512-token chunk", lambda: batch.fill(chunk, prompt), 1, "2.7 to 11")
    yield from _publishing_steps()


def _publishing_steps() -> Iterator[Step]:
    sequences = _generating(16)
    emitter = Emitter(lambda _: b" word", frozenset())
    yield Step(
        "emit 16 tokens", lambda: [emitter.emit(s, 5, None) for s in sequences], 1, "48 with detokenising"
    )
    deltas = [Delta(f"chatcmpl-{i:032d}", " word", 1) for i in range(16)]
    yield Step("encode 16 deltas for the wire", lambda: encode(ONLY_ENGINE, deltas))
    collector, tick, end = busy_collector()
    yield Step("count a tick of 128 streams", lambda: collector.on_tick(tick))
    yield Step("count an end", lambda: collector.on_end(end))
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


def _generating(n: int) -> list[Sequence]:
    sequences = []
    for i in range(n):
        request = Request(request_id=f"chatcmpl-{i:032d}", prompt=tuple(range(1, 65)), max_tokens=1 << 20)
        sequence = Sequence(request, arrived_s=0.0)
        sequence.slot_id = i
        sequence.tokens.append(5)
        sequence.n_computed = request.n_prompt
        sequences.append(sequence)
    return sequences
