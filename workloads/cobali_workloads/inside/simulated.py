"""Plays loads on simulated engines; what one could do at most, and what one big cache would have held."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.errors import ConfigError
from cobali_ray.settings import EngineSettings
from cobali_workloads.inside.asks import chain_of, linked
from cobali_workloads.inside.keep import Tree
from cobali_workloads.inside.oracle import Visit
from cobali_workloads.inside.policies import MakePolicy
from cobali_workloads.load.timeline import RequestTimeline
from cobali_workloads.simulate.engine import SimulatedEngine
from cobali_workloads.simulate.fleet import RequestOutcome, RouterPolicy, SimulatedFleet, SimulatedRequest
from cobali_workloads.simulate.ticks import Dice, TickProfile


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What became of a load."""

    stories: Sequence[RequestOutcome]
    n_ticks: int
    virtual_s: float
    wall_s: float

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were not computed."""
        ends = [story.end.stats for story in self.stories if story.end]
        return sum(s.n_cached for s in ends) / max(sum(s.n_prompt for s in ends), 1)


def engine_of(times: TickProfile, seed: int, settings: EngineSettings | None = None) -> SimulatedEngine:
    """Return an engine with the pacer that the settings ask for; it knows the times."""
    pacer = Pacer((settings or EngineSettings()).itl_target_s, times.limits.grain)
    pacer.model.table = times.table
    return SimulatedEngine(Dice(times, seed), pacer)


def play(
    times: TickProfile,
    n_engines: int,
    policy: MakePolicy,
    asks: Sequence[SimulatedRequest],
    *,
    warmup: Sequence[SimulatedRequest] = (),
    settings: EngineSettings | None = None,
    seed: int = 0,
) -> SimulatedRun:
    """Play a load on equal engines, each with the pacer that the settings ask for; it knows the times."""
    engines = {f"{i}": engine_of(times, seed + i, settings) for i in range(n_engines)}
    fleet = SimulatedFleet(engines, policy(), between_s=times.between_s)
    fleet.play(warmup)
    started, before = time.perf_counter(), (fleet.now_s, sum(e.n_ticks for e in engines.values()))
    stories = fleet.play(asks)
    n_ticks = sum(e.n_ticks for e in engines.values()) - before[1]
    return SimulatedRun(stories, n_ticks, fleet.now_s - before[0], time.perf_counter() - started)


def timelines_of(played: SimulatedRun) -> list[RequestTimeline]:
    """Return what clients beside the engines would have seen."""
    return [
        RequestTimeline(
            due_s=story.sent_s,
            sent_s=story.sent_s,
            deltas_s=tuple(story.tokens_s),
            ended_s=story.ended_s,
            n_prompt=len(story.ask.prompt),
            n_cached=story.end.stats.n_cached if story.end else None,
            n_output=len(story.tokens_s),
            status="refused" if story.end is None else "ok" if story.end.error is None else "failed",
            error=repr(story.end.error) if story.end and story.end.error else "",
        )
        for story in played.stories
    ]


def with_limits(times: TickProfile, changes: dict[str, Any]) -> TickProfile:
    """Return the same times of an engine with other bounds. Raises ConfigError for one that there is not."""
    try:
        return replace(times, limits=replace(times.limits, **changes))
    except TypeError as error:
        names = ", ".join(EngineLimits.__dataclass_fields__)
        raise ConfigError("--set", f"{error}; there are {names}") from error


def one_cache(asks: Sequence[SimulatedRequest], n_engines: int, limits: EngineLimits) -> float:
    """Return the share of prompt tokens that one cache as large as all engines' would hold, in this order."""
    tree = Tree(n_engines * (limits.n_cells + limits.n_host_cells), limits.host_block)
    visits = [Visit(len(ask.prompt), array("i", (*ask.prompt, *ask.answer))) for ask in asks]
    return sum([tree.ask(visit) for visit in visits]) / max(sum([visit.n_prompt for visit in visits]), 1)


def most_rps(times: TickProfile, asks: Sequence[SimulatedRequest]) -> float:
    """Return how many of these requests an engine answers per second when all come at once.

    Those that follow others come with their answers; the last tenth, beside empty slots, is left out.
    """
    at_once = [linked([replace(request, at_s=0.0) for request in chain_of(ask)]) for ask in asks]
    endless = with_limits(times, {"max_queue": 1 << 40, "max_queue_tokens": 1 << 60})
    ended = sorted(story.ended_s for story in play(endless, 1, RouterPolicy, at_once).stories)
    n_most = max(int(0.9 * len(ended)), 1)
    return n_most / ended[n_most - 1]
