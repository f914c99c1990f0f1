"""Planner: what the next pass computes for the sequences in slots.

It puts together what the rooms of `core/plan` decide, each for itself: whose adapter computes, what the last
class may, how much of the prompts, how it is laid out, which guesses pay.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from math import inf
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from cobali_ray.core.cache.slots import Slots
from cobali_ray.core.cost.runs import run_lengths
from cobali_ray.core.cost.ticktime import TickShape
from cobali_ray.core.plan.adapters import AdapterTurns
from cobali_ray.core.plan.goodput import MAX_STREAMS, Drafts, Speculation
from cobali_ray.core.plan.leftover import Leftovers, Turnout
from cobali_ray.core.plan.pace import Pacer, PrefillPlan
from cobali_ray.core.plan.plan import Plan, cut_chunks, lay_out
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import MAX_PRIORITY
from cobali_ray.core.request.sequence import Sequence

Select: TypeAlias = Callable[[Seq[Sequence | None], int], list[Sequence]]
"""Chooses which sequences decode, given those by slot and the most of them; called when slots changed."""


def select_decoding(by_slot: Seq[Sequence | None], budget: int) -> list[Sequence]:
    """Return all sequences that decode, in slot order: the budget has a token for each slot."""
    return [s for s in by_slot if s is not None and s.decoding][:budget]


class NextPass(NamedTuple):
    """What would be computed next, and what each part of the plan records if it is."""

    plan: Plan
    shape: TickShape
    prefill: PrefillPlan
    drafts: Drafts | None
    turnout: Turnout | None
    """Set where there are requests of the last class."""


class Planner:
    """Knows which sequences decode and which compute their prompts. `next` changes nothing."""

    def __init__(
        self,
        slots: Slots,
        limits: EngineLimits,
        pacer: Pacer,
        select: Select = select_decoding,
        speculation: Speculation | None = None,
    ) -> None:
        self.pacer, self.speculation = pacer, speculation
        self.leftovers = Leftovers()
        self._limits, self._select, self._turns = limits, select, AdapterTurns()
        self._streams: list[Sequence] = []
        self._prompts: list[Sequence] = []
        self._adapters: set[str] = set()
        self._any_left = self._any_others = False
        """Whether requests of the last class have slots, and whether others have."""
        self.use(slots)

    def use(self, slots: Slots) -> None:
        self._slots = slots
        self.changed()

    def changed(self) -> None:
        """Sort the slots anew: a sequence came, left or began to decode."""
        self._is_sorted = False

    @property
    def streams(self) -> Seq[Sequence]:
        """Sequences that decode, by sequence id."""
        self._sort()
        return self._streams

    @property
    def prompts(self) -> Seq[Sequence]:
        """Sequences that compute their prompts, oldest first."""
        self._sort()
        return self._prompts

    def spare_s(self) -> float:
        """Return how long texts may take before the streams' next tokens; inf where there are no streams."""
        if not self.streams:
            return inf
        decode_s = self.pacer.model.decode_s(len(self.streams), self._slots.n_cells_running)
        return self.pacer.most_s(decode_s) - decode_s

    def next(self, now_s: float, *, streams_gave: bool) -> NextPass:
        """Return what would be computed now.

        `streams_gave`: what streams can spare was used already, so that no prompt goes on beside them.
        """
        self._sort()
        by_slot, limits, n_adapters = self._slots.by_slot, self._limits, len(self._adapters)
        adapter, within_s = next(iter(self._adapters), ""), inf
        turn: str | None = None
        streams: Seq[Sequence] = self._streams
        prompts: Seq[Sequence] = self._prompts
        if n_adapters > 1:
            members, turn = self.leftovers.members(self._slots.running)
            adapter, within_s = self._turns.next(members, now_s, self.pacer) if turn is None else (turn, inf)
            streams = [s for s in streams if s.adapter == adapter]
            prompts = [s for s in prompts if s.adapter == adapter]
        turnout = None
        if self._any_left:
            away = [s for s in self._slots.running if s.adapter != adapter]
            others = [s for s in away if s.priority != MAX_PRIORITY]
            turnout = self.leftovers.beside(streams, prompts, self.pacer, now_s, away=others)
            if turn is None and len(others) < len(away) and self._any_others:
                turnout = turnout._replace(whole=False)
            streams, prompts = turnout.streams, turnout.prompts
            within_s = min(within_s, turnout.within_s)
        texts_first = streams_gave and bool(streams)
        prefill = self.pacer.plan(streams, () if texts_first else prompts, limits, within_s=within_s)
        chunks = cut_chunks(prefill.chunks, by_slot, limits.token_budget - len(streams))
        plan = lay_out(streams, chunks, by_slot, limits.grain)
        shape, drafts = self._shape(plan, streams), None
        if self.speculation and not (chunks or texts_first or n_adapters > 1 or len(streams) > MAX_STREAMS):
            drafts = self._draft(self.speculation, streams, shape)
            if drafts is not None and drafts.tokens:
                plan = lay_out(streams, chunks, by_slot, limits.grain, drafts.tokens)
                plan = plan._replace(by_head=drafts.choice is not None and drafts.choice.head)
                shape = self._shape(plan, streams)
        plan = plan._replace(adapter=adapter) if adapter else plan
        return NextPass(plan, shape, prefill, drafts, turnout)

    def begin(self, next_pass: NextPass, now_s: float) -> int:
        """Record that this pass is computed; return 1 if its adapter differs from the last one's, else 0."""
        self.pacer.begin(next_pass.prefill)
        if self.speculation is not None:
            self.speculation.begin(next_pass.drafts)
        if next_pass.turnout is not None:
            self.leftovers.begin(next_pass.turnout, next_pass.plan.adapter)
        return self._turns.begin(next_pass.plan.adapter, now_s)

    def passed(self, plan: Plan) -> None:
        """Record for each prompt how many tokens of later prompts this plan computes before it."""
        prompts = [s for s in self.prompts if s.adapter == plan.adapter]
        age = {s.slot_id: i for i, s in enumerate(prompts)}
        served = {slot_id: n for n, (slot_id, *_) in enumerate(plan.chunks)}
        for i, prompt in enumerate(prompts):
            before = plan.chunks[: served.get(prompt.slot_id)]
            prompt.n_passed += sum([length for slot_id, _, length, _ in before if age[slot_id] > i])

    def _shape(self, plan: Plan, streams: Seq[Sequence]) -> TickShape:
        context = plan.context
        if context is None:
            alone = len(streams) == len(self._slots.running)
            context = self._slots.n_cells_running if alone else sum([s.n_computed for s in streams])
        chunks = tuple([(c.start, c.length) for c in plan.chunks])
        n_rows = sum([int(c.sample) for c in plan.chunks])
        runs: tuple[int, ...] = ()
        if self._limits.grain.beside:
            runs = run_lengths([s.seq_id for s in self._slots.at(plan.streams)])
        return TickShape(len(streams), context, chunks, n_rows, runs)

    def _draft(self, speculation: Speculation, streams: Seq[Sequence], shape: TickShape) -> Drafts | None:
        """Return drafts that are expected to pay; None if too little is known of the tick without them."""
        model = self.pacer.model
        if not streams or not model.knows_decode:
            return None
        plain_s = model.decode_s(shape.n_decode, shape.context, shape.runs)
        room = min(self._limits.token_budget - len(streams), -self._slots.n_short(len(streams)))
        return speculation.choose(streams, plain_s=plain_s, most_s=self.pacer.most_s(plain_s), room=room)

    def _sort(self) -> None:
        if not self._is_sorted:
            streams = self._select(self._slots.by_slot, self._limits.token_budget)
            self._streams = sorted(streams, key=attrgetter("seq_id"))
            self._prompts = [s for s in self._slots.running if not s.decoding]
            self._adapters = {s.adapter for s in self._slots.running}
            classes = {s.priority for s in self._slots.running}
            self._any_left, self._any_others = MAX_PRIORITY in classes, bool(classes - {MAX_PRIORITY})
            self._is_sorted = True

    def problems(self) -> list[str]:
        if not self._is_sorted:
            return []
        decoding = self._select(self._slots.by_slot, self._limits.token_budget)
        if {s.slot_id for s in self._streams} != {s.slot_id for s in decoding}:
            return ["somebody who decodes is not among the streams"]
        return []
