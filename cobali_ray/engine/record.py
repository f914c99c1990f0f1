"""What a tick was, for telemetry after it."""

from __future__ import annotations

from dataclasses import dataclass

from cobali_ray.core.plan import Plan
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.core.spans import TickSpans
from cobali_ray.core.stats import TickStats


@dataclass(slots=True)
class TickTimes:
    """When a tick's phases were over, on the engine's clock."""

    started: float
    planned: float = 0.0
    computed: float = 0.0
    sampled: float = 0.0
    publish_s: float = 0.0


class Recorder:
    """Turns a finished tick into its TickStats."""

    def __init__(self) -> None:
        self._tick_id = self._n_reused = self._n_preempted = self._n_ended = self._n_adapter_changes = 0
        self._moved = (0,) * 7

    def record(
        self,
        scheduler: Scheduler,
        times: TickTimes,
        *,
        ended_s: float,
        plan: Plan,
        spans: TickSpans,
        n_reused: int,
    ) -> TickStats:
        """Return the tick's record; what is counted since ever is told as its growth."""
        slots, queue, counts = scheduler.slots, scheduler.queue, scheduler.counts
        shape = counts.shape
        n_prefilling = scheduler.n_prefilling
        chunks = [chunk.length for chunk in plan.chunks]
        host, disk = scheduler.tiers.host, scheduler.tiers.disk
        on_host = (host.n_hits, host.n_restored, host.n_saved, host.n_evicted)
        moved = (*on_host, disk.n_hits, disk.n_loaded, disk.n_written)
        grown = tuple(map(int.__sub__, moved, self._moved))
        n_hits, n_restored, n_saved, n_evicted, n_disk_hits, n_loaded, n_written = grown
        stats = TickStats(
            tick_id=self._tick_id,
            started_s=times.started,
            n_decode=shape.n_decode,
            n_prefill=sum(chunks),
            n_sequences=shape.n_decode + len(chunks),
            n_sampled=len(plan.rows) + counts.n_accepted,
            n_idle=slots.n_idle,
            n_prefilling=n_prefilling,
            n_generating=len(slots.running) - n_prefilling,
            n_queued=len(queue),
            n_queued_tokens=queue.n_tokens,
            plan_s=times.planned - times.started,
            forward_s=times.computed - times.planned,
            sample_s=times.sampled - times.computed,
            publish_s=times.publish_s,
            total_s=ended_s - times.started,
            n_cells=scheduler.limits.n_cells,
            n_cells_used=slots.n_used(),
            n_cells_idle=slots.n_used_idle(),
            n_reused_graphs=n_reused - self._n_reused,
            n_preempted=counts.n_preempted - self._n_preempted,
            n_finished=counts.n_ended - self._n_ended,
            n_host_cells=host.n_used,
            n_host_hits=n_hits,
            n_restored=n_restored,
            n_saved=n_saved,
            n_evicted=n_evicted,
            n_disk_bytes=disk.n_bytes,
            n_disk_hits=n_disk_hits,
            n_loaded=n_loaded,
            n_written=n_written,
            n_adapter_changes=counts.n_adapter_changes - self._n_adapter_changes,
            n_drafted=counts.n_drafted,
            n_accepted=counts.n_accepted,
            n_embedded=counts.texts.n_tokens,
            n_texts=counts.texts.n_texts,
            n_texts_queued=_n_texts(scheduler),
            embed_s=counts.texts.seconds,
            predicted_s=counts.predicted_s,
            target_s=scheduler.target_s,
            chunks=chunks,
            gaps_s=counts.gaps,
            spans=spans,
        )
        self._tick_id += 1
        self._moved = moved
        self._n_reused, self._n_preempted, self._n_ended = n_reused, counts.n_preempted, counts.n_ended
        self._n_adapter_changes = counts.n_adapter_changes
        return stats

    def record_texts(self, scheduler: Scheduler, started_s: float) -> TickStats:
        """Return the record of a tick that only embedded."""
        slots, queue, counts = scheduler.slots, scheduler.queue, scheduler.counts
        seconds = counts.texts.seconds
        stats = TickStats(
            tick_id=self._tick_id,
            started_s=started_s,
            n_decode=0,
            n_prefill=0,
            n_sequences=0,
            n_sampled=0,
            n_idle=slots.n_idle,
            n_prefilling=0,
            n_generating=0,
            n_queued=len(queue),
            n_queued_tokens=queue.n_tokens,
            plan_s=0.0,
            forward_s=seconds,
            sample_s=0.0,
            publish_s=0.0,
            total_s=seconds,
            n_cells=scheduler.limits.n_cells,
            n_cells_used=slots.n_used(),
            n_cells_idle=slots.n_used_idle(),
            n_reused_graphs=0,
            n_preempted=0,
            n_finished=counts.n_ended - self._n_ended,
            n_host_cells=scheduler.tiers.host.n_used,
            n_disk_bytes=scheduler.tiers.disk.n_bytes,
            n_embedded=counts.texts.n_tokens,
            n_texts=counts.texts.n_texts,
            n_texts_queued=_n_texts(scheduler),
            embed_s=seconds,
            gaps_s=(),
        )
        self._tick_id += 1
        self._n_ended = counts.n_ended
        return stats


def _n_texts(scheduler: Scheduler) -> int:
    return 0 if scheduler.texts is None else scheduler.texts.n_texts
