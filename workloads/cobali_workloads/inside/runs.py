"""One run of the engine in this process: a model opened, requests, what they took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from cobali_ray.actors.wire import encode
from cobali_ray.backend.port import Backend
from cobali_ray.core.request.events import End, EngineEvent
from cobali_ray.core.request.limits import EngineLimits, PrefillOrder
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.core.views.stats import TickStats
from cobali_ray.engine.opening import engine_on, model_path, open_backend
from cobali_ray.errors import ConfigError
from cobali_ray.models.commands import progress_bars
from cobali_ray.settings import EngineSettings, read_settings
from cobali_ray.telemetry.collector import Collector
from cobali_ray.telemetry.names import ONLY_ENGINE
from cobali_workloads.offline import RunReport, run_offline
from cobali_workloads.report.rounds import Figures


@contextmanager
def opened(model: str, **settings: Any) -> Iterator[tuple[Backend, EngineSettings]]:
    """Open a model for as long as the `with` lasts; prefixes are never reused, so that every run computes."""
    read = read_settings({"model": model, "min_prefix": 0, **settings})
    with progress_bars() as progress:
        path = model_path(read, progress)
    backend = open_backend(read, path)
    try:
        yield backend, read
    finally:
        backend.close()


def greedy_requests(
    prompts: Sequence[Sequence[int]], *, max_tokens: int, ignore_eos: bool = False
) -> list[Request]:
    """Return one greedy request per prompt, named by its number."""
    sampling = SamplingParams(temperature=0.0, ignore_eos=ignore_eos)
    return [
        Request(request_id=str(i), prompt=tuple(prompt), max_tokens=max_tokens, sampling=sampling)
        for i, prompt in enumerate(prompts)
    ]


@dataclass(slots=True)
class EngineRun:
    """One run and its ticks."""

    report: RunReport
    ticks: list[TickStats] = field(default_factory=list)

    @property
    def gaps_s(self) -> list[float]:
        """ITL samples of all streams, by the engine's clock."""
        return [gap for tick in self.ticks for gap in tick.gaps_s]

    def figures(self) -> Figures:
        """Return the run in numbers; durations in seconds, nan where there were no samples."""
        gaps = self.gaps_s or [float("nan")]
        figures = {
            "wall_s": self.report.wall_s,
            "user_s": self.report.user_s,
            "output_tokens": float(self.report.n_output),
            "output_tokens_per_s": self.report.output_tokens_per_s,
            "ticks": float(self.report.n_ticks),
            "itl_p50_s": float(np.quantile(gaps, 0.5)),
            "itl_p99_s": float(np.quantile(gaps, 0.99)),
            "itl_max_s": max(gaps),
        }
        for name in ("queue_s", "ttft_s", "tpot_s", "e2e_s"):
            values = self.report.percentiles(name) or (float("nan"),) * 3
            figures |= {
                f"{name[:-2]}_{share}_s": v for share, v in zip(("p50", "p90", "p99"), values, strict=True)
            }
        return figures


def empty(backend: Backend) -> None:
    """Free every slot. Not `clear`, which overwrites the whole cache and with it the processor's own."""
    for slot_id in range(backend.n_slots):
        backend.truncate(slot_id, 0)


def run_once(
    backend: Backend, settings: EngineSettings, requests: Sequence[Request], order: PrefillOrder = "shortest"
) -> EngineRun:
    """Run the requests on an empty cache. Raises ConfigError if one could not be served."""
    empty(backend)
    make = partial(engine_on, backend, settings, prefill_order=order)
    ticks: list[TickStats] = []
    report = run_offline(make, requests, on_tick=ticks.append)
    if report.failed:
        name, reason = next(iter(report.failed.items()))
        raise ConfigError("--prompts", f"{len(report.failed)} requests failed, the first is {name}: {reason}")
    return EngineRun(report, ticks)


class Publishing:
    """What a server does with events and ticks, only that nothing is sent: counted, encoded for the wire."""

    def __init__(self, limits: EngineLimits) -> None:
        self._collector = Collector(limits, model_name="bench")
        self.on_tick = self._collector.on_tick
        self.n_output = 0

    def take(self, batch: list[tuple[str, EngineEvent]]) -> None:
        """Take one tick's events."""
        for _, event in batch:
            if isinstance(event, End):
                self._collector.on_end(event)
                self.n_output += event.stats.n_output
        encode(ONLY_ENGINE, [event for _, event in batch])
