"""Collector: exact counters and a ring of tick records, written by one thread, read by another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from cobali_ray.core.embedding import EmbeddingRequest
from cobali_ray.core.events import TIERS, End
from cobali_ray.core.sequence import Sequence
from cobali_ray.core.stats import TickStats
from cobali_ray.telemetry.exposition import render
from cobali_ray.telemetry.histogram import Histogram
from cobali_ray.telemetry.lives import Lives, Seen
from cobali_ray.telemetry.names import HISTOGRAMS, ONLY_ENGINE, OUTCOMES, REFUSALS, HttpTime, outcome_of
from cobali_ray.telemetry.pauses import Pauses
from cobali_ray.telemetry.snapshot import Levels, Snapshot
from cobali_ray.telemetry.tenants import Tenants

T = TypeVar("T")

READ_ATTEMPTS = 1000
RING = 4096
"""Records kept of ticks, and of ended requests."""


class Collector:
    """Look on, never steer: take records from the tick thread, give metrics to whoever asks.

    All `on_*` methods belong to one thread. The others may be called from any thread: a version number
    that is odd during a write lets them retry instead of locking (a sequence lock), so the writer never
    waits. `now` is the clock of the records; without it there is no `cobali_last_tick_age_seconds`, and
    idle time counts only once it has ended. `opened_at_s` is the Unix time of the engine's start,
    `node` the address of its machine.
    """

    def __init__(
        self,
        *,
        engine_id: str = ONLY_ENGINE,
        model_name: str,
        node: str = "",
        n_slots: int,
        n_cells: int,
        token_budget: int,
        n_ctx_slot: int,
        n_host_cells: int = 0,
        cell_bytes: int = 0,
        disk_bytes: int = 0,
        max_queue: int = 0,
        max_queue_tokens: int = 0,
        opened_at_s: float = 0.0,
        ring: int = RING,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.engine_id = engine_id
        self._node = node
        self._model_name, self._token_budget, self._n_ctx_slot = model_name, token_budget, n_ctx_slot
        self._n_slots, self._n_cells = n_slots, n_cells
        self._n_host_cells, self._cell_bytes, self._disk_bytes = n_host_cells, cell_bytes, disk_bytes
        self._max_queue, self._max_queue_tokens = max_queue, max_queue_tokens
        self._opened_at_s = opened_at_s
        self._histograms = {
            (spec.name, value): Histogram(spec.bounds) for spec in HISTOGRAMS for value in spec.values
        }
        pick = self._histograms.__getitem__
        self._tick, self._gap = pick(("tick_seconds", "")), pick(("tick_gap_seconds", ""))
        self._plan, self._forward, self._sample, self._publish = (
            pick(("tick_phase_seconds", phase)) for phase in ("plan", "forward", "sample", "publish")
        )
        self._decode, self._prefill = pick(("tick_tokens", "decode")), pick(("tick_tokens", "prefill"))
        self._batch_tokens, self._sequences = pick(("tick_batch_tokens", "")), pick(("batch_sequences", ""))
        self._chunk = pick(("prefill_chunk_tokens", ""))
        self._itl, self._ttft = pick(("itl_seconds", "")), pick(("engine_ttft_seconds", ""))
        self._error = pick(("tick_prediction_error_ratio", ""))
        self._ring: list[TickStats | None] = [None] * ring
        self._lives, self._tenants = Lives(ring), Tenants()
        self._n_ticks = self._n_output = self._n_reused = self._n_preempted = self._n_continued = 0
        self._n_prompt = self._n_cached = 0
        self._tier_requests: dict[str, int] = dict.fromkeys(TIERS, 0)
        self._tier_tokens: dict[str, int] = dict.fromkeys(TIERS, 0)
        self._n_host_hits = self._n_restored = self._n_saved = self._n_evicted = self._n_on_host = 0
        self._n_disk_hits = self._n_loaded = self._n_written = self._n_disk_bytes = 0
        self._n_drafted = self._n_accepted = self._n_adapter_changes = self._n_texts = self._n_embedded = 0
        self._pass, self._pass_tokens = (
            pick(("embedding_pass_seconds", "")),
            pick(("embedding_pass_tokens", "")),
        )
        self._embedding: dict[str, EmbeddingRequest] = {}
        """Open requests for vectors."""
        self._predicted_s = self._real_s = self._target_s = 0.0
        self._requests, self._refusals = dict.fromkeys(OUTCOMES, 0), dict.fromkeys(REFUSALS, 0)
        self._now = now
        self._idle_shown_s = 0.0
        self._pauses = Pauses(now() if now else None)
        self._last: TickStats | None = None
        self._idle_levels = Levels(n_idle=n_slots, n_cells=n_cells)
        self._version = 0

    @property
    def node(self) -> str:
        """The address of the machine."""
        return self._node

    def on_submit(self, sequence: Sequence) -> None:
        """Take an open request, to look at until its end."""
        self._version += 1
        self._lives.enter(sequence)
        self._n_continued += sequence.request.attempt > 0
        self._version += 1

    def on_embed(self, request: EmbeddingRequest) -> None:
        """Take an open request for vectors."""
        self._version += 1
        self._embedding[request.request_id] = request
        self._n_continued += request.attempt > 0
        self._version += 1

    def on_tick(self, stats: TickStats) -> None:
        """Take one tick's record. It is kept, so its `gaps_s` must not be written to afterwards."""
        self._version += 1
        try:
            self._ring[self._n_ticks % len(self._ring)] = stats
            self._n_ticks += 1
            self._tick.observe(stats.total_s)
            self._plan.observe(stats.plan_s)
            self._forward.observe(stats.forward_s)
            self._sample.observe(stats.sample_s)
            self._publish.observe(stats.publish_s)
            self._decode.observe(stats.n_decode)
            self._prefill.observe(stats.n_prefill)
            self._batch_tokens.observe(stats.n_tokens)
            self._sequences.observe(stats.n_sequences)
            for length in stats.chunks:
                self._chunk.observe(length)
            if len(stats.gaps_s):
                self._itl.observe_many(stats.gaps_s)
            n_streams = stats.n_sampled - stats.n_accepted
            if n_streams > len(stats.gaps_s):  # who gained a token but no gap gained its first one
                for ttft_s in self._lives.first_tokens():
                    self._ttft.observe(ttft_s)
            if stats.predicted_s:
                self._error.observe(abs(stats.predicted_s - stats.total_s) / max(stats.total_s, 1e-9))
                self._predicted_s += stats.predicted_s
                self._real_s += stats.total_s
            self._target_s = stats.target_s or self._target_s
            self._n_output += stats.n_sampled
            self._n_adapter_changes += stats.n_adapter_changes
            self._n_drafted += stats.n_drafted
            self._n_accepted += stats.n_accepted
            if stats.n_embedded:
                self._n_texts += stats.n_texts
                self._n_embedded += stats.n_embedded
                self._pass.observe(stats.embed_s)
                self._pass_tokens.observe(stats.n_embedded)
            self._n_reused += stats.n_reused_graphs
            self._n_preempted += stats.n_preempted
            self._n_host_hits += stats.n_host_hits
            self._n_restored += stats.n_restored
            self._n_saved += stats.n_saved
            self._n_evicted += stats.n_evicted
            self._n_on_host = stats.n_host_cells
            self._n_disk_hits += stats.n_disk_hits
            self._n_loaded += stats.n_loaded
            self._n_written += stats.n_written
            self._n_disk_bytes = stats.n_disk_bytes
            out_of_work = stats.n_idle == self._n_slots and not stats.n_queued
            gap_s = self._pauses.add(stats, out_of_work=out_of_work)
            if gap_s is not None:
                self._gap.observe(gap_s)
            self._last = stats
        finally:
            self._version += 1

    def on_idle(self, *, n_queued: int, n_cells_used: int, n_cells_idle: int) -> None:
        """Note that the engine ran out of work; the gauges fall to zero until the next tick."""
        self._version += 1
        try:
            self._idle_levels = Levels(
                n_idle=self._n_slots,
                n_queued=n_queued,
                n_queued_tokens=self._last.n_queued_tokens if self._last and n_queued else 0,
                n_cells=self._n_cells,
                n_cells_used=n_cells_used,
                n_cells_idle=n_cells_idle,
                n_host_cells=self._n_on_host,
                n_disk_bytes=self._n_disk_bytes,
            )
            self._last = None
            self._pauses.begin()
        finally:
            self._version += 1

    def on_end(self, end: End) -> None:
        """Take the end event of one request."""
        stats = end.stats
        self._version += 1
        try:
            if (request := self._embedding.pop(end.request_id, None)) is not None:
                self._end_embedding(request, end)
                return
            self._tenants.add(*self._lives.whose(end.request_id), stats)
            untold_s = self._lives.end(end, self._n_ticks)
            self._requests[outcome_of(end)] += 1
            if stats.ttft_s is not None:  # its prompt was computed
                self._n_prompt += stats.n_prompt
                self._n_cached += stats.n_cached
                self._tier_requests[stats.cached_from] += 1
                self._tier_tokens[stats.cached_from] += stats.n_cached
                self._tier_tokens["none"] += stats.n_prompt - stats.n_cached
            for name, value in (
                ("intake_seconds", stats.intake_s),
                ("queue_seconds", stats.queue_s),
                ("engine_ttft_seconds", untold_s),
                ("prefill_seconds", stats.prefill_s),
                ("decode_seconds", stats.decode_s),
                ("tpot_seconds", stats.tpot_s),
                ("engine_e2e_seconds", stats.e2e_s),
                ("request_prompt_tokens", stats.n_prompt),
                ("request_output_tokens", stats.n_output),
            ):
                if value is not None:
                    self._histograms[name, ""].observe(value)
            if stats.prefill_s is not None and stats.decode_s is not None:
                self._histograms["inference_seconds", ""].observe(stats.prefill_s + stats.decode_s)
        finally:
            self._version += 1

    def _end_embedding(self, request: EmbeddingRequest, end: End) -> None:
        stats = end.stats
        self._tenants.add(request.tenant, request.priority, stats, computed=end.error is None)
        self._requests[outcome_of(end)] += 1
        if stats.queue_s is not None:
            self._histograms["embedding_queue_seconds", ""].observe(stats.queue_s)
        if end.error is None:
            self._histograms["embedding_e2e_seconds", ""].observe(stats.e2e_s)

    def on_http(self, seconds: Mapping[HttpTime, list[float]]) -> None:
        """Take what clients waited for, as the ingress processes measured it."""
        self._version += 1
        try:
            for name, values in seconds.items():
                self._histograms[name, ""].observe_many(values)
        finally:
            self._version += 1

    def on_refusal(self, reason: str) -> None:
        """Count one refusal at the door; a reason that REFUSALS lacks counts as "other"."""
        self._version += 1
        self._refusals[reason if reason in self._refusals else "other"] += 1
        self._version += 1

    def snapshot(self) -> Snapshot:
        """Return a copy of everything but the ring; what a tick adds is in it whole or not at all."""
        snapshot = self._read(self._copy)
        # A first tick under way still looks idle; a counter must not fall back when its record comes.
        self._idle_shown_s = max(self._idle_shown_s, snapshot.totals["idle_seconds"])
        return replace(snapshot, totals={**snapshot.totals, "idle_seconds": self._idle_shown_s})

    def exposition(self) -> str:
        """Return the Prometheus text format, version 0.0.4."""
        return render(self.snapshot())

    def summary(self) -> dict[str, object]:
        """Return percentiles of TTFT, ITL, TPOT, queue, E2E and tick time (seconds), and totals."""
        return self.snapshot().summary()

    def ticks(self, last: int) -> list[TickStats]:
        """Return at most `last` records, newest last."""
        return self._read(lambda: self._tail(last))

    def seen(self, last: int, since: int = 0, before: int | None = None) -> Seen:
        """Return the newest `last` records of ticks `since .. before`, who ended in them, and who is open."""
        return self._read(lambda: self._seen(last, since, before))

    def _seen(self, last: int, since: int, before: int | None) -> Seen:
        end = self._n_ticks if before is None else min(before, self._n_ticks)
        ticks = self._tail(last, since, end)
        first = ticks[0].tick_id if ticks else since
        ended = self._lives.ended(first, self._n_ticks + 1 if before is None else before)
        return Seen(ticks, self._lives.open(), ended, self._n_ticks)

    def _tail(self, last: int, since: int = 0, before: int | None = None) -> list[TickStats]:
        size, n_ticks = len(self._ring), self._n_ticks
        end = n_ticks if before is None else before
        start = max(since, n_ticks - size, end - last, 0)
        return [stats for i in range(start, end) if (stats := self._ring[i % size]) is not None]

    def _read(self, copy: Callable[[], T]) -> T:
        """Copy while no write is under way. A writer that writes without pause wins after READ_ATTEMPTS."""
        for _ in range(READ_ATTEMPTS):
            before = self._version
            if before % 2 == 0:
                value = copy()
                if self._version == before:
                    return value
            time.sleep(0)  # let the writer finish
        return copy()

    def _copy(self) -> Snapshot:
        last, now_s = self._last, self._now() if self._now else None
        return Snapshot(
            engine_id=self.engine_id,
            model_name=self._model_name,
            node=self._node,
            token_budget=self._token_budget,
            n_ctx_slot=self._n_ctx_slot,
            n_host_cells=self._n_host_cells,
            cell_bytes=self._cell_bytes,
            disk_bytes=self._disk_bytes,
            max_queue=self._max_queue,
            max_queue_tokens=self._max_queue_tokens,
            opened_at_s=self._opened_at_s,
            levels=self._idle_levels if last is None else Levels.after(last, target_s=self._target_s),
            predictions={"predicted": self._predicted_s, "real": self._real_s},
            histograms={key: histogram.view() for key, histogram in self._histograms.items()},
            totals={
                "prompt_tokens": self._n_prompt,
                "cached_prompt_tokens": self._n_cached,
                "output_tokens": self._n_output,
                "adapter_changes": self._n_adapter_changes,
                "drafted_tokens": self._n_drafted,
                "accepted_tokens": self._n_accepted,
                "host_cache_hits": self._n_host_hits,
                "host_cache_restored_tokens": self._n_restored,
                "host_cache_saved_tokens": self._n_saved,
                "host_cache_evicted_tokens": self._n_evicted,
                "disk_cache_hits": self._n_disk_hits,
                "disk_cache_read_tokens": self._n_loaded,
                "disk_cache_written_tokens": self._n_written,
                "embedded_texts": self._n_texts,
                "embedded_tokens": self._n_embedded,
                "continued": self._n_continued,
                "preemptions": self._n_preempted,
                "graphs_reused": self._n_reused,
                "idle_seconds": self._pauses.idle_s(now_s),
            },
            tier_requests=dict(self._tier_requests),
            tier_tokens=dict(self._tier_tokens),
            tenants=self._tenants.counts(),
            class_preemptions=self._tenants.preemptions(),
            requests=dict(self._requests),
            refusals=dict(self._refusals),
            last_tick_age_s=None if now_s is None else self._pauses.age_s(now_s),
        )
