"""How long who waits for a slot is told that it takes, and how long it takes, on a simulated engine.

Scheduler, door and forecast are the product's; ticks take what a formula says. Answers end by a token, so
nobody knows beforehand how long they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from random import Random
from typing import NamedTuple

from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.core.views.progress import ProgressReports
from cobali_workloads.inside.devices import HALF_B
from cobali_workloads.inside.simulated import engine_of
from cobali_workloads.inside.tenants import TIMES
from cobali_workloads.simulate.ticks import TickProfile

END = 1
MAX_TOKENS = 2048
SAMPLING = SamplingParams(temperature=0.0, stop_token_ids=(END,))
LENGTHS: Mapping[str, Callable[[Random], int]] = {
    "all 120": lambda _: 120,
    "50 to 200": lambda draw: draw.randint(50, 200),
    "exponential, mean 120": lambda draw: min(1 + int(draw.expovariate(1 / 119)), MAX_TOKENS),
}
"""How many tokens answers have."""
ENGINES: Mapping[str, TickProfile] = {
    "15 ms a tick": TIMES,
    "0.5B, Q8_0": TickProfile(limits=TIMES.limits, table=HALF_B.table),
}
N_CAPACITY = 200
"""Requests that come at once, to find out how many the engine can answer a second."""


class Wait(NamedTuple):
    """A wait as it was told first, in the tick after the request came, and as it was from then on."""

    forecast_s: float | None
    by_rate_s: float | None
    """What the door would have said: those ahead and itself, by the rate at which the queue drains."""
    real_s: float
    n_ahead: int

    def error(self, told_s: float | None) -> float | None:
        """Return by which share of the real wait a told one is wrong; None where nothing was told."""
        return None if told_s is None else abs(told_s - self.real_s) / max(self.real_s, 1e-3)


class Come(NamedTuple):
    at_s: float
    request: Request
    answer: bytes


def asks(lengths: str, rps: float, n: int, seed: int) -> list[Come]:
    """Return requests that come at random times; all at once where `rps` is endless."""
    draw, at_s, found = Random(f"{seed} {lengths}"), 0.0, list[Come]()
    for i in range(n):
        at_s += 0.0 if rps == inf else draw.expovariate(rps)
        first = draw.randrange(1 << 30)
        prompt = tuple(range(first, first + draw.randint(100, 1500)))
        answer = bytes(LENGTHS[lengths](draw) - 1) + bytes([END])
        request = Request(
            request_id=f"{i}", prompt=prompt, max_tokens=MAX_TOKENS, sampling=SAMPLING, progress=True
        )
        found.append(Come(at_s, request, answer))
    return found


def play(come: Sequence[Come], seed: int, times: TickProfile) -> tuple[list[Wait], float]:
    """Have an engine serve them; return the waits of who waited, and when nine of ten had ended."""
    endless = replace(times, limits=replace(times.limits, max_queue=1 << 40, max_queue_tokens=1 << 60))
    engine, reports = engine_of(endless, seed), ProgressReports()
    scheduler = engine.scheduler
    left, now_s, fresh = list(reversed(come)), 0.0, list[str]()
    told: dict[str, tuple[float, float | None, float | None, int]] = {}
    waits, ended_s, arrived_s = list[Wait](), list[float](), dict[str, float]()
    while left or scheduler.n_open:
        if not scheduler.n_open:
            now_s = max(now_s, left[-1].at_s)
        while left and left[-1].at_s <= now_s:
            one = left.pop()
            engine.submit(one.request, one.answer, now_s)
            arrived_s[one.request.request_id] = now_s
            fresh.append(one.request.request_id)
        if (took_s := engine.begin(now_s)) is None:
            continue
        now_s += took_s
        ends = engine.end(now_s).ends
        if fresh and len(scheduler.queue):
            places, rps = reports.places(scheduler), scheduler.drain_rps
            for request_id in fresh:
                if (place := places.get(request_id)) is not None:
                    by_rate_s = (place.n_ahead + 1) / rps if rps else None
                    told[request_id] = (now_s, place.wait_s, by_rate_s, place.n_ahead)
        fresh.clear()
        for end in ends:
            ended_s.append(now_s)
            reports.ended(end.request_id, end.stats, well=True)
            if (said := told.pop(end.request_id, None)) is not None and end.stats.queue_s is not None:
                at_s, told_s, by_rate_s, n_ahead = said
                real_s = arrived_s[end.request_id] + end.stats.queue_s - at_s
                waits.append(Wait(told_s, by_rate_s, max(real_s, 0.0), n_ahead))
    return waits, ended_s[max(int(0.9 * len(ended_s)), 1) - 1]


def capacity_rps(lengths: str, seed: int, times: TickProfile) -> float:
    """Return how many such requests the engine answers a second where there are always more."""
    _, seconds = play(asks(lengths, inf, N_CAPACITY, seed), seed, times)
    return 0.9 * N_CAPACITY / seconds
