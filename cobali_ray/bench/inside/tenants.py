"""Tenants and classes on the real scheduler, with a virtual clock and a formula for a tick's time. Pure.

Nothing is computed, so a minute of traffic takes seconds and is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from cobali_ray.core.admission import Entered, Occupancy, admit
from cobali_ray.core.events import End
from cobali_ray.core.instructions import (
    Compute,
    Emit,
    Emitted,
    Finish,
    Instruction,
    Moved,
    Restore,
    Sampled,
    Save,
    Submitted,
    TickBegun,
    TickEnded,
)
from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.pace import Pacer
from cobali_ray.core.plan import Plan
from cobali_ray.core.request import Request
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.errors import CobaliError, RefusedError

TICK_S, ROW_S, PREFILL_S, MOVE_S = 0.015, 0.0003, 0.00025, 0.000004
"""What a tick takes: at least, for every stream, for every prompt token; and for a token that is moved."""
TOKEN = 7
LIMITS = EngineLimits(
    n_slots=16, n_ctx_slot=4096, n_cells=16 * 4096, token_budget=528, prefill_chunk=512,
    prefill_order="shortest", max_queue=128, max_queue_tokens=262_144, n_host_cells=65_536, cell_bytes=1,
)  # fmt: skip


class Load(NamedTuple):
    """What is asked in one class for one tenant, at random times."""

    name: str
    rps: float
    tenant: str
    priority: int = 0
    weight: float = 1.0
    n_prompt: tuple[int, int] = (100, 1500)
    n_output: tuple[int, int] = (50, 200)


class Asked(NamedTuple):
    """One request and when it comes."""

    at_s: float
    request: Request


class Life(NamedTuple):
    """What became of one."""

    load: str
    ttft_s: float | None
    n_output: int
    n_preempted: int
    error: CobaliError | None


class Played(NamedTuple):
    """One run."""

    lives: list[Life]
    served: dict[str, float]
    """Prompt tokens computed and output tokens twice, by load, while they lasted."""

    def of(self, load: str) -> list[Life]:
        """Return what became of one load."""
        return [life for life in self.lives if life.load == load]


def traffic(loads: Sequence[Load], seconds: float, seed: int) -> list[Asked]:
    """Return what the loads ask, each as it would without the others, in order of time."""
    asked: list[Asked] = []
    for load in loads:
        draw, at_s = Random(f"{seed} {load.name}"), 0.0
        while (at_s := at_s + draw.expovariate(load.rps)) < seconds:
            name = f"{load.name}-{len(asked)}"
            first = draw.randrange(1 << 30)
            prompt = tuple(range(first, first + draw.randint(*load.n_prompt)))
            request = Request(
                request_id=name, prompt=prompt, max_tokens=draw.randint(*load.n_output),
                tenant=load.tenant, weight=load.weight, priority=load.priority,
            )  # fmt: skip
            asked.append(Asked(at_s, request))
    return sorted(asked)


def play(asked: Sequence[Asked], seconds: float, limits: EngineLimits = LIMITS) -> Played:
    """Have a scheduler serve all that is asked, through the door; what is served counts until `seconds`."""
    run = _Run(limits)
    waiting = iter([*asked, None])
    coming = next(waiting)
    served: dict[str, float] | None = None
    while coming is not None or run.scheduler.n_open:
        if coming is not None and not run.scheduler.has_work:
            run.now_s = max(run.now_s, coming.at_s)
        while coming is not None and coming.at_s <= run.now_s:
            run.ask(coming)
            coming = next(waiting)
        if served is None and run.now_s >= seconds:
            served = dict(run.served)
        run.tick()
    return Played(list(run.lives()), served or run.served)


class _Run:
    def __init__(self, limits: EngineLimits) -> None:
        self.scheduler = Scheduler(limits, pacer=Pacer("auto"))
        self.now_s = 0.0
        self.served: dict[str, float] = {}
        self._limits = limits
        self._entered, self._n_entered, self._n_tokens = Entered(), 0, 0
        self._asked: dict[str, Asked] = {}
        self._computed: dict[str, int] = {}
        self._ends: dict[str, End] = {}
        self._refused: dict[str, CobaliError] = {}

    def ask(self, one: Asked) -> None:
        """Come to the door."""
        s, request = self.scheduler, one.request
        self._asked[request.request_id] = one
        occupancy = Occupancy(
            n_queued=self._n_entered - s.n_left_queue,
            n_queued_tokens=self._n_tokens - s.n_left_queue_tokens,
            n_free_slots=0 if s.head_waits else s.slots.n_idle,
            drain_rps=s.drain_rate.rps,
            lines=self._entered.lines(s.n_left_line, s.n_left_line_tokens),
        )
        try:
            admit(request, occupancy, self._limits)
        except RefusedError as refusal:
            self._refused[request.request_id] = refusal
            return
        self._n_entered += 1
        self._n_tokens += request.n_prompt
        self._entered.note(request)
        self._do(s.handle(Submitted(request, one.at_s)))

    def tick(self) -> None:
        """Do one tick, which takes as long as it would."""
        s = self.scheduler
        moved_s, plan = self._do(s.handle(TickBegun(self.now_s)))
        if plan is None:
            return
        n_prefill = sum([chunk.length for chunk in plan.chunks])
        for sequence in plan.streams:
            self._serve(sequence.request, 2.0)
        for chunk in plan.chunks:
            prefilling = s.slots.by_slot[chunk.slot_id]
            if prefilling is not None:  # what is computed again is no service
                request = prefilling.request
                known, end = self._computed.get(request.request_id, 0), chunk.start + chunk.length
                self._serve(request, max(min(end, request.n_prompt) - known, 0))
                self._computed[request.request_id] = max(known, min(end, request.n_prompt))
        self.now_s += moved_s + TICK_S + ROW_S * len(plan.streams) + PREFILL_S * n_prefill
        self._do(s.handle(Sampled([TOKEN] * len(plan.rows), {}, self.now_s)))
        s.handle(TickEnded(self.now_s))

    def _serve(self, request: Request, n: float) -> None:
        load = load_of(request.request_id)
        self.served[load] = self.served.get(load, 0.0) + n

    def _do(self, out: list[Instruction]) -> tuple[float, Plan | None]:
        moved_s, plan = 0.0, None
        for one in out:
            if isinstance(one, Finish):
                self._ends[one.end.request_id] = one.end
            elif isinstance(one, Emit):
                self._do(self.scheduler.handle(Emitted([], self.now_s)))
            elif isinstance(one, Compute):
                plan = one.plan
            elif isinstance(one, Save | Restore):
                n = one.n_keep if isinstance(one, Restore) else one.blocks[-1][2]
                self.scheduler.handle(Moved(n, n * MOVE_S, []))
                moved_s += n * MOVE_S
        return moved_s, plan

    def lives(self) -> Iterator[Life]:
        """Tell what became of everybody."""
        for request_id in self._asked:
            load = load_of(request_id)
            if (refusal := self._refused.get(request_id)) is not None:
                yield Life(load, None, 0, 0, refusal)
            else:
                end = self._ends[request_id]
                yield Life(load, end.stats.ttft_s, end.stats.n_output, end.stats.n_preempted, end.error)


def load_of(request_id: str) -> str:
    """Return the name of the load that a request belongs to."""
    return request_id.rsplit("-", 1)[0]
