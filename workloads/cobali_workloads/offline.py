"""The runner: a prompts file through an Engine in process, sequential or continuous."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from cobali_ray.core.queue.admission import fit
from cobali_ray.core.request.events import Delta, End, EngineEvent, RequestStats
from cobali_ray.core.request.limits import PrefillOrder
from cobali_ray.core.request.request import Request
from cobali_ray.core.views.stats import TickStats
from cobali_ray.engine.engine import Engine, Sink
from cobali_ray.errors import PromptTooLongError

SEQUENTIAL = {"n_slots": 1, "prefill_chunk": 0, "token_budget": None, "kv_cells": None}
"""Settings for one request at a time, whose prompt is computed whole: the baseline."""
ARRIVAL: PrefillOrder = "fcfs"
"""Prompts in the order of their arrival, as in the original."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """What a run took. Times in seconds; the model's loading is not in them."""

    wall_s: float
    user_s: float
    """CPU time of this process in user mode."""
    n_prompt: int
    n_output: int
    requests: dict[str, RequestStats]
    texts: dict[str, str]
    failed: dict[str, str] = field(default_factory=dict)
    n_ticks: int = 0
    host_s: float = 0.0
    """Time of all ticks outside forward pass and sampling."""
    n_preempted: int = 0
    n_computed: int = 0
    """Tokens of all passes: fewer than all texts have if prefixes are reused, more if work is lost."""

    @property
    def output_tokens_per_s(self) -> float:
        """Throughput."""
        return self.n_output / self.wall_s if self.wall_s else 0.0

    def percentiles(self, name: str, shares: Sequence[float] = (0.5, 0.9, 0.99)) -> tuple[float, ...] | None:
        """Return percentiles of one field of the requests' statistics; None if no request has it."""
        values = sorted(v for stats in self.requests.values() if (v := getattr(stats, name)) is not None)
        if not values:
            return None
        return tuple(values[min(int(share * len(values)), len(values) - 1)] for share in shares)


MakeEngine: TypeAlias = Callable[[Sink], Engine]
"""Returns an engine that nobody uses yet, such as `engine_on` with all but the sink given."""


def run_offline(
    make: MakeEngine,
    requests: Sequence[Request],
    *,
    on_end: Callable[[End], None] = lambda _: None,
    on_tick: Callable[[TickStats], None] = lambda _: None,
) -> RunReport:
    """Submit all requests at once and tick until each has ended.

    A prompt that could never fit is reported as failed, like any request that ends with an error.
    """
    texts: dict[str, list[str]] = {r.request_id: [] for r in requests}
    ends: dict[str, End] = {}

    def sink(batch: list[tuple[str, EngineEvent]]) -> None:
        for _, event in batch:
            if isinstance(event, Delta):
                texts[event.request_id].append(event.text)
            elif isinstance(event, End):
                ends[event.request_id] = event
                on_end(event)

    engine = make(sink)
    refused = {}
    n_ticks, host_s, n_preempted, n_computed = 0, 0.0, 0, 0
    user, started = os.times().user, engine.now()
    for request in requests:
        try:
            engine.submit(fit(request, engine.limits.n_most))
        except PromptTooLongError as error:
            refused[request.request_id] = str(error)
    while engine.has_work:
        stats = engine.tick()
        if stats is not None:
            n_ticks += 1
            host_s += stats.total_s - stats.forward_s - stats.sample_s
            n_preempted += stats.n_preempted
            n_computed += stats.n_tokens
            on_tick(stats)
    wall_s = engine.now() - started
    return RunReport(
        wall_s=wall_s,
        user_s=os.times().user - user,
        n_prompt=sum(e.stats.n_prompt for e in ends.values()),
        n_output=sum(e.stats.n_output for e in ends.values()),
        requests={i: e.stats for i, e in ends.items() if e.error is None},
        texts={i: "".join(parts) for i, parts in texts.items()},
        failed=refused | {i: str(e.error) for i, e in ends.items() if e.error is not None},
        n_ticks=n_ticks,
        host_s=host_s,
        n_preempted=n_preempted,
        n_computed=n_computed,
    )
