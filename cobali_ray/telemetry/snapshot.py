"""What a Collector knows at one moment: plain values that travel between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cobali_ray.core.stats import TickStats
from cobali_ray.telemetry.histogram import HistogramView
from cobali_ray.telemetry.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """How full the engine is. Counts are tokens unless named otherwise."""

    n_idle: int
    """Slots; likewise the next two."""
    n_prefilling: int = 0
    n_generating: int = 0
    n_queued: int = 0
    """Requests."""
    n_queued_tokens: int = 0
    n_cells: int
    n_cells_used: int = 0
    n_cells_idle: int = 0
    n_host_cells: int = 0
    """Tokens that host memory keeps."""
    n_disk_bytes: int = 0
    """What the files of the disk tier take."""
    n_texts_queued: int = 0
    """Texts that wait to be embedded."""
    n_batch_tokens: int = 0
    """Tokens of the last tick; 0 when idle. Likewise the next one, in seconds."""
    predicted_s: float = 0.0
    target_s: float = 0.0
    """ITL target of the latest tick that had one; 0 when idle."""

    @classmethod
    def after(cls, stats: TickStats, *, target_s: float) -> Levels:
        """Read the levels off a tick's record; most ticks have no target of their own."""
        return cls(
            n_idle=stats.n_idle,
            n_prefilling=stats.n_prefilling,
            n_generating=stats.n_generating,
            n_queued=stats.n_queued,
            n_queued_tokens=stats.n_queued_tokens,
            n_cells=stats.n_cells,
            n_cells_used=stats.n_cells_used,
            n_cells_idle=stats.n_cells_idle,
            n_host_cells=stats.n_host_cells,
            n_disk_bytes=stats.n_disk_bytes,
            n_texts_queued=stats.n_texts_queued,
            n_batch_tokens=stats.n_tokens,
            predicted_s=stats.predicted_s,
            target_s=target_s,
        )

    @property
    def n_running(self) -> int:
        """Requests in slots."""
        return self.n_prefilling + self.n_generating

    @property
    def n_cells_busy(self) -> int:
        """KV cells held by running requests."""
        return self.n_cells_used - self.n_cells_idle

    @property
    def kv_usage(self) -> float:
        """Share of KV cells held by running requests, 0 to 1; kept prefixes count as free."""
        return self.n_cells_busy / self.n_cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One consistent copy of a Collector. Plain values: it can be pickled and rendered elsewhere."""

    engine_id: str
    model_name: str
    node: str
    """The address of the engine's machine; "" where nobody knows it."""
    token_budget: int
    n_ctx_slot: int
    n_host_cells: int
    """Tokens that host memory may keep, and the bytes of one."""
    cell_bytes: int
    disk_bytes: int
    """Most that the files of the disk tier may take; 0: there is none."""
    max_queue: int
    """Requests that may wait; the next one: their prompt tokens."""
    max_queue_tokens: int
    opened_at_s: float
    """Unix time at which the engine opened."""
    levels: Levels
    histograms: dict[tuple[str, str], HistogramView]
    """By family name and label value ("" where there is no label)."""
    totals: dict[str, float]
    """Counters without a label, by name without `cobali_` and `_total`."""
    predictions: dict[str, float]
    """Seconds of all ticks that had a prediction: `predicted`, `real`."""
    tier_requests: dict[str, int]
    """Requests whose prompt was computed, by where its beginning came from."""
    tier_tokens: dict[str, int]
    """Their prompt tokens; `none`: those that were computed."""
    tenants: dict[str, Mapping[str, float]]
    """What tenants took: by measure, by name."""
    class_preemptions: dict[str, int]
    """Preemptions of ended requests, by class."""
    requests: dict[str, int]
    """By outcome."""
    refusals: dict[str, int]
    """By reason."""
    last_tick_age_s: float | None
    """Since the end of the last tick while there is work, 0 when idle; None without a clock."""
    usage: Usage | None = None
    """What the engine's process takes; None where nobody asked the system."""

    def histogram(self, name: str, value: str = "") -> HistogramView:
        """Return one member of a family; KeyError if there is none."""
        return self.histograms[name, value]

    def summary(self) -> dict[str, object]:
        """Return percentiles (seconds, None without values) and totals for logs and reports."""
        times = {
            f"{name}_s": {
                "n": view.count,
                "mean": view.mean,
                "p50": view.quantile(0.5),
                "p90": view.quantile(0.9),
                "p99": view.quantile(0.99),
            }
            for name in ("ttft", "engine_ttft", "itl", "tpot", "queue", "e2e", "engine_e2e", "tick")
            for view in [self.histogram(f"{name}_seconds")]
        }
        return {
            **times,
            "totals": {
                "ticks": self.histogram("tick_seconds").count,
                "decode_tokens": int(self.histogram("tick_tokens", "decode").sum),
                "prefill_tokens": int(self.histogram("tick_tokens", "prefill").sum),
                **self.totals,
            },
            "requests": dict(self.requests),
            "refusals": dict(self.refusals),
        }
