"""Host time of one tick outside forward pass and sampling: `python -m cobali_ray.bench.tick`.

The scripted backend stands for the model; events are encoded for the wire and counted by the collector,
as the server does. Every slot generates; p50 and p99 over the ticks in which all of them do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from cobali_ray.actors.wire import encode
from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.core.events import End, Event
from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.request import Request, SamplingParams
from cobali_ray.core.stats import TickStats
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.opening import MonotonicClock
from cobali_ray.telemetry.collector import Collector
from cobali_ray.telemetry.names import ONLY_ENGINE

N_TICKS = 2000
N_PROMPT = 64
SLOTS = (1, 16, 32, 64, 128, 256)
TARGET_S = {16: 0.3e-3, 128: 1.5e-3}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """Seconds per tick, one array entry per tick."""

    plan_s: np.ndarray
    publish_s: np.ndarray
    rest_s: np.ndarray
    """Fill, apply, records and the observer."""

    @property
    def total_s(self) -> np.ndarray:
        """All host time outside forward and sampling."""
        total: np.ndarray = self.plan_s + self.publish_s + self.rest_s
        return total


def measure(n_slots: int, n_ticks: int = N_TICKS) -> HostTime:
    """Tick with every slot generating."""
    n_ctx = N_PROMPT + n_ticks + 8
    backend = ScriptedBackend(
        n_slots=n_slots, n_ctx_slot=n_ctx, n_batch=512 + n_slots, strict=False, tick_s=0.0
    )
    limits = EngineLimits(
        n_slots=n_slots,
        n_ctx_slot=n_ctx,
        n_cells=backend.n_cells,
        token_budget=512 + n_slots,
        prefill_chunk=512,
    )
    collector = Collector(
        model_name="scripted",
        n_slots=n_slots,
        n_cells=limits.n_cells,
        token_budget=limits.token_budget,
        n_ctx_slot=n_ctx,
    )

    def sink(batch: list[tuple[str, Event]]) -> None:
        for _, event in batch:
            if isinstance(event, End):
                collector.on_end(event)
        encode(ONLY_ENGINE, [event for _, event in batch])

    clock = MonotonicClock()
    engine = Engine(backend, limits, clock, sink)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    for i in range(n_slots):
        prompt = tuple(65 + (i + k) % 26 for k in range(N_PROMPT))
        engine.submit(
            Request(request_id=f"chatcmpl-{i:032d}", prompt=prompt, max_tokens=n_ticks, sampling=sampling)
        )
    records: list[tuple[TickStats, float]] = []
    while engine.has_work:
        started = clock.now()
        stats = engine.tick()
        if stats is None:
            continue
        collector.on_tick(stats)
        if stats.n_decode == n_slots:
            records.append((stats, clock.now() - started))
    plan, publish, rest = (
        np.array([s.plan_s for s, _ in records]),
        np.array([s.publish_s for s, _ in records]),
        np.array([wall - s.plan_s - s.publish_s - s.forward_s - s.sample_s for s, wall in records]),
    )
    return HostTime(plan_s=plan, publish_s=publish, rest_s=rest)


def main() -> None:
    """Print the table."""
    table = Table(title=f"Host time per tick outside forward and sampling, ms, {N_TICKS} ticks")
    for column in ("slots", "plan p50", "publish p50", "rest p50", "all p50", "all p99", "target"):
        table.add_column(column, justify="right")
    for n_slots in SLOTS:
        time = measure(n_slots)
        parts = [1e3 * float(np.median(part)) for part in (time.plan_s, time.publish_s, time.rest_s)]
        total = [1e3 * float(np.quantile(time.total_s, share)) for share in (0.5, 0.99)]
        target = f"{1e3 * TARGET_S[n_slots]:.1f}" if n_slots in TARGET_S else "-"
        table.add_row(str(n_slots), *(f"{value:.3f}" for value in (*parts, *total)), target)
    Console().print(table)


if __name__ == "__main__":
    main()
