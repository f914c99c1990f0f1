"""Records of ticks, for telemetry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cobali_ray.core.plan.plan import Plan
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.core.views.stats import TickStats


@dataclass(slots=True)
class PhaseTimes:
    """When a tick's phases were over, on the engine's clock."""

    started: float
    planned: float = 0.0
    computed: float = 0.0
    sampled: float = 0.0
    publish_s: float = 0.0


class TickRecorder:
    """Turns a finished tick into its TickStats."""

    def __init__(self) -> None:
        self._tick_id = 0
        self._counted: Mapping[str, int] = Counter()

    def record(
        self,
        scheduler: Scheduler,
        times: PhaseTimes,
        *,
        ended_s: float,
        plan: Plan,
        n_reused: int,
    ) -> TickStats:
        counts, n_prefilling = scheduler.counts, scheduler.n_prefilling
        chunks = [chunk.length for chunk in plan.chunks]
        return TickStats(
            **self._after(scheduler, n_reused),
            started_s=times.started,
            n_decode=counts.shape.n_decode,
            n_prefill=sum(chunks),
            n_sequences=counts.shape.n_decode + len(chunks),
            n_sampled=len(plan.rows) + counts.n_accepted,
            n_prefilling=n_prefilling,
            n_generating=len(scheduler.slots.running) - n_prefilling,
            plan_s=times.planned - times.started,
            forward_s=times.computed - times.planned,
            sample_s=times.sampled - times.computed,
            publish_s=times.publish_s,
            total_s=ended_s - times.started,
            n_drafted=counts.n_drafted,
            n_accepted=counts.n_accepted,
            predicted_s=counts.predicted_s,
            target_s=scheduler.pacer.target_s,
            chunks=chunks,
            gaps_s=counts.gaps,
            ttfts_s=counts.ttfts,
            plan=plan,
        )

    def record_texts(self, scheduler: Scheduler, started_s: float, n_reused: int) -> TickStats:
        seconds = scheduler.counts.texts.seconds
        return TickStats(
            **self._after(scheduler, n_reused), started_s=started_s, forward_s=seconds, total_s=seconds
        )

    def _after(self, scheduler: Scheduler, n_reused: int) -> dict[str, Any]:
        """Return the fields of any tick's record; counters are given as their growth since the last."""
        slots, counts = scheduler.slots, scheduler.counts
        host, disk = scheduler.tiers.host, scheduler.tiers.disk
        counted = {
            "n_reused_graphs": n_reused, "n_preempted": counts.n_preempted, "n_finished": counts.n_ended,
            "n_adapter_changes": counts.n_adapter_changes,
            "n_host_hits": host.n_hits, "n_restored": host.n_restored, "n_saved": host.n_saved,
            "n_evicted": host.n_evicted,
            "n_disk_hits": disk.n_hits, "n_loaded": disk.n_loaded, "n_written": disk.n_written,
        }  # fmt: skip
        before, self._counted = self._counted, counted
        self._tick_id += 1
        return {name: n - before[name] for name, n in counted.items()} | {
            "tick_id": self._tick_id - 1,
            "n_idle": slots.n_idle,
            "n_cells": scheduler.limits.n_cells,
            "n_cells_used": slots.n_used(), "n_cells_idle": slots.n_used_idle(),
            "n_host_cells": host.n_used, "n_disk_bytes": disk.n_bytes,
            "n_embedded": counts.texts.n_tokens, "n_texts": counts.texts.n_texts,
            "embed_s": counts.texts.seconds,
        } | waiting(scheduler)  # fmt: skip


def waiting(scheduler: Scheduler) -> dict[str, int]:
    """Return the fields of a record that say what waits."""
    queue, n_texts = scheduler.queue, scheduler.texts.n_texts
    return {"n_queued": len(queue), "n_queued_tokens": queue.n_tokens, "n_texts_queued": n_texts}
