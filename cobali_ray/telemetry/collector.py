"""Collector: exact counters and a ring of tick records, written by one thread, read by another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import TypeVar

from prometheus_client.samples import Exemplar

from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.core.request.events import End, RequestStats
from cobali_ray.core.request.life import Life
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.core.views.stats import TickStats
from cobali_ray.telemetry.histogram import Histogram
from cobali_ray.telemetry.lives import Lives, LivesView
from cobali_ray.telemetry.log import TickLog
from cobali_ray.telemetry.names import (
    ANYONE,
    COUNTERS,
    HISTOGRAMS,
    KINDS,
    MAX_TENANTS,
    ONLY_ENGINE,
    OTHERS,
    PHASES,
    REFUSALS,
    TOTALS,
    HttpTime,
    exemplar_labels,
    outcome_of,
)
from cobali_ray.telemetry.snapshot import Snapshot

T = TypeVar("T")

READ_ATTEMPTS = 1000
RING = 4096
"""Records kept of ticks, and of ended requests."""
_OBSERVED = {
    ("tick_seconds", ""): "total_s",
    **{("tick_phase_seconds", phase): f"{phase}_s" for phase in PHASES},
    **{("tick_tokens", kind): f"n_{kind}" for kind in KINDS},
    ("tick_batch_tokens", ""): "n_tokens",
    ("batch_sequences", ""): "n_sequences",
}
"""What of a tick each of these histograms observes."""
_SUMMED = {
    "output_tokens": "n_sampled", "drafted_tokens": "n_drafted", "accepted_tokens": "n_accepted",
    "adapter_changes": "n_adapter_changes", "graphs_reused": "n_reused_graphs", "preemptions": "n_preempted",
    "host_cache_hits": "n_host_hits", "host_cache_restored_tokens": "n_restored",
    "host_cache_saved_tokens": "n_saved", "host_cache_evicted_tokens": "n_evicted",
    "disk_cache_hits": "n_disk_hits", "disk_cache_read_tokens": "n_loaded",
    "disk_cache_written_tokens": "n_written",
    "embedded_texts": "n_texts", "embedded_tokens": "n_embedded",
}  # fmt: skip
"""And what each of these totals adds up."""
_observed, _summed = attrgetter(*_OBSERVED.values()), attrgetter(*_SUMMED.values())


class _Writing:
    """A version number that is odd during a write: `with writing: ...`."""

    def __init__(self) -> None:
        self.version = 0

    def __enter__(self) -> None:
        self.version += 1

    def __exit__(self, *_: object) -> None:
        self.version += 1


class Collector:
    """Look on, never steer: take records from the tick thread, give metrics to readers.

    All `on_*` methods belong to one thread. The others may be called from any thread: a version number
    that is odd during a write lets them retry instead of locking (a sequence lock), so the writer never
    waits. `now` is the clock of the records, `began_unix_s` when the engine's process began, `node` the
    address of its machine.
    """

    def __init__(
        self,
        limits: EngineLimits,
        *,
        engine_id: str = ONLY_ENGINE,
        model_name: str,
        node: str = "",
        disk_bytes: int = 0,
        began_unix_s: float = 0.0,
        ring: int = RING,
        tick_log: TickLog | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self.engine_id, self._model_name, self.node = limits, engine_id, model_name, node
        self._disk_bytes, self._began_unix_s, self._now = disk_bytes, began_unix_s, now
        self._tick_log = tick_log
        self._histograms = {
            (spec.name, value): Histogram(spec.bounds) for spec in HISTOGRAMS for value in spec.values
        }
        self._of_ticks = [self._histograms[key] for key in _OBSERVED]
        self._ring: list[TickStats | None] = [None] * ring
        self._lives = Lives(ring)
        self._embedding: dict[str, EmbeddingRequest] = {}
        """Open requests for vectors."""
        self._n_ticks = 0
        self._totals: dict[str, float] = dict.fromkeys(TOTALS, 0)
        self._counters: dict[str, dict[str, float]] = {
            name: dict.fromkeys(spec.values, 0) for name, spec in COUNTERS.items()
        }
        self._target_s = self._max_idle_s = 0.0
        self._pauses = Pauses(now())
        self._last = TickStats(tick_id=-1, started_s=0.0, n_idle=limits.n_slots, n_cells=limits.n_cells)
        self._is_idle = True
        """Whether `_last` is no tick but the state without work."""
        self._writing = _Writing()

    def _observe(self, name: str, value: float, labels: dict[str, str] | None = None) -> None:
        self._histograms[name, ""].observe(value, labels)

    def _count(self, name: str, value: str, n: float = 1) -> None:
        counts = self._counters[name]
        counts[value] = counts.get(value, 0) + n

    def on_submit(self, sequence: Sequence) -> None:
        """Take an open request, to look at until its end."""
        with self._writing:
            self._lives.enter(sequence)
            self._totals["continued"] += sequence.request.attempt > 0

    def on_embed(self, request: EmbeddingRequest) -> None:
        """Take an open request for vectors."""
        with self._writing:
            self._embedding[request.request_id] = request
            self._totals["continued"] += request.attempt > 0

    def on_tick(self, stats: TickStats) -> None:
        """Take one tick's record. It is kept, so its `gaps_s` must not be written to afterwards.

        If there is a log of ticks, it gets its line.
        """
        with self._writing:
            self._ring[self._n_ticks % len(self._ring)] = stats
            self._n_ticks += 1
            for histogram, value in zip(self._of_ticks, _observed(stats), strict=True):
                histogram.observe(value)
            for name, n in zip(_SUMMED, _summed(stats), strict=True):
                if n:
                    self._totals[name] += n
            for length in stats.chunks:
                self._observe("prefill_chunk_tokens", length)
            if len(stats.gaps_s):
                self._histograms["itl_seconds", ""].observe_many(stats.gaps_s)
            for ttft_s in stats.ttfts_s:
                self._observe("engine_ttft_seconds", ttft_s)
            if stats.predicted_s:
                error = abs(stats.predicted_s - stats.total_s) / max(stats.total_s, 1e-9)
                self._observe("tick_prediction_error_ratio", error)
                self._count("tick_prediction_seconds", "predicted", stats.predicted_s)
                self._count("tick_prediction_seconds", "real", stats.total_s)
            self._target_s = stats.target_s or self._target_s
            if stats.n_embedded:
                self._observe("embedding_pass_seconds", stats.embed_s)
                self._observe("embedding_pass_tokens", stats.n_embedded)
            out_of_work = stats.n_idle == self._limits.n_slots and not stats.n_queued
            gap_s = self._pauses.add(stats, out_of_work=out_of_work)
            if gap_s is not None:
                self._observe("tick_gap_seconds", gap_s)
            self._last, self._is_idle = stats, False
        if self._tick_log is not None:
            self._tick_log.write(stats)

    def on_idle(
        self, n_cells: int, n_queued: int = 0, n_queued_tokens: int = 0, n_texts_queued: int = 0
    ) -> None:
        """Note that the engine ran out of work, how many cells idle slots hold, and what waits all the same.

        That is what is not ready yet, and everything in a pause. Gauges that say what the engine does fall to
        zero until the next tick.
        """
        with self._writing:
            last = self._last
            self._last = TickStats(
                tick_id=last.tick_id, started_s=last.started_s, n_idle=self._limits.n_slots,
                n_cells=last.n_cells, n_cells_used=n_cells, n_cells_idle=n_cells,
                n_host_cells=last.n_host_cells, n_disk_bytes=last.n_disk_bytes,
                n_queued=n_queued, n_queued_tokens=n_queued_tokens, n_texts_queued=n_texts_queued,
            )  # fmt: skip
            self._is_idle = True
            self._pauses.begin()

    def on_end(self, end: End) -> None:
        stats = end.stats
        with self._writing:
            self._count("requests", outcome_of(end))
            if (request := self._embedding.pop(end.request_id, None)) is not None:
                self._count_tenant(request.tenant, request.priority, stats, computed=end.error is None)
                if stats.queue_s is not None:
                    self._observe("embedding_queue_seconds", stats.queue_s)
                if end.error is None:
                    self._observe("embedding_e2e_seconds", stats.e2e_s)
                return
            sequence = self._lives.end(end, self._n_ticks)
            if sequence is not None:
                tenant, priority, trace = sequence.account.tenant, sequence.priority, sequence.request.trace
            else:  # it was never seen
                tenant, priority, trace = "", 0, None
            self._count_tenant(tenant, priority, stats, computed=stats.ttft_s is not None)
            labels = exemplar_labels(end.request_id, trace)
            if stats.ttft_s is not None:  # its prompt was computed
                self._totals["prompt_tokens"] += stats.n_prompt
                self._totals["cached_prompt_tokens"] += stats.n_cached
                self._count("prefix_requests", stats.cached_from)
                self._count("prefix_tokens", stats.cached_from, stats.n_cached)
                self._count("prefix_tokens", "none", stats.n_prompt - stats.n_cached)
            computed = stats.prefill_s is not None and stats.decode_s is not None
            for name, value in (
                ("intake_seconds", stats.intake_s),
                ("queue_seconds", stats.queue_s),
                ("prefill_seconds", stats.prefill_s),
                ("decode_seconds", stats.decode_s),
                (
                    "inference_seconds",
                    (stats.prefill_s or 0.0) + (stats.decode_s or 0.0) if computed else None,
                ),
                ("tpot_seconds", stats.tpot_s),
                ("engine_e2e_seconds", stats.e2e_s),
                ("request_prompt_tokens", stats.n_prompt),
                ("request_output_tokens", stats.n_output),
            ):
                if value is not None:
                    self._observe(name, value, labels)

    def _count_tenant(self, tenant: str, priority: int, stats: RequestStats, *, computed: bool) -> None:
        """Count a request that ended. `computed`: whether its prompt was."""
        name, known = tenant or ANYONE, self._counters["tenant_requests"]
        if name not in known and len(known) >= MAX_TENANTS:
            name = OTHERS
        self._count("tenant_requests", name)
        self._count("tenant_prompt_tokens", name, stats.n_prompt - stats.n_cached if computed else 0)
        self._count("tenant_output_tokens", name, stats.n_output)
        self._count("tenant_queue_seconds", name, stats.e2e_s if stats.queue_s is None else stats.queue_s)
        self._count("class_preemptions", str(priority), stats.n_preempted)

    def on_http(self, waited: Mapping[HttpTime, list[Exemplar]]) -> None:
        """Take what clients waited for, as the ingress processes measured it."""
        with self._writing:
            for name, values in waited.items():
                for labels, seconds, _ in values:
                    self._observe(name, seconds, labels)

    def on_refusal(self, reason: str) -> None:
        """Count one refusal at the door; a reason that REFUSALS lacks counts as "other"."""
        with self._writing:
            self._count("refusals", reason if reason in REFUSALS else "other")

    def snapshot(self) -> Snapshot:
        """Return a copy of everything but the ring; what a tick adds is in it whole or not at all."""
        snapshot = self._read(self._copy)
        # A first tick under way still looks idle; a counter must not fall back when its record comes.
        self._max_idle_s = max(self._max_idle_s, snapshot.totals["idle_seconds"])
        return replace(snapshot, totals={**snapshot.totals, "idle_seconds": self._max_idle_s})

    def seen(self, last: int, since: int = 0, before: int | None = None) -> LivesView:
        """Return the newest `last` records of ticks `since .. before`, what ended in them, what is open."""
        return self._read(lambda: self._seen(last, since, before))

    def find(self, name: str, tenant: str) -> list[Life]:
        """Return a tenant's requests of this name, open ones and those that ended lately."""
        return self._read(lambda: self._lives.find(name, tenant))

    def _seen(self, last: int, since: int, before: int | None) -> LivesView:
        size, end = len(self._ring), self._n_ticks if before is None else min(before, self._n_ticks)
        start = max(since, self._n_ticks - size, end - last, 0)
        ticks = [stats for i in range(start, end) if (stats := self._ring[i % size]) is not None]
        first = ticks[0].tick_id if ticks else since
        ended = self._lives.ended(first, self._n_ticks + 1 if before is None else before)
        return LivesView(ticks, self._lives.open(), ended, self._n_ticks)

    def _read(self, copy: Callable[[], T]) -> T:
        """Copy while no write is under way. A writer that writes without pause wins after READ_ATTEMPTS."""
        for _ in range(READ_ATTEMPTS):
            before = self._writing.version
            if before % 2 == 0:
                value = copy()
                if self._writing.version == before:
                    return value
            time.sleep(0)  # let the writer finish
        return copy()

    def _copy(self) -> Snapshot:
        now_s = self._now()
        target_s = 0.0 if self._is_idle else self._target_s
        return Snapshot(
            engine_id=self.engine_id,
            model_name=self._model_name,
            node=self.node,
            limits=self._limits,
            disk_bytes=self._disk_bytes,
            began_unix_s=self._began_unix_s,
            last=replace(self._last, target_s=target_s, chunks=(), gaps_s=(), ttfts_s=(), plan=None),
            histograms={key: histogram.view() for key, histogram in self._histograms.items()},
            totals={**self._totals, "idle_seconds": self._pauses.idle_s(now_s)},
            counters={name: dict(counts) for name, counts in self._counters.items()},
        )


class Pauses:
    """Time between ticks: idle, or a gap between two passes. Moments are seconds on the engine's clock."""

    def __init__(self, since_s: float) -> None:
        """`since_s`: since when there is nothing to do."""
        self._idle_s = 0.0
        self._idle_since: float | None = since_s
        self._forward_end: float | None = None
        self._tick_end: float | None = None

    def add(self, stats: TickStats, *, out_of_work: bool) -> float | None:
        """Take a tick, after which there may be no more work. Returns the gap between passes before it."""
        forward_start, gap = stats.started_s + stats.plan_s, None
        if self._idle_since is not None:
            self._idle_s += max(0.0, stats.started_s - self._idle_since)
        elif self._forward_end is not None:
            gap = max(0.0, forward_start - self._forward_end)
        self._forward_end = forward_start + stats.forward_s
        self._tick_end = stats.started_s + stats.total_s
        self._idle_since = self._tick_end if out_of_work else None
        return gap

    def begin(self) -> None:
        """Note that work ran out after the last tick."""
        if self._idle_since is None:
            self._idle_since = self._tick_end

    def idle_s(self, now_s: float) -> float:
        """Return the time without work."""
        since_s = self._idle_since
        return self._idle_s + (0.0 if since_s is None else max(0.0, now_s - since_s))
