"""What a tick was, for the pacer before it runs and for telemetry after it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from cobali_ray.core.plan import Span
from cobali_ray.core.queue import WaitingQueue
from cobali_ray.core.sequence import Sequence
from cobali_ray.core.slots import SlotTable
from cobali_ray.core.spans import TickSpans
from cobali_ray.core.stats import TickStats
from cobali_ray.core.ticktime import Shape


def shape_of(plan: Seq[Span], sequences: Seq[Sequence], running: Seq[Sequence]) -> Shape:
    """Describe a tick to the pacer, and note for each waiting prompt what others are given."""
    n_decode = context = n_prefill = 0
    chunks = []
    for sequence, (_, start, length, _) in zip(sequences, plan, strict=True):
        if sequence.decoding:
            n_decode += 1
            context += start
        else:
            chunks.append((start, length))
            n_prefill += length
    n_skipped = -n_decode
    own = {span.slot_id: span.length for span in plan} if chunks else {}
    for sequence in running:
        if sequence.decoding:
            n_skipped += 1
        elif chunks:
            sequence.n_passed += n_prefill - own.get(sequence.slot_id, 0)
    return Shape(n_decode, context, tuple(chunks), n_skipped)


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
        self._tick_id = 0
        self._n_reused = 0
        self.n_preempted = self.n_ended = 0
        """Preemptions and ends since the last record."""

    def record(
        self,
        shape: Shape,
        times: TickTimes,
        *,
        ended_s: float,
        n_sampled: int,
        gaps: Seq[float],
        spans: TickSpans,
        slots: SlotTable,
        queue: WaitingQueue,
        n_prefilling: int,
        n_cells: int,
        n_reused: int,
        predicted_s: float,
        target_s: float,
    ) -> TickStats:
        """Return the tick's record and start counting for the next one."""
        n_cells_idle = slots.n_cells_idle
        chunks = [length for _, length in shape.chunks]
        stats = TickStats(
            tick_id=self._tick_id,
            started_s=times.started,
            n_decode=shape.n_decode,
            n_prefill=sum(chunks),
            n_sequences=shape.n_decode + len(chunks),
            n_sampled=n_sampled,
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
            n_cells=n_cells,
            n_cells_used=slots.n_cells_running + n_cells_idle,
            n_cells_idle=n_cells_idle,
            n_reused_graphs=n_reused - self._n_reused,
            n_preempted=self.n_preempted,
            n_finished=self.n_ended,
            predicted_s=predicted_s,
            target_s=target_s,
            chunks=chunks,
            gaps_s=gaps,
            spans=spans,
        )
        self._tick_id += 1
        self._n_reused = n_reused
        self.n_preempted = self.n_ended = 0
        return stats
