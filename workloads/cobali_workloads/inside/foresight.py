"""Measured beside simulated: the same requests at the same times, in process and simulated.

Runs take turns: the ticks of every other one are fitted, the latencies of those between are what the
simulator must foresee. So it never sees what it is compared with, and the machine drifts alike for both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import count, pairwise
from random import Random

import numpy as np

from cobali_ray.backend.port import Backend
from cobali_ray.core.clock import Clock
from cobali_ray.core.request.events import End, EngineEvent
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.engine import Engine, Sink
from cobali_ray.engine.opening import MonotonicClock, engine_on
from cobali_ray.settings import EngineSettings
from cobali_workloads.inside.asks import linked
from cobali_workloads.inside.simulated import most_rps, play
from cobali_workloads.simulate.fleet import RouterPolicy, SimulatedRequest
from cobali_workloads.simulate.ticks import Tick, TickProfile, fit

LOADS = {"light": 0.3, "heavy": 0.7}
"""Open loops, as shares of what the engine can do."""
CLIENTS = "8 clients"
N_CLIENTS = 8
PROMPT, ANSWER = (180, 0.8, 16, 800), (48, 0.6, 8, 128)
"""Median, sigma of the logarithm, and bounds of the lengths in tokens."""
PARTS = (0.5, 0.99)


@dataclass(slots=True)
class Bench:
    """A loaded model, the engine's settings, and the time: a test's is its own."""

    backend: Backend
    settings: EngineSettings
    clock: Clock = field(default_factory=MonotonicClock)
    sleep: Callable[[float], None] = time.sleep

    def engine(self, sink: Sink) -> Engine:
        """Return a new engine with an empty cache."""
        self.backend.clear()
        return engine_on(self.backend, self.settings, sink, clock=self.clock)


@dataclass(slots=True)
class Latencies:
    """What requests took, seconds."""

    ttft_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Return p50 and p99 of both."""
        kinds = {"TTFT": self.ttft_s, "ITL": self.itl_s}
        return {
            f"{kind} p{100 * part:.0f}": float(np.quantile(v, part))
            for kind, v in kinds.items()
            for part in PARTS
        }


def loads_of(times: TickProfile, n_requests: int, seed: int) -> dict[str, list[SimulatedRequest]]:
    """Return the three loads, by name."""
    drawn, rng = _drawn(n_requests, seed), Random(f"{seed} times")
    rps = most_rps(times, drawn)
    loads: dict[str, list[SimulatedRequest]] = {}
    for name, share in LOADS.items():
        at_s, loads[name] = 0.0, []
        for ask in drawn:
            at_s += rng.expovariate(share * rps)
            loads[name].append(replace(ask, at_s=at_s))
    loads[CLIENTS] = _clients(drawn)
    return loads


def _drawn(n_requests: int, seed: int) -> list[SimulatedRequest]:
    rng = Random(f"{seed} requests")
    lengths = [(_length(rng, *PROMPT), _length(rng, *ANSWER)) for _ in range(n_requests)]
    return [
        SimulatedRequest(f"{i}", 0.0, rng.randbytes(n), rng.randbytes(m)) for i, (n, m) in enumerate(lengths)
    ]


def _clients(drawn: Sequence[SimulatedRequest]) -> list[SimulatedRequest]:
    """Return what clients ask that wait for their answers."""
    return [linked([replace(ask) for ask in drawn[i::N_CLIENTS]]) for i in range(N_CLIENTS)]


def _length(rng: Random, median: int, sigma: float, low: int, high: int) -> int:
    return min(max(round(median * float(np.exp(rng.gauss(0.0, sigma)))), low), high)


def measured(bench: Bench, asks: Sequence[SimulatedRequest]) -> tuple[Latencies, list[Tick]]:
    """Run a load on a new engine, in this thread; return what it took and the ticks."""
    latencies, ticks = Latencies(), list[Tick]()
    due: list[tuple[float, int, SimulatedRequest]] = []
    number, waiting = count(), dict[str, tuple[float, SimulatedRequest]]()

    def sink(batch: list[tuple[str, EngineEvent]]) -> None:
        for _, event in batch:
            if isinstance(event, End):
                late_s, ask = waiting.pop(event.request_id)
                latencies.ttft_s.append(late_s + (event.stats.ttft_s or 0.0))
                if ask.then is not None:
                    heappush(due, (engine.now() + ask.then.at_s, next(number), ask.then))

    engine = bench.engine(sink)
    start_s = engine.now()
    due += [(start_s + ask.at_s, next(number), ask) for ask in asks]
    heapify(due)
    ended_s: float | None = None
    while due or engine.has_work:
        while due and due[0][0] <= engine.now():
            due_s, _, ask = heappop(due)
            waiting[ask.request_id] = (engine.now() - due_s, ask)
            sampling = SamplingParams(temperature=0.0, ignore_eos=True)
            engine.submit(
                Request(
                    request_id=ask.request_id, prompt=tuple(ask.prompt), max_tokens=len(ask.answer),
                    sampling=sampling,
                )
            )  # fmt: skip
        if not engine.has_work:
            bench.sleep(max(due[0][0] - engine.now(), 0.0))
            ended_s = None
        elif (stats := engine.tick()) is not None:
            since_s = None if ended_s is None else stats.started_s - ended_s
            if not (stats.n_restored or stats.n_saved):
                ticks.append(Tick(engine.scheduler.counts.shape, stats.total_s, since_s))
            latencies.itl_s += stats.gaps_s
            ended_s = stats.started_s + stats.total_s
    return latencies, ticks


def simulated(
    times: TickProfile, settings: EngineSettings, asks: Sequence[SimulatedRequest], seed: int
) -> Latencies:
    """Play the same load."""
    played = play(times, 1, RouterPolicy, asks, settings=settings, seed=seed)
    latencies = Latencies()
    for story in played.stories:
        latencies.ttft_s.append(story.tokens_s[0] - story.sent_s)
        latencies.itl_s += [after - before for before, after in pairwise(story.tokens_s)]
    return latencies


@dataclass(slots=True)
class ForesightResult:
    """Of each load: the runs that were compared, those that were fitted, and the simulated ones."""

    times: TickProfile
    compared: dict[str, Latencies]
    fitted: dict[str, Latencies]
    simulated: dict[str, Latencies]

    def errors(self, of: dict[str, Latencies]) -> dict[str, dict[str, float]]:
        """Return how far from the measured figures others are, as shares of these."""
        truth = {load: latencies.figures() for load, latencies in self.compared.items()}
        return {
            load: {name: value / truth[load][name] - 1 for name, value in latencies.figures().items()}
            for load, latencies in of.items()
        }


def foresee(bench: Bench, *, n_requests: int, n_rounds: int, seed: int) -> ForesightResult:
    """Measure and simulate; `n_rounds` runs of each load are fitted, and as many compared."""
    probe = _clients(_drawn(n_requests, seed))
    limits = bench.engine(lambda _: None).limits
    measured(bench, probe)  # caches and threads warm up
    first = fit(measured(bench, probe)[1], limits)
    loads = loads_of(first, n_requests, seed)
    compared, fitted, foreseen = ({name: Latencies() for name in loads} for _ in range(3))
    ticks: list[Tick] = []
    for number in range(2 * n_rounds):
        for name, asks in loads.items():
            latencies, seen = measured(bench, asks)
            kept = (compared if number % 2 else fitted)[name]
            kept.ttft_s += latencies.ttft_s
            kept.itl_s += latencies.itl_s
            ticks += [] if number % 2 else seen
    times = fit(ticks, limits)
    for name, asks in loads.items():
        for number in range(n_rounds):
            latencies = simulated(times, bench.settings, asks, seed=number)
            foreseen[name].ttft_s += latencies.ttft_s
            foreseen[name].itl_s += latencies.itl_s
    return ForesightResult(times, compared, fitted, foreseen)
