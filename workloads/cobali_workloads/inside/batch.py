"""A batch on an engine whose passes take what a device's table says: beside live clients, and in its order.

Scheduler and order are the product's; the scheduler learns what passes take as on a machine. Pure, seeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from cobali_workloads.inside.regret import CONTENDERS, OURS, Machine
from cobali_workloads.load.shape import TYPICAL_ANSWER, TYPICAL_PROMPT
from cobali_workloads.simulate.engine import SimulatedEngine
from cobali_workloads.simulate.fleet import RequestOutcome, SimulatedFleet, SimulatedRequest

N_LINES = N_SLOTS + N_SLOTS // 8
"""Lines of a batch under way: one for every slot, and an eighth more."""
N_CLIENTS = 16
"""Who sends the same requests in the order of the file."""
LATER_S = 2 * LATELY_S
"""A file comes when live requests are over."""
THINK_S = 3.0
"""Mean time from a live answer to its client's next request."""
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
    fleet.play([_client(f"warm {i}", 4, seed) for i in range(4)])
    return fleet, machine


def _client(name: str, n: int, seed: int, priority: int = 0, think_s: float = 0.0) -> SimulatedRequest:
    """Return what a client asks, one request after another."""
    draw = Random(f"{seed} {name}")
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


class LiveRun(NamedTuple):
    """What live clients saw, and what became of the machine meanwhile."""

    ttft_s: Sequence[float]
    gaps_s: Sequence[float]
    busy: float
    """The share of the time in which a pass was computed."""
    batch_tps: float
    """Tokens of prompts and answers a second that the batch had meanwhile."""


def beside(device: Device, n_clients: int, n_each: int, seed: int, *, batch: bool) -> LiveRun:
    """Let live clients ask so many requests each, alone or beside a batch that lasts longer."""
    fleet, machine = _warm(device, seed)
    start_s = fleet.now_s
    clients = [_client(f"live {i}", n_each, seed, think_s=THINK_S) for i in range(n_clients)]
    n_lines = N_LINES if batch else 0
    clients += [_client(f"line {i}", 8 * n_each, seed, MAX_PRIORITY) for i in range(n_lines)]
    stories = fleet.play(clients)
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


def answer_file(device: Device, n: int, seed: int, *, ordered: bool) -> FileRun:
    """Have a file of requests in random order answered: as a batch, or as clients that send its lines."""
    draw = Random(f"{seed} file")
    beginnings = [draw.randbytes(N_BEGINNING) for _ in range(N_BEGINNINGS)]
    prompts = [draw.choice(beginnings) + draw.randbytes(draw.randint(*N_OWN)) for _ in range(n)]
    answers = [draw.randbytes(draw.randint(*N_ANSWER)) for _ in range(n)]
    lines = list(zip(prompts, answers, strict=True))
    if ordered:
        lines.sort(key=lambda line: order_key("", {"prompt": line[0].decode("latin-1")}))
    fleet, _ = _warm(device, seed)
    start_s, n_at_once = fleet.now_s + LATER_S, N_LINES if ordered else N_CLIENTS
    stories = fleet.play(_in_turn(lines, n_at_once, MAX_PRIORITY if ordered else 0))
    ended = [story.end.stats for story in stories if story.end]
    n_cached, n_prompt = sum(one.n_cached for one in ended), sum(one.n_prompt for one in ended)
    return FileRun(1 - n_cached / n_prompt, len(ended) / (fleet.now_s - start_s))


def _in_turn(lines: Iterable[tuple[bytes, bytes]], n_at_once: int, priority: int) -> list[SimulatedRequest]:
    """Return the lines as so many clients that share them out beforehand, each every so many."""
    asks = [
        SimulatedRequest(f"{i}", 0.0 if i >= n_at_once else LATER_S, prompt, answer, priority=priority)
        for i, (prompt, answer) in enumerate(lines)
    ]
    return [linked(asks[i::n_at_once]) for i in range(n_at_once)]
