"""Slots: the books of the KV cache: which sequence has which slot, and what every slot holds.

Cells are counted, one for each token: those of busy slots (`n_cells_running`), those of prefixes that ended
requests left behind (`n_cells_idle`), and free ones; idle prefixes count as free. A waiting request gets a
slot if its known tokens fit (`fits`); the possible length of its answer is not reserved, so decoding can
outgrow the cache. Then idle prefixes are dropped first, the least valuable per token; after that the sequence
of the lowest class that was assigned last is preempted (`youngest`): it goes back to the head of its queue
with its sampled tokens, and its cells wait in host memory or are computed again. The only running sequence is
never preempted, so there is always progress. If llama.cpp finds no room although these books say otherwise,
the books yield: all idle prefixes are dropped, a sequence is preempted, and the same tick tries again without
it.

The last two tokens of a prompt are always computed: the last one gives the logits, and one alone rounds
differently. Slots know the salt of what they hold; it is compared before tokens are.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from collections.abc import Set as AbstractSet
from math import inf
from typing import NamedTuple

from cobali_ray.core.cache.gaps import exchanges
from cobali_ray.core.cache.placement import (
    MoveCosts,
    Placement,
    SlotContents,
    choose_placement,
    deepest,
    n_shared,
    reach,
    recompute_cost,
    worth,
)
from cobali_ray.core.cache.sharing import Sharing
from cobali_ray.core.queue.fair import yields
from cobali_ray.core.queue.waiting import MAX_PARKED, PATIENCE_S
from cobali_ray.core.request.lifecycle import Status
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import MAX_PRIORITY
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.errors import InvariantError

CUT = 256
"""Tokens that are cut from an idle prefix at a time."""
MIN_WAIT_TOKENS = 16
"""Least tokens that a prompt waits for while another computes them."""

_NOTHING: array[int] = array("i")


class _Kept(NamedTuple):
    """The program that an idle slot is kept for."""

    program: str
    line: tuple[int, str]
    since_s: float
    until_s: float

    def before(self, sequence: Sequence) -> bool:
        """Return whether it goes before a sequence of a worse class, or of the same line that began later."""
        own = sequence.request.program
        if own is not None and (sequence.line[1], own.name) == (self.line[1], self.program):
            return False
        return self.line[0] < sequence.priority or (
            self.line == sequence.line and self.since_s < sequence.since_s
        )


class Slots:
    """Every cell belongs to a sequence in a slot or to the prefix of an idle slot, or is free."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self.running: list[Sequence] = []
        """Sequences in slots, RELEASING ones among them, oldest assignment first."""
        self.by_slot: list[Sequence | None] = [None] * limits.n_slots
        self.seq_ids = list(range(limits.n_slots))
        """The id that each slot computes under."""
        self._came_or_left = False
        """Whether a sequence did since gaps between ids were last looked for."""
        self._held = [SlotContents(i, _NOTHING, 0, 0.0, idle=True) for i in range(limits.n_slots)]
        """What idle slots hold; what a busy one holds, its sequence says."""
        self.level = 0.0
        """What a prefix must stand above to be worth anything; see placement.py."""
        self.n_cells_running = 0
        """KV cells of sequences in slots; counts a cell for each slot that has it."""
        self._sharing = Sharing()
        self._kept: dict[int, _Kept] = {}
        """The programs that idle slots are kept for."""
        self.now_s = 0.0
        """When the tick began."""

    @property
    def n_idle(self) -> int:
        return self._limits.n_slots - len(self.running)

    @property
    def n_cells_idle(self) -> int:
        """KV cells that idle slots hold for prefix reuse, counted likewise."""
        return sum([held.n_tokens for held in self._held])

    def n_used(self) -> int:
        """Return the KV cells in use."""
        return self.n_cells_running + self.n_cells_idle - self._sharing.n_twice()

    def n_used_running(self) -> int:
        """Return the KV cells that running sequences hold."""
        return self.n_cells_running - self._n_twice_running()

    def n_used_idle(self) -> int:
        """Return the KV cells that only idle slots hold."""
        return self.n_used() - self.n_used_running()

    def _n_twice_running(self, kept: AbstractSet[int] = frozenset()) -> int:
        return self._sharing.n_twice(lambda slot_id: self.by_slot[slot_id] is not None or slot_id in kept)

    def n_short(self, n_tokens: int) -> int:
        """Return how many cells `n_tokens` need beyond those that are free; negative or 0 if they fit."""
        return n_tokens + self.n_used() - self._limits.n_cells

    def fits(
        self, sequence: Sequence, without: Seq[Sequence] = (), kept: AbstractSet[int] = frozenset()
    ) -> bool:
        """Return whether a waiting sequence can get a slot now, or could `without` some running ones.

        Its known tokens must fit beside all tokens known of the running ones, with one cell of growth
        for each, so that only decode growth ever preempts. Idle prefixes count as free: they are dropped,
        but for those in the slots `kept`.
        What it will share with others is counted all the same: they may end before it has begun.
        """
        if self.n_idle <= len(kept) and not without:
            return False
        committed = sum([len(s.tokens) + 1 for s in self.running]) - self._n_twice_running(kept)
        committed += sum([self._held[i].n_tokens for i in kept])
        freed = sum([len(s.tokens) + 1 for s in without])
        return committed - freed + len(sequence.tokens) <= self._limits.n_cells

    def keep(self, slot_id: int, sequence: Sequence, until_s: float) -> None:
        """Reserve an idle slot's prefix for the program of the sequence that left it."""
        if sequence.request.program is not None and until_s > self.now_s:
            name = sequence.request.program.name
            self._kept[slot_id] = _Kept(name, sequence.line, sequence.since_s, until_s)

    def keeps_out(self, sequence: Sequence) -> bool:
        """Return whether a sequence fits only into what is kept for others.

        False while no other sequence runs, and for one that is no program's or has waited long.
        """
        kept = self._kept_from(sequence)
        return bool(kept and self.running and self.fits(sequence)) and not self.fits(sequence, kept=kept)

    def _kept_from(self, sequence: Sequence) -> AbstractSet[int]:
        """Return the idle slots that are kept for programs that go before a sequence."""
        program = sequence.request.program
        if not self._kept or program is None or self.now_s - sequence.arrived_s > PATIENCE_S:
            return frozenset()
        return {i for i, kept in self._kept.items() if kept.until_s > self.now_s and kept.before(sequence)}

    def tokens(self, slot_id: int) -> array[int]:
        """Return the tokens of the sequence in a slot."""
        sequence = self.by_slot[slot_id]
        return _NOTHING if sequence is None else sequence.tokens

    def at(self, slot_ids: Seq[int]) -> list[Sequence]:
        """Return the sequences in these slots, in the same order."""
        return [s for i in slot_ids if (s := self.by_slot[i]) is not None]

    def n_tokens(self, slot_id: int) -> int:
        """Return how many tokens a slot holds, busy or idle."""
        sequence = self.by_slot[slot_id]
        return self._held[slot_id].n_tokens if sequence is None else sequence.n_computed

    def held(self, slot_id: int) -> SlotContents:
        """Return what an idle slot holds."""
        return self._held[slot_id]

    def choose(
        self, sequence: Sequence, n_on_host: int, most: int, depths: Seq[int] | None, costs: MoveCosts
    ) -> Placement:
        """Choose an idle slot for a sequence; see `choose_placement`."""
        kept = self._kept_from(sequence)
        if len(kept) >= self.n_idle:
            kept = frozenset()
        slots = [held._replace(idle=False) if held.slot_id in kept else held for held in self.contents()]
        return choose_placement(
            sequence.tokens,
            slots,
            self._limits,
            level=self.level,
            n_free_cells=self._limits.n_cells if self._limits.shares else -self.n_short(0),
            n_on_host=n_on_host,
            salt=sequence.salt,
            most=most,
            rows=sequence.request.rows,
            depths=depths,
            costs=costs,
        )

    def n_coming(self, sequence: Sequence, depths: Callable[[], Seq[int]] | None = None) -> int:
        """Return how many more of its first tokens slots will hold when the prompts under way are computed.

        Prompts that yield to this one do not count: it would wait for what is not computed before it. Fewer
        than `MIN_WAIT_TOKENS` count as none, and so do all where they could not be copied. `depths` returns
        those of its saved states, which slots go back to; None: they can be cut anywhere.
        """
        tokens, most, least = sequence.tokens, sequence.n_reusable, self._limits.min_prefix
        salt = sequence.salt
        if not self._limits.copies or not least or most < max(least, MIN_WAIT_TOKENS) or salt is None:
            return 0
        begins = tokens[:least]
        ours = [s for s in self.running if s.salt == salt and s.status is Status.RUNNING]
        alike = [s for s in ours if s.tokens[:least] == begins]
        prompts = [s for s in alike if not s.decoding and not yields(s.rank, sequence.rank)]
        ahead = [(s, n_shared(tokens, s.tokens, min(most, s.request.n_plain or most))) for s in prompts]
        coming = max([n if depths is None else deepest(s.cuts, n) for s, n in ahead], default=0)
        if coming < MIN_WAIT_TOKENS:
            return 0
        idle = [held for held in self._held if held.salt == salt and held.tokens[:least] == begins]
        holding = [(held.tokens, held.n_tokens) for held in idle] + [(s.tokens, s.n_common) for s in alike]
        state_depths = None if depths is None else depths()
        there = [reach(n_shared(tokens, other, min(most, n)), n, state_depths) for other, n in holding]
        return n if (n := coming - max(there)) >= MIN_WAIT_TOKENS else 0

    def n_held(self, tokens: array[int], salt: str, most: int, depths: Seq[int] | None = None) -> int:
        """Return how many of these first tokens some slot holds for the salt, at most `most`.

        Where slots only go back to saved states, of which the text has some at `depths`: as far as that.
        """
        holding = [(held.tokens, held.n_tokens) for held in self.contents() if held.salt == salt]
        return max(
            [reach(n_shared(tokens, other, min(most, n)), n, depths) for other, n in holding], default=0
        )

    def contents(self) -> list[SlotContents]:
        """Return what slots hold that others can reuse, busy and idle ones, by their ids."""
        return [
            held
            if s is None
            else SlotContents(held.slot_id, s.tokens, s.n_common, 0.0, idle=False, salt=s.salt)
            for held, s in zip(self._held, self.by_slot, strict=True)
        ]

    def assign(self, sequence: Sequence, place: Placement) -> None:
        """Give the slot to the sequence, which starts from the tokens that are there or copied."""
        if self.by_slot[place.slot_id] is not None:
            raise InvariantError(f"slot {place.slot_id} is not idle")
        if place.donor_id is not None and self._held[place.donor_id].n_tokens == place.n_keep:
            self._forget(place.donor_id, place.n_keep)  # a duplicate from now on, which nobody misses
        self._sharing.cut(place.slot_id, 0 if place.donor_id is not None or place.from_host else place.n_keep)
        if place.donor_id is not None and self._limits.shares:
            self._sharing.share(place.donor_id, place.slot_id, place.n_keep)
        self.level += place.lost
        self.n_cells_running += place.n_keep
        self._forget(place.slot_id)
        self.by_slot[place.slot_id] = sequence
        self._came_or_left = True
        sequence.slot_id, sequence.n_prefilled = place.slot_id, place.n_keep
        sequence.seq_id = self.seq_ids[place.slot_id]
        self.running.append(sequence)

    def release(self, sequence: Sequence, *, n_computed: int, n_keep: int) -> None:
        """Free a sequence's slot, which holds `n_computed` tokens, and keep its first `n_keep` for reuse."""
        slot_id = sequence.slot_id
        if self.by_slot[slot_id] is not sequence:
            raise InvariantError(f"request {sequence.request_id} does not hold slot {slot_id}")
        self.running.remove(sequence)
        self.by_slot[slot_id] = None
        self._came_or_left = True
        self.n_cells_running -= n_computed
        self._sharing.cut(slot_id, n_keep)
        if n_keep:
            self.hold(slot_id, sequence.tokens[:n_keep], sequence.salt)

    def hold(self, slot_id: int, tokens: array[int], salt: str | None) -> None:
        """Record that an empty idle slot now holds these tokens."""
        n_keep = len(tokens)
        worth_until = self.level + recompute_cost(0, n_keep)
        self._held[slot_id] = SlotContents(slot_id, tokens, n_keep, worth_until, idle=True, salt=salt)

    def _forget(self, slot_id: int, n_keep: int = 0) -> None:
        held = self._held[slot_id]
        self._kept.pop(slot_id, None)
        tokens, salt = (held.tokens, held.salt) if n_keep else (_NOTHING, "")
        self._held[slot_id] = SlotContents(slot_id, tokens, n_keep, self.level, idle=True, salt=salt)

    def drop(self, held: SlotContents) -> None:
        self._sharing.cut(held.slot_id, 0)
        self._forget(held.slot_id)

    def drop_idle(self, n: int | None = None) -> tuple[SlotContents, int] | None:
        """Forget the last `n` tokens of the idle prefix worth least per token; return it and what is left.

        All of it where `n` is None. None if no slot holds one. Those that are kept for a program go last, of
        these first the one whose program began last.
        """
        holding = [held for held in self._held if held.n_tokens]
        if not holding:
            return None

        def value(held: SlotContents) -> tuple[float, float]:
            kept = self._kept.get(held.slot_id)
            claim = -kept.since_s if kept is not None and kept.until_s > self.now_s else -inf
            return claim, worth(held, 0, self.level) / held.n_tokens

        least = min(holding, key=value)
        n_keep = 0 if n is None else least.n_tokens - max(n, CUT)
        n_keep -= n_keep % self._limits.host_block  # else the next cut would save less than a block anew
        if n_keep < max(self._limits.min_prefix, self._sharing.n_common(least.slot_id)):
            n_keep = 0  # of what others hold too, no end is free
        self.level += worth(least, n_keep, self.level)
        if n_keep:
            self._sharing.cut(least.slot_id, n_keep)
            self._held[least.slot_id] = least._replace(tokens=least.tokens[:n_keep], n_tokens=n_keep)
        else:
            self.drop(least)
        return least, n_keep

    def empty(self, sequence: Sequence) -> None:
        """Record that a sequence's slot is empty after all."""
        self.n_cells_running -= sequence.n_prefilled
        sequence.n_prefilled = 0
        self._sharing.cut(sequence.slot_id, 0)

    def close_gaps(self, runs_s: Callable[[Seq[int]], float], cell_s: float) -> list[tuple[int, int, int]]:
        """Exchange ids of slots, so that the busy ones are neighbours, where that pays; see `exchanges`.

        Those of the last class do not count beside others: mostly they take no part in a pass (leftover.py).

        Returns both slots of each exchange and the cells that they hold together.
        """
        if not self._limits.dense or not self._came_or_left:
            return []
        self._came_or_left = False
        slot_of = sorted(range(len(self.seq_ids)), key=self.seq_ids.__getitem__)
        sequences = [self.by_slot[i] for i in slot_of]
        cells = [
            self._held[i].n_tokens if s is None else s.n_computed
            for i, s in zip(slot_of, sequences, strict=True)
        ]
        others = any(s.priority < MAX_PRIORITY for s in self.running)
        busy = [s is not None and (s.priority < MAX_PRIORITY or not others) for s in sequences]
        swaps = []
        for a, b in exchanges(busy, cells, runs_s, cell_s):
            for slot_id, sequence, seq_id in ((slot_of[a], sequences[a], b), (slot_of[b], sequences[b], a)):
                self.seq_ids[slot_id] = seq_id
                if sequence is not None:
                    sequence.seq_id = seq_id
            swaps.append((slot_of[a], slot_of[b], cells[a] + cells[b]))
        return swaps

    def youngest(self) -> Sequence | None:
        """Return the sequence to preempt for want of cells, never the only one.

        It is the one assigned last of the worst class, as long as there is one that was not parked too often.
        """
        if len(self.running) < 2:
            return None
        return max(reversed(self.running), key=lambda s: (_may_leave(s), s.priority))

    def victims(self, claimant: Sequence, weights: Mapping[str, float]) -> list[Sequence]:
        """Return which sequences leave their slots for a claimant, in order, until it fits; newest first.

        Those of worse classes, the worst first. Else one of a tenant that was served far more and has more
        than its share of the slots, if the claimant's has less; shares are by `weights`, of the slots that
        their class has. None is parked more than `MAX_PARKED` times, but those of the last class by others.
        """
        mine, tenant = claimant.priority, claimant.account.tenant
        may = [s for s in reversed(self.running) if _may_leave(s)]
        if worse := sorted((s for s in may if s.priority > mine), key=lambda s: -s.priority):
            return worse if self.fits(claimant, worse) else []
        peers = [s for s in self.running if s.priority == mine]
        each = len(peers) / sum(weights.values())
        n_slots = Counter(s.account.tenant for s in peers)
        over = {name: n - each * weights.get(name, 1.0) for name, n in n_slots.items()}
        if n_slots[tenant] + 1 > each * weights[tenant]:
            return []
        most = max(over, key=over.__getitem__, default="")
        may = [s for s in may if s.n_parked < MAX_PARKED]
        theirs = [s for s in may if s.priority == mine and s.account.tenant == most and over[most] >= 1]
        return [s for s in theirs if yields(s.rank, claimant.rank)][:1]

    def problems(self) -> list[str]:
        problems = []
        busy = {s.slot_id for s in self.running}
        if len(busy) != len(self.running):
            problems.append("several sequences hold a slot")
        for slot_id, s in enumerate(self.by_slot):
            if (slot_id in busy) != (s is not None) or (s is not None and s.slot_id != slot_id):
                problems.append(f"slot {slot_id} and its sequence disagree")
            if self._held[slot_id].salt is None:
                problems.append(f"slot {slot_id} holds what nobody may begin with")
            if s is not None and self._held[slot_id].n_tokens:
                problems.append(f"slot {slot_id} is busy and holds an idle prefix")
            if s is not None and slot_id in self._kept:
                problems.append(f"slot {slot_id} is busy and kept for a program")
        if sorted(self.seq_ids) != list(range(self._limits.n_slots)):
            problems.append("slots share a sequence id")
        for s in self.running:
            if s.seq_id != self.seq_ids[s.slot_id]:
                problems.append(f"request {s.request_id} and its slot disagree on the sequence id")
            if s.status not in {Status.RUNNING, Status.RELEASING}:
                problems.append(f"request {s.request_id} is {s.status.name} and holds slot {s.slot_id}")
            if not 0 <= s.n_computed < len(s.tokens) or len(s.tokens) > self._limits.n_most:
                problems.append(f"request {s.request_id}: {s.n_computed} of {len(s.tokens)} tokens computed")
        if self.n_cells_running != sum(s.n_computed for s in self.running):
            problems.append("the cells of running sequences are miscounted")
        if self.n_used() > self._limits.n_cells:
            problems.append("more cells used than there are")
        return problems


def _may_leave(sequence: Sequence) -> bool:
    """Return whether it may be preempted once more; always in the last class, which may compute nothing."""
    return sequence.n_parked < MAX_PARKED or sequence.priority == MAX_PRIORITY
