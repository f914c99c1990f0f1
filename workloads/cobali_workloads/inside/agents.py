"""Agents that share one cache, on a simulated engine: each asks, runs a tool, and comes back with more.

Scheduler and router are the product's; nothing is computed, and ticks take what a formula says. Upper bounds
are played too: by an engine that knows how long each tool will take, by one whose cache has room for all, and
by one that each agent has to itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random
from statistics import fmean
from typing import NamedTuple

from cobali_ray.core.queue.programs import Programs
from cobali_ray.core.request.request import Program, Request
from cobali_ray.errors import InvariantError
from cobali_workloads.inside.asks import chain_of, linked
from cobali_workloads.inside.simulated import engine_of
from cobali_workloads.inside.tenants import TIMES
from cobali_workloads.simulate.fleet import RequestOutcome, RouterPolicy, SimulatedFleet, SimulatedRequest

N_AGENTS, N_FIT = 12, 4
"""Agents, and how many of them fit into the cache with their longest prompts."""
START_S = 30.0
"""All begin within this time."""
N_TURNS, N_ANSWER = (8, 16), (40, 300)
TOOLS = {"read": (0.5, 2.0), "search": (1.0, 8.0), "test": (5.0, 30.0), "build": (15.0, 60.0)}
"""How many seconds each tool takes, at least and at most."""
OFTEN = (4, 3, 2, 1)
"""How often each is called."""


WORTHS = (1.0, 3.0, 10.0)
"""For how long an engine keeps what comes back for sure: in times that computing it again takes."""
SLACK_S = 0.1


@dataclass(frozen=True, slots=True)
class AgentLoad:
    """How long agents' texts are, in tokens."""

    n_system: int
    """What all begin with."""
    n_task: tuple[int, int]
    n_result: tuple[int, int]
    """What a tool returns."""


LOADS = {
    "short texts": AgentLoad(2000, (1000, 3000), (300, 2000)),
    "long texts": AgentLoad(8000, (2000, 8000), (500, 6000)),
}


class AgentRun(NamedTuple):
    """One run of all agents."""

    finished_s: Sequence[float]
    """From each agent's first request to its last answer."""
    hit_rate: float
    worst_wait_s: float
    """The longest that a request waited for its slot."""


def agents(load: AgentLoad, seed: int, *, hints: bool) -> list[SimulatedRequest]:
    """Return the first request of each agent; its others follow by `then`.

    `hints`: requests name their program.
    """
    return [_agent(load, f"{number}", Random(f"{seed} agent {number}"), hints) for number in range(N_AGENTS)]


def _agent(load: AgentLoad, name: str, draw: Random, hints: bool) -> SimulatedRequest:
    def fresh(bounds: tuple[int, int]) -> list[int]:
        first = draw.randrange(1 << 21, 1 << 30)
        return list(range(first, first + draw.randint(*bounds)))

    prompt = [*range(1 << 20, (1 << 20) + load.n_system), *fresh(load.n_task)]
    at_s, asks = draw.uniform(0, START_S), list[SimulatedRequest]()
    for turn in range(draw.randint(*N_TURNS)):
        answer, (least_s, most_s) = fresh(N_ANSWER), draw.choices(list(TOOLS.values()), OFTEN)[0]
        program = Program(name, "tools", turn > 0) if hints else None
        asks.append(SimulatedRequest(f"{name}.{turn}", at_s, tuple(prompt), answer, program=program))
        at_s = least_s * (most_s / least_s) ** draw.random()
        prompt += [*answer, *fresh(load.n_result)]
    return linked(asks)


class Foreseen(Programs):
    """Knows when each program comes back: keeps what saves enough by then, and exactly so long."""

    def __init__(self, away_s: Mapping[str, float], worth: float) -> None:
        super().__init__()
        self._away_s, self._worth = away_s, worth

    def answered(self, request: Request, again_s: float, now_s: float) -> float:
        """See `Programs`: kept if it comes back within `worth` times what computing it again takes."""
        away_s = self._away_s.get(request.request_id, inf)
        return now_s + away_s + SLACK_S if away_s <= self._worth * again_s else now_s


def run(
    load: AgentLoad, seed: int, *, hints: bool, n_fit: float = N_FIT, worth: float | None = None
) -> AgentRun:
    """Let all agents do their work. Raises InvariantError where a request was not answered.

    `n_fit`: how many of them the cache has room for. `worth`: the engine knows when they come back, see
    `Foreseen`; None: it does not.
    """
    return _played(agents(load, seed, hints=hints), seed, n_fit, worth)


def alone_s(load: AgentLoad, seed: int) -> Sequence[float]:
    """Return what each agent takes that has the engine to itself, with room for all its tokens."""
    return [_played([first], seed, 2, None).finished_s[0] for first in agents(load, seed, hints=True)]


def _played(first: Sequence[SimulatedRequest], seed: int, n_fit: float, worth: float | None) -> AgentRun:
    chains = [list(chain_of(request)) for request in first]
    longest = [len(chain[-1].prompt) + N_ANSWER[1] for chain in chains]
    limits = replace(
        TIMES.limits, n_cells=int(n_fit * fmean(longest)), n_ctx_slot=max(longest), n_host_cells=0,
        max_queue_tokens=1 << 40, copies=True, shares=True,
    )  # fmt: skip
    engine = engine_of(replace(TIMES, limits=limits), seed)
    if worth is not None:
        away_s = {
            request.request_id: request.then.at_s
            for chain in chains
            for request in chain
            if request.then is not None
        }
        engine.scheduler.programs = Foreseen(away_s, worth)
    stories = SimulatedFleet({"0": engine}, RouterPolicy()).play(first)
    by_agent: dict[str, list[RequestOutcome]] = {}
    for story in stories:
        by_agent.setdefault(story.ask.request_id.split(".")[0], []).append(story)
    ended = [story.end.stats for story in stories if story.end and not story.end.error]
    if len(ended) != sum(map(len, chains)):
        raise InvariantError("a request was not answered")
    return AgentRun(
        [of_agent[-1].ended_s - of_agent[0].sent_s for of_agent in by_agent.values()],
        sum(stats.n_cached for stats in ended) / sum(stats.n_prompt for stats in ended),
        max(stats.queue_s or 0.0 for stats in ended),
    )
