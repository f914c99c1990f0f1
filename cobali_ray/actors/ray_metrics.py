"""What Ray's own LLM boards ask for, through `ray.util.metrics`, under vLLM's names.

A thread of its own copies the collector's counters every `period_s`, so the tick thread knows nothing of it.
A metric that Ray does not take is logged once and offered again with the next round's values.
Values per token or per tick are left to /metrics: Ray wants each one in a call. Ray rounds a histogram's
values to the middle of their buckets, so sums and means of its boards are estimates.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ray.util.metrics import Counter, Gauge, Histogram

from cobali_ray.telemetry.aliases import FINISHED_REASONS, VLLM_COUNTERS, VLLM_HISTOGRAMS, shown
from cobali_ray.telemetry.deltas import new_values
from cobali_ray.telemetry.onlooker import Onlooker
from cobali_ray.telemetry.snapshot import Snapshot

PERIOD_S = 2.0
N_MOST = 1000
"""Observations per histogram and round; of more, a part stands for all."""
PER_REQUEST = {
    theirs: ours
    for theirs, ours in VLLM_HISTOGRAMS.items()
    if theirs not in {"inter_token_latency_seconds", "iteration_tokens_total"}
}
WHO = ("model_name", "engine")
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


class RayMetrics:
    """Hands snapshots on to Ray's metrics agent, which labels them with the worker's id."""

    def __init__(self, snapshot: Callable[[], Snapshot], *, period_s: float = PERIOD_S) -> None:
        self._snapshot, self._period_s = snapshot, period_s
        self._onlooker = Onlooker("ray_metrics")
        self._before: Snapshot | None = None
        first = snapshot()
        self._who = {"model_name": first.model_name, "engine": first.engine_id}
        self._gauges = {name: Gauge(f"vllm_{name}", tag_keys=WHO) for name in GAUGES}
        self._counters = {name: Counter(f"vllm_{name}", tag_keys=WHO) for name in VLLM_COUNTERS}
        self._success = Counter("vllm_request_success", tag_keys=(*WHO, "finished_reason"))
        self._histograms = {
            theirs: Histogram(
                f"vllm_{theirs}",
                boundaries=list(shown(first.histogram(ours), bounds).bounds),
                tag_keys=WHO,
            )
            for theirs, (ours, bounds) in PER_REQUEST.items()
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray-metrics", daemon=True)

    def start(self) -> None:
        """Begin to publish, at once and then every `period_s`."""
        self._thread.start()

    def stop(self) -> None:
        """Publish no more; a round under way ends by itself."""
        self._stop.set()

    def _run(self) -> None:
        while True:
            self._onlooker.look(self.publish)
            if self._stop.wait(self._period_s):
                return

    def publish(self) -> None:
        """Hand on what is new since the last time."""
        before, self._before = self._before, self._snapshot()
        now = self._before
        for name, level in zip(
            GAUGES, (now.levels.n_running, now.levels.n_queued, now.levels.kv_usage), strict=True
        ):
            self._onlooker.look(self._gauges[name].set, level, tags=self._who)
        for name, ours in VLLM_COUNTERS.items():
            self._add(self._counters[name], now.totals[ours] - (before.totals[ours] if before else 0))
        for reason, outcomes in FINISHED_REASONS.items():
            n = sum(
                now.requests[outcome] - (before.requests[outcome] if before else 0) for outcome in outcomes
            )
            self._add(self._success, n, finished_reason=reason)
        for theirs, (ours, bounds) in PER_REQUEST.items():
            old = shown(before.histogram(ours), bounds) if before else None
            for value in new_values(old, shown(now.histogram(ours), bounds), n_most=N_MOST):
                self._onlooker.look(self._histograms[theirs].observe, value, tags=self._who)

    def _add(self, counter: Counter, n: float, **labels: str) -> None:
        if n > 0:  # Ray refuses to add nothing
            self._onlooker.look(counter.inc, n, tags=self._who | labels)
