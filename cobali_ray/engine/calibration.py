"""Calibration: a few real passes are timed before the first request, for the tick-time model.

So the pacer never begins with nothing. What was measured is kept per model file, machine and settings, and is
only where the tick-time model begins: ticks put it right. A machine is busy while a server starts, so the
shortest of a pass's times counts, and the next starts measure it again, until it was measured `ENOUGH` times.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
import structlog

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.kept import Measured, kept_or_measured
from cobali_ray.backend.port import Backend
from cobali_ray.core.cost.ticktime import KNOTS, TickShape
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.settings import EngineSettings

_log = structlog.get_logger(__name__)

MAX_S = 3.0
"""How long it may take. What would take longer is not tried; the model draws a line through what was."""
N_ROUNDS, ENOUGH = 2, 4
"""How often each pass is tried at a start, and at all of them."""
CHUNKS = (1, 4, 8, 32, 128, 512)
DEEP = (1024, 2048, 4096)
"""Depth at which the longest chunk is tried again."""

Times: TypeAlias = list[tuple[TickShape, list[float]]]
TIMES: Final = Annotated[
    list[tuple[TickShape, Annotated[list[Measured], msgspec.Meta(min_length=1)]]], msgspec.Meta(min_length=1)
]


def calibration(
    backend: Backend, limits: EngineLimits, settings: EngineSettings, path: Path, kept: Path
) -> list[tuple[TickShape, float]]:
    """Return (shape, seconds) of a few passes, from the folder `kept` or else measured now.

    The backend must hold nothing; it holds nothing afterwards.
    """
    began = time.perf_counter()
    llama = settings.llama
    facts = (
        settings.processes.cores, llama.n_threads, llama.threads_wait, llama.n_gpu_layers, llama.flash_attn,
        llama.kv, llama.type_k, llama.type_v, llama.devices, llama.split_mode, llama.tensor_split,
        llama.main_device, limits.n_slots, limits.n_ctx_slot, limits.n_cells, limits.prefill_chunk,
        limits.token_budget, limits.grain,
    )  # fmt: skip
    times, was_known = kept_or_measured(kept, "ticks", path, facts, TIMES, partial(measured, backend, limits))
    shortest = [(shape, min(durations)) for shape, durations in times or ()]
    ms = {_name(shape): round(1000 * seconds, 2) for shape, seconds in shortest}
    _log.info("tick_times", ms=ms, known=was_known, took_s=round(time.perf_counter() - began, 3))
    return shortest


def measured(
    backend: Backend,
    limits: EngineLimits,
    earlier: Times | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> Times:
    """Compute passes of more and more rows, then prompts, then deeper ones, while there is time.

    Return how long each took, every time; `earlier` itself if there is nothing to add to it.
    """
    batch, tokens = TickBatch(backend.n_batch), array("i", [0]) * max(limits.n_ctx_slot, 1)
    times = {shape: list(durations) for shape, durations in earlier or ()}
    began, cold = now(), True

    def seconds(spans: tuple[Span, ...]) -> float:
        batch.fill(spans, [tokens] * len(spans))
        before = now()
        backend.forward(batch)
        backend.wait()
        return now() - before

    for _ in range(N_ROUNDS):
        for shape, spans in passes(limits, backend.n_slots):
            enough = len(times.get(shape, ())) >= ENOUGH
            if enough or now() - began + _likely_s(shape, times) > MAX_S:
                continue
            if cold:
                seconds((Span(0, 0, 1, 1),))  # the first one pays for what is laid out once
                backend.clear()
                cold = False
            if spans[0].start:  # deep: what is before it has to be there
                for start in range(0, spans[0].start, spans[0].length):
                    seconds((Span(0, start, spans[0].length, 0),))
            times.setdefault(shape, []).append(seconds(spans))
            backend.clear()
    return list(times.items()) if earlier is None or not cold else earlier


def passes(limits: EngineLimits, n_slots: int) -> Iterator[tuple[TickShape, tuple[Span, ...]]]:
    """Yield the shapes to measure, in this order, each with its spans."""
    most = min(limits.n_ctx_slot - 1, limits.prefill_chunk)
    for size in KNOTS:  # rows and chunks in turns, so that both are measured if time is short
        if size <= n_slots:
            yield TickShape(size, 0, ()), tuple([Span(slot_id, 0, 1, 1) for slot_id in range(size)])
        if size in CHUNKS and size <= most:
            yield TickShape(0, 0, ((0, size),)), (Span(0, 0, size, 0),)
    for start in DEEP:
        if CHUNKS[-1] <= most and start + CHUNKS[-1] < limits.n_ctx_slot:
            yield TickShape(0, 0, ((start, CHUNKS[-1]),)), (Span(0, start, CHUNKS[-1], 0),)


def _likely_s(shape: TickShape, times: Mapping[TickShape, Sequence[float]]) -> float:
    """Return what a pass took, or may take if a token takes as long as in the last of its kind.

    Both include what has to be computed before it.
    """
    if shape in times:
        before = sum([start / length for start, length in shape.chunks])
        return max(times[shape]) * (1 + before)
    size = _size(shape)
    kind = [
        (_size(other), max(durations))
        for other, durations in times.items()
        if bool(other.chunks) == bool(shape.chunks)
    ]
    if not kind:
        return max(map(max, times.values()), default=0.0)
    last, seconds = kind[-1]
    return seconds * max(size / last, 1.0)


def _size(shape: TickShape) -> int:
    return shape.n_decode + sum([start + length for start, length in shape.chunks])


def _name(shape: TickShape) -> str:
    if not shape.chunks:
        return f"{shape.n_decode} rows"
    ((start, length),) = shape.chunks
    return f"{length} tokens" + (f" at {start}" if start else "")
