"""How far the product's scheduler is from the best of simple policies, on tables of devices. Pure, seeded.

Engines run on a virtual clock. Their passes take what devices.py says, give or take a few percent, so that
the scheduler has to learn times whose form it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, inf
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from cobali_ray.core.cache.slots import Slots
from cobali_ray.core.cost.ticktime import TickShape
from cobali_ray.core.plan.pace import Pacer, PrefillPlan
from cobali_ray.core.plan.plan import Plan, Span
from cobali_ray.core.planner import Select, select_decoding
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.sequence import Sequence as Running
from cobali_ray.engine.calibration import MAX_S, passes
from cobali_ray.errors import InvariantError
from cobali_workloads.inside.asks import linked
from cobali_workloads.inside.devices import N_SLOTS, BatchPart, Device
from cobali_workloads.inside.policies import RoundRobin
from cobali_workloads.load.shape import TYPICAL_ANSWER, TYPICAL_PROMPT
from cobali_workloads.simulate.engine import SimulatedEngine
from cobali_workloads.simulate.fleet import RequestOutcome, SimulatedFleet, SimulatedRequest

OURS, LLAMA_SERVER = "ours", "llama-server"
MAX_WAIT = 1.5
NOISE = 0.03
BURST_SHARE, BURST = 0.003, (1.5, 3.0)
"""The share of passes that something disturbs, and how many times as long they take."""
BUSY_S = (3.0, 13.0)
"""When another process takes half of the machine."""
RECOVERY_S = 5.0

# -- devices ------------------------------------------------------------------------------------------


class Machine:
    """A device that is not always as fast as its table."""

    def __init__(self, device: Device, limits: EngineLimits, seed: int) -> None:
        self.device, self.limits = device, limits
        self._rng = Random(f"{seed} passes")
        self.busy_s = (inf, inf)
        """From when until when everything takes twice as long."""

    def seconds(self, plan: Plan, slots: Slots, shape: TickShape, now_s: float) -> float:
        """See `Passes`."""
        del shape
        factor = exp(self._rng.gauss(0.0, NOISE))
        if self._rng.random() < BURST_SHARE:
            factor *= self._rng.uniform(*BURST)
        if self.busy_s[0] <= now_s < self.busy_s[1]:
            factor *= 2
        return self.device.seconds(batch_of(plan, slots)) * factor


def batch_of(plan: Plan, slots: Slots) -> list[BatchPart]:
    """Return what a plan has llama.cpp compute, in the order of the batch."""
    return [BatchPart(slots.seq_ids[span.slot_id], *span[1:]) for span in plan.spans]


def opening(device: Device, limits: EngineLimits) -> Iterator[tuple[TickShape, float]]:
    """Yield the passes that an engine measures when it opens, as far as there is time."""
    left_s = MAX_S
    for shape, spans in passes(limits, limits.n_slots):
        seconds = device.seconds([BatchPart(*span) for span in spans])
        if seconds <= left_s:
            left_s -= seconds
            yield shape, seconds


# -- policies ------------------------------------------------------------------------------------------


class Unpaced(Pacer):
    """As much prefill beside the streams as the limits allow; learns nothing."""

    def __init__(self) -> None:
        super().__init__(None)

    def learn(self, shape: TickShape, seconds: float) -> float:
        """See `Pacer`."""
        del shape, seconds
        return 0.0


class Bounded(Unpaced):
    """Knows the device: as much prefill as keeps a tick within a multiple of a full decode tick."""

    SIZES = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512)

    def __init__(self, device: Device, factor: float) -> None:
        super().__init__()
        self._device = device
        full = [BatchPart(i, TYPICAL_PROMPT.median, 1, 1) for i in range(N_SLOTS)]
        self._most_s = factor * device.seconds(full)

    def plan(
        self, streams: Sequence[Running], prompts: Sequence[Running], limits: EngineLimits, *,
        within_s: float = inf,
    ) -> PrefillPlan:  # fmt: skip
        """See `Pacer`."""
        if not streams:
            return super().plan(streams, prompts, limits, within_s=within_s)
        beside = [BatchPart(s.seq_id, s.n_computed, 1, 1) for s in streams]
        planned: tuple[Span, ...] = ()
        for size in self.SIZES:
            budget = min(size + len(streams), limits.token_budget)
            fewer = replace(limits, token_budget=budget, n_slots=min(limits.n_slots, budget))
            spans = super().plan(streams, prompts, fewer).chunks
            seq_ids = {p.slot_id: p.seq_id for p in prompts}
            batch = sorted(beside + [BatchPart(seq_ids[span.slot_id], *span[1:]) for span in spans])
            if planned and (spans == planned or self._device.seconds(batch) > self._most_s):
                break
            planned = spans
        return PrefillPlan(planned)


def select_prefill_first(by_slot: Sequence[Running | None], budget: int) -> list[Running]:
    """Return who decodes: nobody while a prompt is computed."""
    if any(s is not None and not s.decoding for s in by_slot):
        return []
    return select_decoding(by_slot, budget)


class Contender(NamedTuple):
    """A way to share ticks between streams and prompts."""

    pacer: Callable[[Device], Pacer]
    changes: Mapping[str, Any] = MappingProxyType({})
    """Limits other than the product's."""
    select: Select = select_decoding
    learns: bool = False


def _decode_first(n: int) -> Contender:
    return Contender(lambda _: Unpaced(), {"prefill_chunk": n, "token_budget": n + N_SLOTS})


def _bounded(factor: float) -> Contender:
    return Contender(lambda device: Bounded(device, factor))


def ours(device: Device) -> Pacer:
    """Return the product's pacer, as an opening leaves it."""
    pacer = Pacer("auto", device.limits.grain)
    pacer.model.calibrate(opening(device, device.limits))
    return pacer


CONTENDERS: Mapping[str, Contender] = {
    OURS: Contender(ours, learns=True),
    "prefill first": Contender(lambda _: Unpaced(), select=select_prefill_first),
    **{f"decode first, {n}": _decode_first(n) for n in (64, 128, 256, 512)},
    LLAMA_SERVER: Contender(
        lambda _: Unpaced(), {"prefill_chunk": 2048, "token_budget": 2048, "prefill_order": "fcfs"}
    ),
    **{f"gaps up to {factor:g} decode ticks": _bounded(factor) for factor in (1.5, 2.5, 4.0, 8.0)},
}
"""The last ones are searched for the best bound, with the device's own table to keep it."""

# -- loads ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretLoad:
    """Requests, and what happens beside them."""

    asks: Sequence[SimulatedRequest]
    warm: bool = True
    """Whether the engine has answered others before."""
    busy: bool = False
    """Whether another process takes half of the machine for a while, see `BUSY_S`."""


def _ask(name: str, rng: Random, at_s: float = 0.0) -> SimulatedRequest:
    n_prompt, n_answer = TYPICAL_PROMPT.draw(rng), TYPICAL_ANSWER.draw(rng)
    return SimulatedRequest(name, at_s, rng.randbytes(n_prompt), rng.randbytes(n_answer))


def _poisson(
    name: str, rps: float, seed: int, *, least: int = 24, most: int = 24, seconds: float = 0.0
) -> list[SimulatedRequest]:
    """Return requests at random times, for so many seconds but at least and at most so many."""
    rng, at_s, asks = Random(f"{seed} {name}"), 0.0, list[SimulatedRequest]()
    while len(asks) < least or (at_s < seconds and len(asks) < most):
        asks.append(_ask(f"{name} {len(asks)}", rng, at_s))
        at_s += rng.expovariate(rps)
    return asks


def _bursts(rps: float, seed: int) -> list[SimulatedRequest]:
    rng, apart_s = Random(f"{seed} bursts"), 1.5 * N_SLOTS / rps
    return [_ask(f"burst {i}", rng, apart_s * (i // N_SLOTS)) for i in range(2 * N_SLOTS)]


def _intruder(device: Device, seed: int) -> list[SimulatedRequest]:
    """Return 15 streams and, once they run, a prompt of 4,096 tokens."""
    rng = Random(f"{seed} intruder")
    streams = [
        SimulatedRequest(f"stream {i}", 0.0, rng.randbytes(64), rng.randbytes(192))
        for i in range(N_SLOTS - 1)
    ]
    begun_s = 2 * device.seconds([BatchPart(i, 0, 64, 1) for i in range(N_SLOTS - 1)])
    return [*streams, SimulatedRequest("intruder", begun_s, rng.randbytes(4096), rng.randbytes(32))]


def _chats(rps: float, seed: int, n_users: int = 8, n_turns: int = 3) -> list[SimulatedRequest]:
    """Return chats at half of what the engine can do, whose users think before they go on."""
    rng, first = Random(f"{seed} chats"), list[SimulatedRequest]()
    think_s = n_users / (0.5 * rps)
    for user in range(n_users):
        history, turns = b"", list[SimulatedRequest]()
        for turn in range(n_turns):
            ask = _ask(f"chat {user}.{turn}", rng, rng.expovariate(1 / think_s))
            new = ask.prompt[:64] if turn else ask.prompt
            turns.append(replace(ask, prompt=history + bytes(new)))
            history += bytes(new) + bytes(ask.answer)
        turns[0].at_s = rng.uniform(0.0, think_s)
        first.append(linked(turns))
    return first


def _cold(rps: float, seed: int) -> list[SimulatedRequest]:
    """Return ten seconds of requests, of which eight waited for the server to start."""
    asks = _poisson("cold", 0.6 * rps, seed, least=8, most=24, seconds=10.0)
    return [replace(ask, at_s=max(ask.at_s - asks[7].at_s, 0.0)) for ask in asks]


MakeLoad = Callable[[Device, float, int], RegretLoad]
LOADS: Mapping[str, MakeLoad] = {
    "poisson-0.3": lambda _, rps, seed: RegretLoad(asks=_poisson("poisson", 0.3 * rps, seed)),
    "poisson-0.6": lambda _, rps, seed: RegretLoad(asks=_poisson("poisson", 0.6 * rps, seed)),
    "poisson-0.9": lambda _, rps, seed: RegretLoad(asks=_poisson("poisson", 0.9 * rps, seed)),
    "bursts": lambda _, rps, seed: RegretLoad(asks=_bursts(rps, seed)),
    "intruder": lambda device, _, seed: RegretLoad(asks=_intruder(device, seed)),
    "chats": lambda _, rps, seed: RegretLoad(asks=_chats(rps, seed)),
    "cold": lambda _, rps, seed: RegretLoad(asks=_cold(rps, seed), warm=False),
    "half-machine": lambda _, rps, seed: RegretLoad(
        asks=_poisson("busy", 0.4 * rps, seed, least=12, most=200, seconds=BUSY_S[1] + 2 * RECOVERY_S),
        busy=True,
    ),
}
"""Made of a device, how many requests per second it can answer, and a seed."""


def play(device: Device, who: Contender, load: RegretLoad, rps: float, seed: int = 0) -> list[RequestOutcome]:
    """Play a load on an engine that answers `rps` requests per second at most."""
    machine = Machine(device, replace(device.limits, **who.changes), seed)
    engine = SimulatedEngine(machine, who.pacer(device), who.select)
    fleet = SimulatedFleet({"0": engine}, RoundRobin())
    if load.warm and who.learns:
        fleet.play(_poisson("warm", 0.6 * rps, seed, least=16, most=16))
    if load.busy:
        begins_s, ends_s = BUSY_S
        machine.busy_s = (fleet.now_s + begins_s, fleet.now_s + ends_s)
    return fleet.play(load.asks)


def most_rps(device: Device, seed: int = 0) -> float:
    """Return how many typical requests a device answers per second when all come at once.

    The last tenth, beside empty slots, is left out.
    """
    rng = Random(f"{seed} capacity")
    asks = [_ask(f"{i}", rng) for i in range(2 * N_SLOTS)]
    ended = sorted(
        story.ended_s
        for story in play(device, CONTENDERS["decode first, 512"], RegretLoad(asks=asks), 0.0, seed)
    )
    n_most = int(0.9 * len(ended))
    return n_most / ended[n_most - 1]


# -- results -------------------------------------------------------------------------------------------

FIGURES = ("ttft_mean_s", "e2e_mean_s", "itl_p99_s", "output_tokens_per_s")


def figures_of(stories: Iterable[RequestOutcome]) -> dict[str, float]:
    """Return what clients beside the engine would have measured. Raises InvariantError for a refusal."""
    done = list(stories)
    if unanswered := [story.ask.request_id for story in done if story.end is None or story.end.error]:
        raise InvariantError(f"not answered: {', '.join(unanswered)}")
    gaps = [after - before for story in done for before, after in pairwise(story.tokens_s)]
    waits = [story.tokens_s[0] - story.sent_s for story in done]
    took_s = max(story.ended_s for story in done) - min(story.sent_s for story in done)
    return {
        "ttft_mean_s": float(np.mean(waits)),
        "e2e_mean_s": float(np.mean([story.ended_s - story.sent_s for story in done])),
        "itl_p99_s": float(np.quantile(gaps, 0.99)),
        "output_tokens_per_s": sum(len(story.tokens_s) for story in done) / took_s,
        "ttft_longest_s": max(waits),
    }


@dataclass(frozen=True, slots=True)
class Cell:
    """What the contenders made of a load on a device."""

    device: str
    load: str
    figures: Mapping[str, Mapping[str, float]]
    """By contender."""

    def best(self, figure: str) -> str:
        """Return who was best by one figure, among those who hold nobody back."""
        pick = max if figure == "output_tokens_per_s" else min
        return pick(self.fair, key=lambda name: self.figures[name][figure])

    @property
    def fair(self) -> list[str]:
        """Contenders whose longest wait for a first token is at most `MAX_WAIT` times llama-server's.

        Streams are quick where a long prompt is held back until they have ended: that is not counted.
        """
        most_s = MAX_WAIT * self.figures[LLAMA_SERVER]["ttft_longest_s"]
        return [name for name, figures in self.figures.items() if figures["ttft_longest_s"] <= most_s]

    def regret(self, figure: str) -> float:
        """Return how many times worse the product is than the best; 1 where it is the best."""
        own, best = (self.figures[name][figure] for name in (OURS, self.best(figure)))
        return best / own if figure == "output_tokens_per_s" else own / best


def cells(devices: Iterable[Device], loads: Iterable[str], seed: int = 0) -> Iterator[Cell]:
    """Play every load on every device under every policy."""
    for device in devices:
        rps = most_rps(device, seed)
        for name in loads:
            load = LOADS[name](device, rps, seed)
            figures = {
                who: figures_of(play(device, contender, load, rps, seed))
                for who, contender in CONTENDERS.items()
            }
            yield Cell(device.name, name, figures)
