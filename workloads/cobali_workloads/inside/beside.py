"""Live requests beside a batch, on an engine whose passes take what a device's table says. Pure, seeded.

The scheduler is the product's and learns the passes as it does on a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from typing import NamedTuple

import numpy as np

from cobali_ray.core.cache.slots import Slots
from cobali_ray.core.cost.ticktime import TickShape
from cobali_ray.core.plan.plan import Plan
from cobali_ray.core.request.request import MAX_PRIORITY
from cobali_workloads.inside.asks import linked
from cobali_workloads.inside.devices import Device
from cobali_workloads.inside.policies import RoundRobin
from cobali_workloads.inside.regret import CONTENDERS, OURS, Machine
from cobali_workloads.load.shape import TYPICAL_ANSWER, TYPICAL_PROMPT
from cobali_workloads.simulate.engine import SimulatedEngine
from cobali_workloads.simulate.fleet import SimulatedFleet, SimulatedRequest

N_LINES = 18
"""Lines of the batch under way: one for every slot, and an eighth more."""
THINK_S = 3.0
"""Mean time from a live answer to its client's next request."""


class Beside(NamedTuple):
    """What live clients saw, and what became of the machine meanwhile."""

    ttft_s: Sequence[float]
    gaps_s: Sequence[float]
    busy: float
    """The share of the time in which a pass was computed."""
    batch_tokens: int
    """Tokens of prompts and answers that the batch had computed meanwhile."""
    seconds: float


class _Watched(Machine):
    """A device that counts how long it computes until the last live answer is there."""

    busy_until_s, computed_s = inf, 0.0

    def seconds(self, plan: Plan, slots: Slots, shape: TickShape, now_s: float) -> float:
        """See `Passes`."""
        seconds = super().seconds(plan, slots, shape, now_s)
        self.passes.append((now_s, seconds))
        return seconds

    def watch(self) -> None:
        """Begin to note passes: when each began, and how long it took."""
        self.passes: list[tuple[float, float]] = []


def _asks(name: str, n: int, draw: Random, priority: int = 0, think_s: float = 0.0) -> SimulatedRequest:
    """Return what a client asks, one request after another."""
    return linked(
        [
            SimulatedRequest(
                f"{name} {i}", draw.expovariate(1 / think_s) if think_s else 0.0,
                draw.randbytes(TYPICAL_PROMPT.draw(draw)), draw.randbytes(TYPICAL_ANSWER.draw(draw)),
                priority=priority,
            )
            for i in range(n)
        ]
    )  # fmt: skip


def play(device: Device, n_clients: int, n_each: int, seed: int, *, batch: bool) -> Beside:
    """Let live clients ask so many requests each, alone or beside a batch that lasts longer."""
    machine = _Watched(device, device.limits, seed)
    machine.watch()
    contender = CONTENDERS[OURS]
    fleet = SimulatedFleet({"0": SimulatedEngine(machine, contender.pacer(device))}, RoundRobin())
    fleet.play([_asks(f"warm {i}", 4, Random(f"{seed} warm {i}")) for i in range(4)])
    start_s = fleet.now_s
    live = [_asks(f"live {i}", n_each, Random(f"{seed} live {i}"), 0, THINK_S) for i in range(n_clients)]
    lines = [_asks(f"line {i}", 8 * n_each, Random(f"{seed} line {i}"), MAX_PRIORITY) for i in range(N_LINES)]
    stories = fleet.play([*live, *lines] if batch else live)
    ours = [story for story in stories if story.ask.request_id.startswith("live")]
    until_s = max(story.ended_s for story in ours)
    meanwhile = [one for one in machine.passes if start_s <= one[0] < until_s]
    n_batch = sum(
        sum([at_s < until_s for at_s in story.tokens_s])
        + (len(story.ask.prompt) if story.tokens_s and story.tokens_s[0] < until_s else 0)
        for story in stories
        if story.ask.priority
    )
    return Beside(
        [story.tokens_s[0] - story.sent_s for story in ours],
        [gap for story in ours for gap in np.diff(story.tokens_s).tolist()],
        sum(seconds for _, seconds in meanwhile) / (until_s - start_s),
        n_batch,
        until_s - start_s,
    )
