"""Records for the telemetry tests: plain values with a few fields to choose."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from prometheus_client.samples import Exemplar

from cobali_ray.core.request.events import End, RequestStats
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.views.stats import DeviceView, TickStats
from cobali_ray.errors import DeadlineExceededError, InternalError, RequestCancelledError
from cobali_ray.telemetry.collector import Collector
from cobali_ray.telemetry.exposition import EngineMetrics, Presence, render_all
from cobali_ray.telemetry.families import batch_families
from cobali_ray.telemetry.names import HttpAnswer
from cobali_ray.telemetry.snapshot import Snapshot
from cobali_ray.telemetry.usage import ProcessUsage

N_SLOTS = 8
N_CELLS = 1000


def make_collector(**changes: Any) -> Collector:
    bounds = {
        "n_slots": N_SLOTS, "n_cells": N_CELLS, "token_budget": 64, "n_ctx_slot": 125,
        "max_queue": 16, "max_queue_tokens": 2000,
    }  # fmt: skip
    names = {field.name for field in fields(EngineLimits)}
    bounds |= {name: changes.pop(name) for name in list(changes) if name in names}
    facts = {"model_name": "tiny", "node": "10.0.0.1", "began_unix_s": 1.7e9, "now": lambda: 10.0}
    return Collector(EngineLimits(**bounds), **facts | changes)


def make_tick(tick_id: int = 0, **changes: Any) -> TickStats:
    return TickStats(
        **{
            "tick_id": tick_id,
            "started_s": tick_id * 0.03,
            "n_decode": 3,
            "n_prefill": 32,
            "n_sequences": 4,
            "n_sampled": 3,
            "n_idle": 4,
            "n_prefilling": 1,
            "n_generating": 3,
            "n_queued": 2,
            "n_queued_tokens": 77,
            "plan_s": 0.001,
            "forward_s": 0.016,
            "sample_s": 0.002,
            "publish_s": 0.0005,
            "total_s": 0.02,
            "n_cells": N_CELLS,
            "n_cells_used": 300,
            "n_cells_idle": 50,
            "n_reused_graphs": 1,
            "n_preempted": 0,
            "n_finished": 0,
            "chunks": [24, 8],
            "gaps_s": [0.02, 0.021, 0.3],
            **changes,
        }
    )


LIFE = RequestStats(
    n_prompt=40, n_cached=10, n_output=5, queue_s=0.004, prefill_s=0.03, ttft_s=0.034, decode_s=0.08,
    e2e_s=0.115, intake_s=0.02,
)  # fmt: skip
IN_QUEUE = RequestStats(
    n_prompt=90, n_cached=0, n_output=0, queue_s=None, prefill_s=None, ttft_s=None, decode_s=None, e2e_s=1.5
)
STOPPED = End("r1", "stop", None, LIFE)
LENGTH = End("r2", "length", None, LIFE)
CANCELLED = End("r3", None, RequestCancelledError(), IN_QUEUE)
LATE = End("r4", None, DeadlineExceededError(1.5), IN_QUEUE)
BROKEN = End("r5", None, InternalError("secret text"), LIFE)
ENDS = (STOPPED, LENGTH, CANCELLED, LATE, BROKEN)


def waited(seconds: float) -> Exemplar:
    """Return what a client waited for, as an ingress tells it."""
    return Exemplar({"answer_id": "chatcmpl-1"}, seconds)


def fed_collector() -> Collector:
    """Return a collector after four ticks, five ends and three refusals."""
    collector = make_collector()
    for tick_id in range(4):
        collector.on_tick(make_tick(tick_id))
    for end in ENDS:
        collector.on_end(end)
    for reason in ("queue_full_requests", "draining", "never heard of"):
        collector.on_refusal(reason)
    collector.on_http({"ttft_seconds": [waited(0.06), waited(0.07)], "e2e_seconds": [waited(0.14)]})
    return collector


def render(snapshot: Snapshot | None, presence: Presence | None = None, *answers: Any) -> str:
    """Return the text of one engine."""
    return render_all([EngineMetrics(snapshot, presence, *answers)]).decode()


def exposition() -> str:
    device = DeviceView(name="worker-1", kind="GPU", free_bytes=3 << 20, total_bytes=4 << 20, busy_s=0.5)
    usage = ProcessUsage("engine", 11, 3 << 20, 1.5)
    snapshot = replace(fed_collector().snapshot(), usage=usage, devices=(device,))
    presence = Presence(engine_id="0", up=True, down_s=0.0, n_restarts=2)
    others = [ProcessUsage("ingress", 12, 2 << 20, 0.5), ProcessUsage("front_end", 13, 1 << 20, 0.25)]
    answers = {HttpAnswer("/v1/chat/completions", "POST", 200): 5, HttpAnswer("unmatched", "GET", 401): 2}
    batches = batch_families({"in_progress": 2}, {"waiting": 7, "answered": 2, "failed": 1})
    return render_all([EngineMetrics(snapshot, presence, answers)], others, others=batches).decode()
