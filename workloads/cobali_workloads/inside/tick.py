"""Host time of one tick outside forward pass and sampling.

The scripted backend stands for the model; events are encoded for the wire and counted by the collector,
as the server does. Every slot generates, and only the ticks in which all of them do count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.core.views.stats import TickStats
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.opening import MonotonicClock
from cobali_workloads.inside.runs import Publishing

N_PROMPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTime:
    """Seconds per tick, one array entry per tick."""

    plan_s: np.ndarray
    publish_s: np.ndarray
    rest_s: np.ndarray
    """Fill, apply, records and the observer."""

    @property
    def total_s(self) -> np.ndarray:
        """All host time outside forward and sampling."""
        total: np.ndarray = self.plan_s + self.publish_s + self.rest_s
        return total


def measure(n_slots: int, n_ticks: int) -> HostTime:
    """Tick with every slot generating."""
    n_ctx = N_PROMPT + n_ticks + 8
    backend = ScriptedBackend(
        n_slots=n_slots, n_ctx_slot=n_ctx, n_batch=512 + n_slots, strict=False, tick_s=0.0
    )
    limits = EngineLimits(
        n_slots=n_slots,
        n_ctx_slot=n_ctx,
        n_cells=backend.n_cells,
        token_budget=512 + n_slots,
        prefill_chunk=512,
    )
    server = Publishing(limits)
    clock = MonotonicClock()
    engine = Engine(backend, limits, clock, server.take)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    for i in range(n_slots):
        prompt = tuple(65 + (i + k) % 26 for k in range(N_PROMPT))
        engine.submit(
            Request(request_id=f"chatcmpl-{i:032d}", prompt=prompt, max_tokens=n_ticks, sampling=sampling)
        )
    records: list[tuple[TickStats, float]] = []
    while engine.has_work:
        started = clock.now()
        stats = engine.tick()
        if stats is None:
            continue
        server.on_tick(stats)
        if stats.n_decode == n_slots:
            records.append((stats, clock.now() - started))
    plan, publish, rest = (
        np.array([s.plan_s for s, _ in records]),
        np.array([s.publish_s for s, _ in records]),
        np.array([wall - s.plan_s - s.publish_s - s.forward_s - s.sample_s for s, wall in records]),
    )
    return HostTime(plan_s=plan, publish_s=publish, rest_s=rest)
