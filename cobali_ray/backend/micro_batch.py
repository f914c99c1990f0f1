"""How many tokens are computed at once where a model lies on several devices: measured when it is opened.

A pass over layers on several devices is computed by one device after the other, unless llama.cpp cuts it into
micro-batches: then one begins the next of them while another computes the last one's later layers. Each also
costs something besides its tokens: devices read their weights again, and activations travel. So the longest
pass there can be is timed whole and in parts, once per file and devices, and the tick-time model then begins
with passes as they are cut.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import structlog

from cobali_ray.backend import library
from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.kept import Measured, MeasuredCells, kept_or_measured
from cobali_ray.backend.params import context_params

_log = structlog.get_logger(__name__)

MIN_PART = 64
"""Tokens; fewer leave a GPU with little to do between two copies."""
N_ROUNDS, N_PASSES = 2, 2
"""How often sizes take turns, and passes in a turn; the shortest counts, as the machine may be busy."""
_TOO_LONG_S = 5.0
"""A pass that takes longer is not tried again in parts."""
_CLEARLY = 0.9
"""Parts are chosen where they take less than this share of the time of the whole."""
_TIMES: Final = Annotated[list[tuple[MeasuredCells, Measured]], msgspec.Meta(min_length=1)]


def sizes(n_batch: int, n_slots: int, n_devices: int) -> list[int]:
    """Return the sizes to try, tokens: all of a pass at once, then equal parts, enough for all devices.

    A row of each slot fits into one, so that streams are never cut.
    """
    parts = [-(-n_batch // (n_devices * by)) for by in (1, 2)] if n_devices > 1 else []
    return [n_batch, *(size for size in parts if max(MIN_PART, n_slots) <= size < n_batch)]


def chosen(times: Sequence[tuple[int, float]]) -> int:
    """Return the size that is clearly faster than the first one, or else the first one."""
    (whole, whole_s), *parts = times
    size, seconds = min(parts, key=lambda part: part[1], default=(whole, whole_s))
    return size if seconds < _CLEARLY * whole_s else whole


def micro_batch(lc: Any, model: Any, config: LlamaConfig, n_devices: int) -> int:
    """Return how many tokens to compute at once for a loaded model whose layers all lie on devices."""
    tried = sizes(config.n_batch, config.n_slots, n_devices)
    if len(tried) == 1:
        return config.n_batch
    facts = (
        tried, config.devices, config.tensor_split, config.worker_memory_mib, config.n_threads,
        config.ggml_types, config.flash_attn, config.unified,
    )  # fmt: skip
    times, was_kept = kept_or_measured(
        config.measurements, "micro_batch", config.path, facts, _TIMES,
        lambda kept: kept or list(_measured(lc, model, config, tried)),
    )  # fmt: skip
    size = chosen(times) if times else config.n_batch
    ms = {f"{n} tokens": round(1000 * seconds, 2) for n, seconds in times or ()}
    _log.info("micro_batch", chosen=size, ms=ms, known=was_kept)
    return size


def _measured(lc: Any, model: Any, config: LlamaConfig, tried: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Yield (size, seconds) of the longest pass, the whole first; nothing where no context can be opened."""
    times: dict[int, list[float]] = {size: [] for size in tried}
    for _ in range(N_ROUNDS):
        for size in tried:
            times[size] += _passes(lc, model, config, size)
            if not times[tried[0]] or min(times[tried[0]]) > _TOO_LONG_S:
                break
    yield from ((size, min(seconds)) for size, seconds in times.items() if seconds)


def _passes(lc: Any, model: Any, config: LlamaConfig, size: int) -> Iterator[float]:
    """Open a context with room for one pass, and time a few in it."""
    n = config.n_batch
    params = context_params(lc, model, config)
    params.n_ctx, params.n_ubatch, params.n_seq_max, params.n_outputs_max = n, size, 1, 1
    params.n_rs_seq = 0
    if not (context := lc.llama_init_from_model(model, params)):
        return
    output, zeros = np.zeros(n, np.int8), np.zeros(n, np.int32)
    output[-1] = 1
    raw = library.raw_batch(
        lc, token=zeros, position=np.arange(n, dtype=np.int32), seq=zeros.copy(), output=output
    )
    try:
        for _ in range(N_PASSES):
            lc.llama_memory_clear(lc.llama_get_memory(context), False)
            began = time.monotonic()
            if lc.llama_decode(context, raw) != 0:
                return
            lc.llama_synchronize(context)
            yield time.monotonic() - began
    finally:
        lc.llama_free(context)
