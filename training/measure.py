"""How fast the shipped file loads, and how fast one core decodes it."""

from __future__ import annotations

import time
from functools import partial
from statistics import median

from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.opening import engine_on, open_backend
from cobali_ray.settings import read_settings
from cobali_workloads.offline import run_offline
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
    loads, rates = [], []
    settings = read_settings({"n_slots": 1, "n_ctx": _N_CTX, "n_threads": 1})
    for _ in range(_N_TIMES):
        started = time.perf_counter()
        backend = open_backend(settings, workshop.gguf("Q8_0"))
        loads.append(time.perf_counter() - started)
        request = Request(
            request_id="one", prompt=tuple(range(10, 42)), max_tokens=_N_OUTPUT,
            sampling=SamplingParams(temperature=0.0, ignore_eos=True),
        )  # fmt: skip
        stats = run_offline(partial(engine_on, backend, settings), [request]).requests["one"]
        rates.append((stats.n_output - 1) / (stats.decode_s or float("inf")))
        backend.close()
    speed = {"load_s": round(median(loads), 3), "tokens_per_s_one_core": round(median(rates))}
    note(workshop.report, speed=speed)
    CONSOLE.print(speed)
    if median(loads) > MOST_LOAD_S or median(rates) < LEAST_TOKENS_PER_S:
        raise TrainingError(f"slower than promised: {speed}")
