"""One engine's story -> its ticks, slots, queue and counters as rows of a trace. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest

from cobali_ray.telemetry.names import ONLY_ENGINE
from cobali_workloads.trace.recording import EngineStory, Json
from cobali_workloads.trace.requests import lanes, slot_rows, waits
from cobali_workloads.trace.shapes import Counter, Group, Slice, Timeline, Track, in_order

PAUSE_S = 0.005
"""A longer time without a tick shows as one without tokens."""
_SHOWN = (
    "tick_id", "n_decode", "n_prefill", "n_sequences", "n_sampled", "n_queued", "n_finished", "n_preempted",
    "n_reused_graphs", "predicted_s", "target_s",
)  # fmt: skip


def timeline_of(story: EngineStory, recorded_ids: Collection[str] = ()) -> Timeline:
    """Return everything that is known of one engine, in the order it is shown.

    `recorded_ids` are the ids of all requests that were recorded anywhere.
    """
    ticks = [story.ticks[tick_id] for tick_id in sorted(story.ticks)]
    requests = sorted(story.requests.values(), key=lambda request: request["arrived_s"])
    overlaps = bool(story.engine.get("overlaps"))
    waiting = [Track(f"waiting {i}", lane) for i, lane in enumerate(lanes(waits(requests, story.now_s)), 1)]
    held = slot_rows(requests, ticks, story.now_s, recorded_ids)
    slots = [Track(f"slot {slot_id}", row) for slot_id, row in held.items()]
    engine_id, node = story.engine.get("engine_id", ONLY_ENGINE), story.engine.get("node") or ""
    where = f" on {node}" if node else ""
    return Timeline(
        name=f"cobali_ray {story.engine['model']}, engine {engine_id}{where}",
        node=node,
        now_s=story.now_s,
        unix_s=story.unix_s,
        rows=(
            Track("host: tick", in_order(_host(tick, overlaps=overlaps) for tick in ticks)),
            Track("device: forward pass", in_order(_device(tick) for tick in ticks)),
            Group("slots", tuple(slots)),
            Group("queue", tuple(waiting)),
            Counter("tokens per tick", "tokens", _tokens(ticks)),
            Counter("queue length", "requests", _levels(ticks, "n_queued")),
            Counter("KV cells used", "cells", _levels(ticks, "n_cells_used")),
        ),
    )


def _host(tick: Json, *, overlaps: bool) -> Slice:
    """Return a tick and its phases.

    With overlap the tokens of the tick before are published while the pass computes: inside `forward`.
    """
    start = tick["started_s"]
    end = start + tick["total_s"]
    planned = start + tick["plan_s"]
    computed = planned + tick["forward_s"]
    publish_s = tick["publish_s"]
    inside = (Slice(planned, planned + publish_s, "publish"),) if overlaps and publish_s else ()
    phases = [
        Slice(start, planned, "plan"),
        Slice(planned, computed, "forward", children=inside),
        Slice(computed, computed + tick["sample_s"], "sample"),
    ]
    if not overlaps:
        phases.append(Slice(end - publish_s, end, "publish"))
    args = {name: tick[name] for name in _SHOWN if name in tick}
    return Slice(start, end, f"tick {tick['tick_id']}", args, in_order(phases, start, end))


def _device(tick: Json) -> Slice:
    start = tick["started_s"] + tick["plan_s"]
    words = [f"{tick[f'n_{kind}']} {kind}" for kind in ("decode", "prefill") if tick[f"n_{kind}"]]
    spans = ", ".join(f"slot {slot}: {at}..{at + n}" for slot, at, n, _ in tick["spans"])
    return Slice(start, start + tick["forward_s"], " + ".join(words), {"spans": spans})


def _tokens(ticks: Sequence[Json]) -> tuple[tuple[float, float], ...]:
    points = []
    for tick, after in zip_longest(ticks, ticks[1:]):
        points.append((tick["started_s"], float(tick["n_decode"] + tick["n_prefill"])))
        end = tick["started_s"] + tick["total_s"]
        if after is None or after["started_s"] - end > PAUSE_S:
            points.append((end, 0.0))
    return tuple(points)


def _levels(ticks: Sequence[Json], name: str) -> tuple[tuple[float, float], ...]:
    """Return a level as it was after each tick."""
    return tuple((tick["started_s"] + tick["total_s"], float(tick[name])) for tick in ticks)
