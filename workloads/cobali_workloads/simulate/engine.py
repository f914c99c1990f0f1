"""An engine of which only the decisions are real: the product's Scheduler, with passes nobody computes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

from cobali_ray.core import messages
from cobali_ray.core.cache.slots import Slots
from cobali_ray.core.cost.ticktime import TickShape
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.plan.plan import Plan
from cobali_ray.core.planner import Select, select_decoding
from cobali_ray.core.queue.admission import AdmittedCounts, admit, fit
from cobali_ray.core.request.events import End
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.core.scheduler import Scheduler
from cobali_ray.errors import InvariantError
from cobali_workloads.simulate.ticks import PER_BYTE_S


class TickResult(NamedTuple):
    """What a tick gave: who got a token, and who ended."""

    streams: Seq[Sequence]
    ends: Seq[End]


class Passes(Protocol):
    """Knows how long passes take."""

    @property
    def limits(self) -> EngineLimits:
        """Return the bounds of the engine that computes them."""
        ...

    def seconds(self, plan: Plan, slots: Slots, shape: TickShape, now_s: float) -> float:
        """Return how long one that begins now takes; `slots` says who is where."""
        ...


class SimulatedEngine:
    """Ticks in two steps, because a simulated pass lasts: `begin` says how long, `end` what came of it."""

    def __init__(self, passes: Passes, pacer: Pacer, select: Select = select_decoding) -> None:
        self.scheduler = Scheduler(passes.limits, pacer=pacer, select=select)
        self._passes, self._entered = passes, AdmittedCounts()
        self._plan: Plan | None = None
        self._answers: dict[str, Seq[int]] = {}
        """Of open requests."""
        self._ends: list[End] = []
        self.n_ticks = 0

    def submit(self, request: Request, answer: Seq[int], now_s: float) -> None:
        """Let a request in whose answer is known. Raises what the engine's own door does."""
        limits = self.scheduler.limits
        request = fit(request, limits.n_most)
        admit(request, self._entered.occupancy(self.scheduler), limits)
        self._entered.note(request)
        self._answers[request.request_id] = answer
        self._tell(messages.Submitted(request, now_s))

    def begin(self, now_s: float) -> float | None:
        """Begin a tick; return how long it takes. None: there is nothing to compute."""
        self._plan = None
        moved_s = self._tell(messages.TickBegun(now_s))
        if self._plan is None:
            return None
        return moved_s + self._passes.seconds(
            self._plan, self.scheduler.slots, self.scheduler.counts.shape, now_s + moved_s
        )

    def end(self, now_s: float) -> TickResult:
        """End the tick."""
        if (plan := self._plan) is None:
            raise InvariantError("no tick was begun")
        rows = [s for i in plan.rows if (s := self.scheduler.slots.by_slot[i]) is not None]
        tokens = [self._answers[s.request_id][s.n_output] for s in rows]
        self._tell(messages.Sampled(tokens, {}, now_s))
        if plan.rows:
            self._tell(messages.Emitted((), now_s))
        self._tell(messages.TickEnded(now_s))
        self.n_ticks += 1
        ends, self._ends = self._ends, []
        for end in ends:
            del self._answers[end.request_id]
        return TickResult(rows, ends)

    def _tell(self, event: messages.Event) -> float:
        """Tell the scheduler what happened; return how long moving the cells that it names takes."""
        n_moved = 0
        for instruction in self.scheduler.handle(event):
            if isinstance(instruction, messages.Compute):
                self._plan = instruction.plan
            elif isinstance(instruction, messages.Finish):
                self._ends.append(instruction.end)
            elif isinstance(instruction, messages.Save):
                n_moved += instruction.blocks[-1][2]
            elif isinstance(instruction, messages.Restore):
                n_moved += instruction.n_keep
            elif isinstance(instruction, messages.Swap):
                n_moved += 2 * instruction.n_cells
        if not n_moved:
            return 0.0
        moved_s = n_moved * self.scheduler.limits.cell_bytes * PER_BYTE_S
        self._tell(messages.Moved(n_moved, moved_s, ()))
        return moved_s
