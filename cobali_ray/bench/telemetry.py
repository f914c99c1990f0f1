"""Measure what telemetry costs the tick thread: `python -m cobali_ray.bench.telemetry`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from cobali_ray.core.events import End, RequestStats
from cobali_ray.core.stats import TickStats
from cobali_ray.telemetry.collector import Collector

N_STREAMS = 128
TARGETS_US = {"on_tick": 25.0, "on_end": 25.0, "snapshot": 1000.0, "exposition": 10_000.0}


class Cost(NamedTuple):
    """Microseconds per call."""

    p50_us: float
    p99_us: float


def measure(call: Callable[[], object], *, repeats: int) -> Cost:
    """Time single calls, after a tenth as many to warm up."""
    for _ in range(repeats // 10):
        call()
    times_us = []
    for _ in range(repeats):
        started = time.perf_counter_ns()
        call()
        times_us.append((time.perf_counter_ns() - started) / 1e3)
    return Cost(statistics.median(times_us), statistics.quantiles(times_us, n=100)[98])


def busy_collector() -> tuple[Collector, TickStats, End]:
    """Return a collector with a history, and a tick of 128 streams and an end like those it has seen."""
    collector = Collector(
        model_name="bench", n_slots=N_STREAMS, n_cells=1 << 18, token_budget=2048, n_ctx_slot=8192
    )
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


def main() -> None:
    """Print a table of costs against targets."""
    collector, tick, end = busy_collector()
    costs = {
        "on_tick": measure(lambda: collector.on_tick(tick), repeats=5000),
        "on_end": measure(lambda: collector.on_end(end), repeats=5000),
        "snapshot": measure(collector.snapshot, repeats=200),
        "exposition": measure(collector.exposition, repeats=100),
    }
    n_bytes = len(collector.exposition())
    table = Table(title=f"telemetry, {N_STREAMS} gaps a tick; exposition {n_bytes / 1024:.0f} KiB")
    for heading in ("call", "p50 us", "p99 us", "target us", "met"):
        table.add_column(heading, justify="left" if heading == "call" else "right")
    for name, cost in costs.items():
        met = "yes" if cost.p50_us < TARGETS_US[name] else "no"
        table.add_row(name, f"{cost.p50_us:.1f}", f"{cost.p99_us:.1f}", f"{TARGETS_US[name]:.0f}", met)
    Console().print(table)


if __name__ == "__main__":
    main()
