"""A batch on an engine whose passes take what a device's table says: beside live clients, and in its order.

Scheduler and order are the product's; the scheduler learns what passes take as on a machine. Pure, seeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from random import Random
from typing import NamedTuple

import numpy as np

from cobali_ray.core.cache.slots import Slots
from cobali_ray.core.cost.ticktime import TickShape
from cobali_ray.core.plan.leftover import LATELY_S
from cobali_ray.core.plan.plan import Plan
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import MAX_PRIORITY
from cobali_ray.store.order import order_key
from cobali_workloads.inside.asks import linked
from cobali_workloads.inside.devices import N_SLOTS, Device
from cobali_workloads.inside.policies import RoundRobin
from cobali_workloads.inside.regret import CONTENDERS, OURS, Machine, most_rps
from cobali_workloads.load.shape import TYPICAL_ANSWER, TYPICAL_PROMPT
from cobali_workloads.simulate.engine import SimulatedEngine
from cobali_workloads.simulate.fleet import RequestOutcome, SimulatedFleet, SimulatedRequest

N_LINES = N_SLOTS + N_SLOTS // 8
"""Lines of a batch under way: one for every slot, and an eighth more."""
N_CLIENTS = 16
"""Clients that send the same requests in the order of the file."""
LATER_S = 2 * LATELY_S
"""A file comes when live requests are over."""
LOADS = (0.2, 0.5, 0.8)
"""Live requests a second, as a share of those that the device can answer."""
N_BEGINNINGS, N_BEGINNING, N_OWN, N_ANSWER = 20, 1000, (10, 100), (8, 32)
"""Beginnings that lines of a file share, and the tokens of each, of what follows, and of answers."""


class _WatchedMachine(Machine):
    """A device that notes when its passes began, and how long they took."""

    def __init__(self, device: Device, limits: EngineLimits, seed: int) -> None:
        super().__init__(device, limits, seed)
        self.passes: list[tuple[float, float]] = []

    def seconds(self, plan: Plan, slots: Slots, shape: TickShape, now_s: float) -> float:
        """See `Passes`."""
        self.passes.append((now_s, super().seconds(plan, slots, shape, now_s)))
        return self.passes[-1][1]


def _warm(device: Device, seed: int) -> tuple[SimulatedFleet, _WatchedMachine]:
    """Return an engine that knows how long its passes take."""
    machine = _WatchedMachine(device, device.limits, seed)
    fleet = SimulatedFleet({"0": SimulatedEngine(machine, CONTENDERS[OURS].pacer(device))}, RoundRobin())
    fleet.play([linked([_ask(f"warm {i} {n}", seed) for n in range(4)]) for i in range(4)])
    return fleet, machine


def _ask(name: str, seed: int, at_s: float = 0.0, priority: int = 0) -> SimulatedRequest:
    """Return a typical request."""
    draw = Random(f"{seed} {name}")
    prompt, answer = TYPICAL_PROMPT.draw(draw), TYPICAL_ANSWER.draw(draw)
    return SimulatedRequest(name, at_s, draw.randbytes(prompt), draw.randbytes(answer), priority=priority)


class LiveRun(NamedTuple):
    """What live clients saw, and what the machine did meanwhile."""

    ttft_s: Sequence[float]
    gaps_s: Sequence[float]
    busy: float
    """The share of the time in which a pass was computed."""
    batch_tps: float
    """Tokens of prompts and answers a second that the batch had meanwhile."""


def beside(device: Device, load: float, n: int, seed: int, *, batch: bool) -> LiveRun:
    """Let so many live requests come at random times, alone or beside a batch that lasts longer."""
    fleet, machine = _warm(device, seed)
    start_s, rps = fleet.now_s, most_rps(device, seed)
    draw, at_s, asks = Random(f"{seed} live"), 0.0, list[SimulatedRequest]()
    for i in range(n):
        at_s += draw.expovariate(load * rps)
        asks.append(_ask(f"live {i}", seed, at_s))
    n_each = ceil(1.2 * rps * at_s / N_LINES) if batch else 0  # that the device cannot answer meanwhile
    lines = [[_ask(f"line {i} {k}", seed, 0.0, MAX_PRIORITY) for k in range(n_each)] for i in range(N_LINES)]
    stories = fleet.play(asks + [linked(chain) for chain in lines if chain])
    live = [story for story in stories if not story.ask.priority]
    until_s = max(story.ended_s for story in live)
    busy_s = sum(seconds for at_s, seconds in machine.passes if start_s <= at_s < until_s)
    n_batch = sum(_n_done(story, until_s) for story in stories if story.ask.priority)
    return LiveRun(
        [story.tokens_s[0] - story.sent_s for story in live],
        [gap for story in live for gap in np.diff(story.tokens_s).tolist()],
        busy_s / (until_s - start_s),
        n_batch / (until_s - start_s),
    )


def _n_done(story: RequestOutcome, until_s: float) -> int:
    n_output = sum([at_s < until_s for at_s in story.tokens_s])
    return n_output + (len(story.ask.prompt) if n_output else 0)


class FileRun(NamedTuple):
    """How a file of requests went."""

    computed: float
    """The share of prompt tokens that were computed."""
    rps: float


def shared_lines(n: int, seed: int) -> list[tuple[bytes, bytes]]:
    """Return prompts that begin with one of a few texts, in random order, and their answers."""
    draw = Random(f"{seed} file")
    beginnings = [draw.randbytes(N_BEGINNING) for _ in range(N_BEGINNINGS)]
    prompts = [draw.choice(beginnings) + draw.randbytes(draw.randint(*N_OWN)) for _ in range(n)]
    return [(prompt, draw.randbytes(draw.randint(*N_ANSWER))) for prompt in prompts]


def typical_lines(n: int, seed: int) -> list[tuple[bytes, bytes]]:
    """Return prompts that have nothing in common, and their answers."""
    asks = [_ask(f"line {i}", seed) for i in range(n)]
    return [(bytes(ask.prompt), bytes(ask.answer)) for ask in asks]


def answer_file(device: Device, lines: Sequence[tuple[bytes, bytes]], seed: int, *, ordered: bool) -> FileRun:
    """Have a file of requests answered, the next line when one is done: as a batch, or by clients."""
    if ordered:
        lines = sorted(lines, key=lambda line: order_key("", {"prompt": line[0].decode("latin-1")}))
    fleet, _ = _warm(device, seed)
    start_s, n_at_once = fleet.now_s + LATER_S, N_LINES if ordered else N_CLIENTS
    priority = MAX_PRIORITY if ordered else 0
    asks = [
        SimulatedRequest(f"{i}", LATER_S if i < n_at_once else 0.0, *line, priority=priority)
        for i, line in enumerate(lines)
    ]
    stories = fleet.play(asks[:n_at_once], asks[n_at_once:])
    ended = [story.end.stats for story in stories if story.end]
    n_cached, n_prompt = sum(stats.n_cached for stats in ended), sum(stats.n_prompt for stats in ended)
    return FileRun(1 - n_cached / n_prompt, len(ended) / (fleet.now_s - start_s))
