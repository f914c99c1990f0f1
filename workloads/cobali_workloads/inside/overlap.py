"""The same work with host work inline and beside the device: run it, and say what each side did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.opening import MonotonicClock
from cobali_workloads.inside.device import SimulatedBackend, TimeSpan, WatchedBackend
from cobali_workloads.inside.runs import Publishing, empty


class OverlapRun(NamedTuple):
    """One run, seconds on the machine's clock."""

    started_s: float
    ended_s: float
    device: list[TimeSpan]
    waits: list[TimeSpan]
    n_output: int

    @property
    def wall_s(self) -> float:
        """How long the run took."""
        return self.ended_s - self.started_s

    @property
    def device_share(self) -> float:
        """Share of the wall in which the device computes."""
        return sum(end - start for start, end in self.device) / self.wall_s

    @property
    def idle_s(self) -> list[float]:
        """How long the device did nothing between one pass and the next."""
        return [max(b.start_s - a.end_s, 0.0) for a, b in zip(self.device, self.device[1:], strict=False)]

    @property
    def host_s(self) -> list[float]:
        """Host time of each tick: what lies between two waits, at most as many as there are ticks."""
        return [
            after.start_s - before.end_s for before, after in zip(self.waits, self.waits[1:], strict=False)
        ]


def simulated(n_slots: int, n_ctx: int, *, overlaps: bool, tick_s: float) -> SimulatedBackend:
    """Return a scripted model on a simulated device of `tick_s` seconds per pass."""
    books = ScriptedBackend(
        n_slots=n_slots, n_ctx_slot=n_ctx, n_batch=512 + n_slots, strict=False, tick_s=0.0
    )
    return SimulatedBackend(books, overlaps=overlaps, tick_s=tick_s)


def limits_for(backend: WatchedBackend) -> EngineLimits:
    """Return limits that let every prompt be computed whole."""
    return EngineLimits(
        n_slots=backend.n_slots,
        n_ctx_slot=backend.n_ctx_slot,
        n_cells=backend.n_cells,
        token_budget=backend.n_batch,
        prefill_chunk=backend.n_batch,
        min_prefix=0,
    )


def trace(
    backend: WatchedBackend,
    limits: EngineLimits,
    requests: Sequence[Request],
    device: Callable[[float], list[TimeSpan]] | None = None,
) -> OverlapRun:
    """Run the requests through an engine that does a server's host work: events encoded, ticks counted.

    `device` says when it computed since a time, where it has a clock of its own.
    """
    empty(backend)
    backend.device, backend.waits = [], []
    server = Publishing(limits)
    clock = MonotonicClock()
    engine = Engine(backend, limits, clock, server.take)
    for request in requests:
        engine.submit(request)
    started_s = clock.now()
    while engine.has_work:
        stats = engine.tick()
        if stats is not None:
            server.on_tick(stats)
    ended_s = clock.now()
    spans = backend.device if device is None else device(started_s)
    return OverlapRun(started_s, ended_s, spans, backend.waits, server.n_output)


def middle(run: OverlapRun, n_ticks: int) -> dict[str, list[tuple[float, float]]]:
    """Return (start, duration) of device and host work over `n_ticks` passes from the middle of a run.

    The host works whenever it does not wait. Times count from the first of these passes.
    """
    at = max(0, (len(run.device) - n_ticks) // 2)
    device = run.device[at : at + n_ticks]
    if not device:
        return {"device": [], "host": []}
    zero = device[0].start_s
    waits = [wait for wait in run.waits if zero <= wait.start_s <= device[-1].end_s]
    busy = [(start - zero, end - start) for start, end in device]
    edges = [TimeSpan(zero, zero), *waits]
    host = [
        (before.end_s - zero, after.start_s - before.end_s)
        for before, after in zip(edges, waits, strict=False)
    ]
    return {"device": busy, "host": [(start, length) for start, length in host if length > 0]}
