"""Agents that share one cache, on a simulated engine: each asks, runs a tool, and comes back with more.

Scheduler and router are the product's; nothing is computed, and ticks take what a formula says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean
from typing import NamedTuple

from cobali_ray.core.request.request import Program
from cobali_ray.errors import InvariantError
from cobali_workloads.inside.asks import chain_of, linked
from cobali_workloads.inside.simulated import play
from cobali_workloads.inside.tenants import TIMES
from cobali_workloads.simulate.fleet import RequestOutcome, RouterPolicy, SimulatedRequest

N_AGENTS, N_FIT = 12, 4
"""Agents, and how many of them the cache has room for as long as they are at their ends."""
START_S = 30.0
"""All begin within this time."""
N_TURNS, N_ANSWER = (8, 16), (40, 300)
TOOLS = {"read": (0.5, 2.0), "search": (1.0, 8.0), "test": (5.0, 30.0), "build": (15.0, 60.0)}
"""How many seconds each tool takes, at least and at most."""
OFTEN = (4, 3, 2, 1)
"""How often each is called."""


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
    """Return the first request of each agent; what it does next hangs on it.

    `hints`: requests say whose they are.
    """
    return [_agent(load, f"{number}", Random(f"{seed} agent {number}"), hints) for number in range(N_AGENTS)]


def _agent(load: AgentLoad, name: str, draw: Random, hints: bool) -> SimulatedRequest:
    def fresh(bounds: tuple[int, int]) -> list[int]:
        first = draw.randrange(1 << 21, 1 << 30)
        return list(range(first, first + draw.randint(*bounds)))

    said = [*range(1 << 20, (1 << 20) + load.n_system), *fresh(load.n_task)]
    at_s, asks = draw.uniform(0, START_S), list[SimulatedRequest]()
    for turn in range(draw.randint(*N_TURNS)):
        answer, (least_s, most_s) = fresh(N_ANSWER), draw.choices(list(TOOLS.values()), OFTEN)[0]
        program = Program(name, "tools", turn > 0) if hints else None
        asks.append(SimulatedRequest(f"{name}.{turn}", at_s, tuple(said), answer, program=program))
        at_s = least_s * (most_s / least_s) ** draw.random()
        said += [*answer, *fresh(load.n_result)]
    return linked(asks)


def run(load: AgentLoad, seed: int, *, hints: bool) -> AgentRun:
    """Let all agents do their work. Raises InvariantError where a request was not answered."""
    first = agents(load, seed, hints=hints)
    chains = [list(chain_of(one)) for one in first]
    longest = [len(chain[-1].prompt) + N_ANSWER[1] for chain in chains]
    limits = replace(
        TIMES.limits, n_cells=int(N_FIT * fmean(longest)), n_ctx_slot=max(longest), n_host_cells=0,
        max_queue_tokens=1 << 40, copies=True, shares=True,
    )  # fmt: skip
    played = play(replace(TIMES, limits=limits), 1, RouterPolicy, first, seed=seed)
    by_agent: dict[str, list[RequestOutcome]] = {}
    for story in played.stories:
        by_agent.setdefault(story.ask.request_id.split(".")[0], []).append(story)
    ended = [story.end.stats for story in played.stories if story.end and not story.end.error]
    if len(ended) != sum(map(len, chains)):
        raise InvariantError("a request was not answered")
    return AgentRun(
        [stories[-1].ended_s - stories[0].sent_s for stories in by_agent.values()],
        played.hit_rate,
        max(stats.queue_s or 0.0 for stats in ended),
    )
