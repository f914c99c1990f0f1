"""Tenants and classes on simulated engines, whose ticks take what a formula says.

Nothing is computed, so a minute of traffic takes seconds and is the same on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from cobali_ray.core.request.limits import EngineLimits
from cobali_workloads.inside.simulated import play
from cobali_workloads.simulate.fleet import RequestOutcome, RouterPolicy, SimulatedRequest
from cobali_workloads.simulate.ticks import TickProfile, plain_table

TIMES = TickProfile(
    limits=EngineLimits(
        n_slots=16, n_ctx_slot=4096, n_cells=16 * 4096, token_budget=528, prefill_chunk=512,
        prefill_order="shortest", max_queue=128, max_queue_tokens=262_144, n_host_cells=65_536,
        cell_bytes=4096,
    ),
    table=plain_table(pass_s=0.015, row_s=0.0003, token_s=0.00025),
)  # fmt: skip
"""A tick takes 15 ms, 0.3 ms for every stream and 0.25 ms for every prompt token."""


class TenantLoad(NamedTuple):
    """Requests of one class of one tenant, at random times."""

    name: str
    rps: float
    tenant: str
    priority: int = 0
    weight: float = 1.0
    n_prompt: tuple[int, int] = (100, 1500)
    n_output: tuple[int, int] = (50, 200)


def traffic(loads: Sequence[TenantLoad], seconds: float, seed: int) -> list[SimulatedRequest]:
    """Return the requests of all loads; none depends on the other loads."""
    asks: list[SimulatedRequest] = []
    for load in loads:
        draw, at_s = Random(f"{seed} {load.name}"), 0.0
        while (at_s := at_s + draw.expovariate(load.rps)) < seconds:
            first = draw.randrange(1 << 30)
            asks.append(
                SimulatedRequest(
                    f"{load.name}-{len(asks)}", at_s, range(first, first + draw.randint(*load.n_prompt)),
                    bytes(draw.randint(*load.n_output)), tenant=load.tenant, weight=load.weight,
                    priority=load.priority,
                )
            )  # fmt: skip
    return asks


class TenantRun(NamedTuple):
    """One run."""

    stories: Sequence[RequestOutcome]
    seconds: float
    """How long the loads lasted."""

    def of(self, load: str) -> list[RequestOutcome]:
        """Return what became of one load."""
        return [story for story in self.stories if _load_of(story) == load]

    def served(self) -> Counter[str]:
        """Return prompt tokens computed and output tokens twice, by load, while they lasted."""
        served: Counter[str] = Counter()
        for story in self.stories:
            n = sum([at_s < self.seconds for at_s in story.tokens_s])
            served[_load_of(story)] += 2 * n + (n and len(story.ask.prompt))
        return served


def _load_of(story: RequestOutcome) -> str:
    return story.ask.request_id.rsplit("-", 1)[0]


def run(loads: Sequence[TenantLoad], seconds: float, seed: int, n_engines: int = 1) -> TenantRun:
    """Have engines serve the loads, each multiplied by the number of engines."""
    more = [load._replace(rps=n_engines * load.rps) for load in loads]
    return TenantRun(play(TIMES, n_engines, RouterPolicy, traffic(more, seconds, seed)).stories, seconds)
