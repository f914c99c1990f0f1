"""The waits that are forecast to queued requests, and the real ones, on a simulated engine.

Scheduler, door and forecast are the product's; ticks take what a formula says. Answers end by a token, so
nobody knows beforehand how long they are. The best that any forecast can do is worked out too: it knows how
answers' lengths are spread, and how many tokens each running answer has so far, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from cobali_ray.core.cost.ticktime import EnginePace
from cobali_ray.core.queue.forecast import AnswerLengths, Stayer
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
N_KNOWN, N_GAMES = 400, 200
"""Lengths by which the best forecast knows how they are spread, and games that it plays."""


class Wait(NamedTuple):
    """A wait as it was first forecast, in the tick after the request came, and as it was from then on."""

    forecast_s: float | None
    by_rate_s: float | None
    """What the door would have said: those ahead and itself, by the rate at which the queue drains."""
    real_s: float
    n_ahead: int
    games_s: Sequence[float] = ()
    """How long it might have been for all that can be known, ascending."""

    def error(self, estimate_s: float | None) -> float | None:
        """Return by which share of the real wait an estimate is wrong; None where there is none."""
        return None if estimate_s is None else abs(estimate_s - self.real_s) / max(self.real_s, 1e-3)


class TimedRequest(NamedTuple):
    at_s: float
    request: Request
    answer: bytes


def asks(lengths: str, rps: float, n: int, seed: int) -> list[TimedRequest]:
    """Return requests that come at random times; all at once where `rps` is endless."""
    draw, at_s, requests = Random(f"{seed} {lengths}"), 0.0, list[TimedRequest]()
    for i in range(n):
        at_s += 0.0 if rps == inf else draw.expovariate(rps)
        first = draw.randrange(1 << 30)
        prompt = tuple(range(first, first + draw.randint(100, 1500)))
        answer = bytes(LENGTHS[lengths](draw) - 1) + bytes([END])
        request = Request(
            request_id=f"{i}", prompt=prompt, max_tokens=MAX_TOKENS, sampling=SAMPLING, progress=True
        )
        requests.append(TimedRequest(at_s, request, answer))
    return requests


class KnownLengths(AnswerLengths):
    """Knows how answers' lengths are spread: the best that a forecast can know."""

    def __init__(self, lengths: str, seed: int) -> None:
        super().__init__(N_GAMES)
        draw = Random(f"{seed} {lengths} known")
        self._lengths = sorted([LENGTHS[lengths](draw) for _ in range(N_KNOWN)])
        self.last_s: Sequence[Sequence[float]] = ()
        """The games of the last forecast, by how many are ahead."""

    @property
    def lengths(self) -> Sequence[int]:
        """See `AnswerLengths`."""
        return self._lengths

    def games_s(
        self, stayers: Sequence[Stayer], n_prompts: Sequence[int], pace: EnginePace | None
    ) -> list[list[float]] | None:
        """See `AnswerLengths`."""
        games = super().games_s(stayers, n_prompts, pace)
        self.last_s = [sorted(waits) for waits in games or ()]
        return games


def best_wait(waits: Sequence[Wait]) -> list[float]:
    """Return the best forecast of each of these waits, by its games, so that the median error is least.

    A forecast of t is wrong by at most e where the real wait is within t / (1 + e) .. t / (1 - e). So each
    wait gets the likeliest such range, for the e with which half of all waits are expected in theirs.
    """
    games = [np.maximum(wait.games_s, 1e-3) for wait in waits]
    low, high = 0.0, 1.0
    while games and high - low > 1e-3:
        e = (low + high) / 2
        low, high = (low, e) if fmean([_likeliest(g, e)[1] for g in games]) >= 0.5 else (e, high)
    return [_likeliest(g, high)[0] * (1 + high) for g in games]


def _likeliest(waits_s: np.ndarray[Any, Any], e: float) -> tuple[float, float]:
    """Return where the likeliest range for an error begins, and how likely it is; `waits_s` ascends."""
    ends = np.searchsorted(waits_s, waits_s * (1 + e) / (1 - e), "right")
    n_within = ends - np.arange(len(waits_s))
    first = int(n_within.argmax())
    return float(waits_s[first]), n_within[first] / len(waits_s)


def play(
    come: Sequence[TimedRequest], seed: int, times: TickProfile, lengths: KnownLengths | None = None
) -> tuple[list[Wait], float]:
    """Have an engine serve requests; return the waits of those that waited, and when nine of ten had ended.

    With `lengths`, each wait has the games of the best forecast.
    """
    endless = replace(times, limits=replace(times.limits, max_queue=1 << 40, max_queue_tokens=1 << 60))
    engine, reports = engine_of(endless, seed), ProgressReports()
    best = None if lengths is None else ProgressReports(lengths)
    scheduler = engine.scheduler
    left, now_s, fresh = list(reversed(come)), 0.0, list[str]()
    waiting: dict[str, tuple[float, Wait]] = {}
    waits, ended_s, arrived_s = list[Wait](), list[float](), dict[str, float]()
    while left or scheduler.n_open:
        if not scheduler.n_open:
            now_s = max(now_s, left[-1].at_s)
        while left and left[-1].at_s <= now_s:
            request, answer = left.pop()[1:]
            engine.submit(request, answer, now_s)
            arrived_s[request.request_id] = now_s
            fresh.append(request.request_id)
        if (took_s := engine.begin(now_s)) is None:
            continue
        now_s += took_s
        ends = engine.end(now_s).ends
        if fresh and len(scheduler.queue):
            places, rps = reports.places(scheduler), scheduler.drain_rps
            for request_id in fresh:
                if (place := places.get(request_id)) is not None:
                    by_rate_s = (place.n_ahead + 1) / rps if rps else None
                    wait = Wait(place.wait_s, by_rate_s, 0.0, place.n_ahead)
                    if best is not None and lengths is not None and best.places(scheduler) and lengths.last_s:
                        wait = wait._replace(games_s=lengths.last_s[place.n_ahead])
                    waiting[request_id] = now_s, wait
        fresh.clear()
        for end in ends:
            ended_s.append(now_s)
            for progress in (reports, best):
                if progress is not None:
                    progress.ended(end.request_id, end.stats, well=True)
            if (entry := waiting.pop(end.request_id, None)) is not None and end.stats.queue_s is not None:
                at_s, wait = entry
                real_s = arrived_s[end.request_id] + end.stats.queue_s - at_s
                waits.append(wait._replace(real_s=max(real_s, 0.0)))
    return waits, ended_s[max(int(0.9 * len(ended_s)), 1) - 1]


def capacity_rps(lengths: str, seed: int, times: TickProfile) -> float:
    """Return how many such requests the engine answers a second where there are always more."""
    _, seconds = play(asks(lengths, inf, N_CAPACITY, seed), seed, times)
    return 0.9 * N_CAPACITY / seconds
