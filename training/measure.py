"""How fast the shipped file loads, and how fast one core decodes it."""

from __future__ import annotations

import time
from statistics import median

from cobali_ray.backend.config import LlamaConfig
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.request import Request, SamplingParams
from cobali_ray.engine.offline import run_offline
from cobali_ray.engine.opening import MonotonicClock
from training.check import note
from training.errors import TrainingError
from training.recipe import Workshop
from training.show import CONSOLE

MOST_LOAD_S, LEAST_TOKENS_PER_S = 0.3, 300.0
_N_TIMES = 5
_N_CTX, _N_OUTPUT = 512, 256


def measure(workshop: Workshop) -> None:
    """Open the file and decode one stream on one thread, several times; put the medians into the report.

    Raises:
        TrainingError: loading or decoding is slower than promised.
    """
    clock, loads, rates = MonotonicClock(), [], []
    limits = EngineLimits(
        n_slots=1, n_ctx_slot=_N_CTX, n_cells=_N_CTX, token_budget=_N_CTX, prefill_chunk=_N_CTX
    )
    for _ in range(_N_TIMES):
        started = time.perf_counter()
        backend = LlamaBackend(
            LlamaConfig(path=workshop.gguf("Q8_0"), n_slots=1, n_ctx_slot=_N_CTX, n_batch=_N_CTX, n_threads=1)
        )
        loads.append(time.perf_counter() - started)
        request = Request(
            request_id="one", prompt=tuple(range(10, 42)), max_tokens=_N_OUTPUT,
            sampling=SamplingParams(temperature=0.0, ignore_eos=True),
        )  # fmt: skip
        stats = run_offline(backend, limits, clock, [request]).requests["one"]
        rates.append((stats.n_output - 1) / (stats.decode_s or float("inf")))
        backend.close()
    found = {"load_s": round(median(loads), 3), "tokens_per_s_one_core": round(median(rates))}
    note(workshop.report, speed=found)
    CONSOLE.print(found)
    if median(loads) > MOST_LOAD_S or median(rates) < LEAST_TOKENS_PER_S:
        raise TrainingError(f"slower than promised: {found}")
