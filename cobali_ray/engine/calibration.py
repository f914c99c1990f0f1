"""What passes of this model take on this machine, measured with a few real ones before a request comes.

So the pacer never begins with nothing. What was measured is kept per model file, machine and settings, and is
only where the tick-time model begins: ticks put it right.
"""

from __future__ import annotations

import hashlib
import json
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

import structlog

from cobali_ray.backend.attention import processor, write_kept
from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.port import Backend
from cobali_ray.core.cost.ticktime import KNOTS, TickShape
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.settings import EngineSettings

_log = structlog.get_logger(__name__)

MAX_S = 2.0
"""How long it may take. What would take longer is not tried; the model draws a line through what was."""
N_ROUNDS = 3
"""How often each pass is tried if there is time."""
CHUNKS = (1, 4, 8, 32, 128, 512)
DEEP = (1024, 2048, 4096)
"""How much of a prompt is there already where the longest chunk is tried again."""


def calibration(
    backend: Backend, limits: EngineLimits, settings: EngineSettings, path: Path, kept: Path
) -> list[tuple[TickShape, float]]:
    """Return (shape, seconds) of a few passes, from the folder `kept` or else measured now.

    The backend must hold nothing; it holds nothing afterwards.
    """
    began = time.perf_counter()
    file = kept / f"{_key(settings, limits, path)}.json"
    found = _read(file)
    was_known = found is not None
    if found is None:
        found = measure(backend, limits)
        write_kept(file, json.dumps(found))
    ms = {_name(shape): round(1000 * seconds, 2) for shape, seconds in found}
    _log.info("tick_times", ms=ms, known=was_known, took_s=round(time.perf_counter() - began, 3))
    return found


def measure(
    backend: Backend, limits: EngineLimits, now: Callable[[], float] = time.perf_counter
) -> list[tuple[TickShape, float]]:
    """Compute passes of more and more rows, then prompts, then deeper ones, while there is time."""
    batch, tokens = TickBatch(backend.n_batch), array("i", [0]) * max(limits.n_ctx_slot, 1)
    began, times = now(), dict[TickShape, list[float]]()

    def seconds(spans: tuple[Span, ...]) -> float:
        batch.fill(spans, [tokens] * len(spans))
        before = now()
        backend.forward(batch)
        backend.wait()
        return now() - before

    seconds((Span(0, 0, 1, 1),))  # the first one pays for what is laid out once
    backend.clear()
    for _ in range(N_ROUNDS):
        for shape, spans in passes(limits, backend.n_slots):
            if now() - began + _likely_s(shape, times) > MAX_S:
                continue
            if spans[0].start:  # deep: what is before it has to be there
                backend.clear()
                for start in range(0, spans[0].start, spans[0].length):
                    seconds((Span(0, start, spans[0].length, 0),))
            times.setdefault(shape, []).append(seconds(spans))
            backend.clear()
    backend.clear()
    return [(shape, median(taken)) for shape, taken in times.items()]


def passes(limits: EngineLimits, n_slots: int) -> Iterator[tuple[TickShape, tuple[Span, ...]]]:
    """Yield what is measured, in this order, and the spans that come to it."""
    most = min(limits.n_ctx_slot - 1, limits.prefill_chunk)
    for size in KNOTS:  # rows and chunks in turns, so that something is known of both
        if size <= n_slots:
            yield TickShape(size, 0, ()), tuple([Span(slot_id, 0, 1, 1) for slot_id in range(size)])
        if size in CHUNKS and size <= most:
            yield TickShape(0, 0, ((0, size),)), (Span(0, 0, size, 0),)
    for start in DEEP:
        if CHUNKS[-1] <= most and start + CHUNKS[-1] < limits.n_ctx_slot:
            yield TickShape(0, 0, ((start, CHUNKS[-1]),)), (Span(0, start, CHUNKS[-1], 0),)


def _likely_s(shape: TickShape, times: Mapping[TickShape, Sequence[float]]) -> float:
    """Return what a pass took, or may take if a token takes as long as in the last of its kind."""
    if shape in times:
        return max(times[shape])
    size = _size(shape)
    kind = [
        (_size(one), max(taken)) for one, taken in times.items() if bool(one.chunks) == bool(shape.chunks)
    ]
    if not kind:
        return max(map(max, times.values()), default=0.0)
    last, seconds = kind[-1]
    return seconds * max(size / last, 1.0)


def _size(shape: TickShape) -> int:
    return shape.n_decode + sum([start + length for start, length in shape.chunks])


def _key(settings: EngineSettings, limits: EngineLimits, path: Path) -> str:
    """Name what a measurement depends on."""
    stat = path.stat()
    llama = settings.llama
    facts = (
        str(path.resolve()), stat.st_size, stat.st_mtime_ns, settings.processes.cores,
        llama.n_threads, llama.threads_wait, llama.n_gpu_layers, llama.flash_attn, llama.kv,
        llama.type_k, llama.type_v, llama.devices, llama.split_mode, llama.tensor_split, llama.main_device,
        limits.n_slots, limits.n_ctx_slot, limits.n_cells, limits.prefill_chunk, limits.token_budget,
        limits.grain, processor(), version("llama-cpp-python"),
    )  # fmt: skip
    return "ticks-" + hashlib.sha256(repr(facts).encode()).hexdigest()[:24]


def _read(file: Path) -> list[tuple[TickShape, float]] | None:
    """Return what a file says; None if there is none or it says nothing sensible."""
    try:
        said = json.loads(file.read_bytes())
        found = [
            (TickShape(int(n), int(context), tuple([(int(a), int(b)) for a, b in chunks])), float(seconds))
            for (n, context, chunks, *_), seconds in said
        ]
    except (OSError, ValueError, TypeError, LookupError):
        return None
    return found if found and all(0 < seconds < float("inf") for _, seconds in found) else None


def _name(shape: TickShape) -> str:
    if not shape.chunks:
        return f"{shape.n_decode} rows"
    ((start, length),) = shape.chunks
    return f"{length} tokens" + (f" at {start}" if start else "")
