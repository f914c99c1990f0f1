"""Tiers: which prefixes slots, host memory and the disk hold, and what moves between them. Pure.

A prompt begins from the longest prefix that a slot or host memory holds for its salt. What a slot loses goes
to host memory, what that takes in is written to disk, and what the disk has of a new prompt is read into host
memory before it gets a slot. Saved states (states.py) go along, each with the cells up to where it stands.
Moving and reading are weighed against computing. The scheduler decides who runs; this decides what a prompt
begins with.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import NamedTuple

from cobali_ray.core import messages
from cobali_ray.core.cache.backups import PART_BYTES, Backups
from cobali_ray.core.cache.disk_tier import WAIT_S, DiskTier, is_state, whole
from cobali_ray.core.cache.host_tier import NAME_BYTES, Block, HostTier, Moves, chain, root_name
from cobali_ray.core.cache.placement import (
    GUESSED,
    MoveCosts,
    Placement,
    SlotContents,
    deepest,
    recompute_cost,
)
from cobali_ray.core.cache.slots import Slots
from cobali_ray.core.cache.states import State, States, cuts_of, sparse_step
from cobali_ray.core.plan.drafts import LONG_MATCH
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.media import Rows, whole_prefix
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.errors import InvariantError

_SAMPLE = 1024
"""Tokens of a prompt whose predicted time gives that of a token."""
_STATE_MOVES = 4.0
"""Times that moving a state takes which computing again must, for it to be saved: it is moved twice if it is
of use at all, and the pass that ends where it lies is one more."""


class _Part(NamedTuple):
    """What to read from disk of a text."""

    start: int
    """First and last position of its cells; there may be none."""
    n_cells: int
    end: int
    """How many tokens of a prompt are held once it is read."""
    names: Seq[bytes]


class _Beginning(NamedTuple):
    """What host memory has of a prompt."""

    blocks: Seq[Block]
    states: Seq[State]


class Tiers:
    """The books of slots, host memory and the disk. `instruct` takes instructions, in order."""

    def __init__(
        self,
        limits: EngineLimits,
        instruct: Callable[[messages.Instruction], None],
        compute_s: Callable[[int, int], float],
    ) -> None:
        """Begin empty. `compute_s` returns the seconds that a range of tokens takes; 0 while unknown."""
        self._limits, self._instruct, self._compute_s = limits, instruct, compute_s
        self.slots = Slots(limits)
        self.host = HostTier(limits.n_host_cells if limits.min_prefix else 0, limits.host_block)
        self.states = States(limits.n_states if limits.min_prefix else 0, limits.host_block)
        self.disk = DiskTier(limits.host_block)
        self.moves = Moves(limits.cell_bytes)
        self.backups = Backups()

    def begin_tick(self, now_s: float) -> None:
        """Begin a tick; requests that waited long enough for the disk continue without it."""
        self.moves.begin()
        for sequence in self.disk.overdue(now_s):
            sequence.note_ready()

    def clear(self) -> None:
        """Forget what slots and host memory hold, and which requests wait for the disk."""
        self.slots = Slots(self._limits)
        self.host.clear()
        self.states.clear()
        self.disk.forget_requests()
        self.backups = Backups()

    def n_held(self, tokens: array[int], most: int, salt: str | None, rows: Seq[Rows] = ()) -> int:
        """Return how many of a prompt's first tokens slots or host memory hold. For any thread."""
        if salt is None or not self._limits.min_prefix:
            return 0
        depths = self._depths(tokens, most, salt)
        n_on_host = self._n_on_host(self.host.match(tokens, most, salt), most, depths, rows)
        return max(self.slots.n_held(tokens, salt, most, depths), n_on_host)

    def n_coming(self, sequence: Sequence) -> int:
        """Return how many more of a prompt's first tokens slots will hold soon; see `Slots.n_coming`."""
        if not self._limits.state_bytes:
            return self.slots.n_coming(sequence)
        tokens, most, salt = sequence.tokens, sequence.n_reusable, sequence.salt
        return self.slots.n_coming(sequence, lambda: self._depths(tokens, most, salt) or ())

    def _depths(self, tokens: array[int], most: int, salt: str | None) -> list[int] | None:
        """Return where a text has saved states; None where slots can be cut anywhere and there are none."""
        if not self._limits.state_bytes:
            return None
        return [state.n for state in self.states.find(tokens, most, salt)]

    def _n_on_host(self, blocks: Seq[Block], most: int, depths: Seq[int] | None, rows: Seq[Rows] = ()) -> int:
        """Return how many tokens of a text host memory can give, which holds these blocks of it."""
        if self._limits.states_alone:
            return depths[-1] if depths else 0
        n = whole_prefix(min(blocks[-1].end, most), rows) if blocks else 0
        return n if depths is None else deepest(depths, n)

    # -- slots and host memory ------------------------------------------------------------------------

    def place(self, sequence: Sequence) -> Placement | None:
        """Prepare a slot for a sequence. None: this tick has no time left for it."""
        stateful, salt = bool(self._limits.state_bytes), sequence.salt
        most = sequence.n_resumable if stateful else sequence.n_reusable
        blocks = [] if salt is None else self.host.match(sequence.tokens, most, salt)
        begin = _Beginning(blocks, self.states.find(sequence.tokens, most, salt))
        depths = [state.n for state in begin.states] if stateful else None
        n_on_host = self._n_on_host(blocks, most, depths, sequence.request.rows)
        place = self.slots.choose(sequence, n_on_host, most, depths, self._costs())
        slot_id, n_keep, held = place.slot_id, place.n_keep, self.slots.held(place.slot_id)
        if place.from_host and not self.moves.affords(n_keep):
            return None
        if place.from_host:
            self.host.needed = blocks
            self.host.use(blocks)
        self._use_states(begin.states, n_keep)
        in_place = place.donor_id is None and not place.from_host
        if n_keep and not place.from_host:
            source = held if place.donor_id is None else self.slots.held(place.donor_id)
            sequence.earlier = source.tokens[max(n_keep - LONG_MATCH, 0) :]
        if held.n_tokens - n_keep * in_place >= self._limits.host_block:
            self.save(slot_id, held.tokens, held.n_tokens, held.salt)
        elif stateful and in_place and n_keep == held.n_tokens:
            self.keep_state(slot_id, held.tokens, n_keep, held.salt)
        if place.from_host:
            self._instruct(messages.Truncate(slot_id, 0))
            n_keep, self.host.needed = self._restore(held, sequence, begin, n_keep), ()
            return place._replace(n_keep=n_keep)
        if depths is not None:
            return self._go_back(place, begin.states)
        self._instruct(messages.Truncate(slot_id, n_keep if in_place else 0))
        if place.donor_id is not None:
            self._instruct(messages.Copy(place.donor_id, slot_id, n_keep))
        return place

    def _costs(self) -> MoveCosts:
        """Return the costs of moving cells and states, in tokens of prefill."""
        token_s = self._compute_s(0, _SAMPLE) / recompute_cost(0, _SAMPLE)
        if not token_s:
            return GUESSED
        state = self.states.seconds / token_s if self.states.seconds else GUESSED.state
        return MoveCosts(self.moves.s_per_token / token_s, state)

    def _use_states(self, states: Seq[State], n_keep: int) -> None:
        """Record that a prompt reuses so many tokens: the states along them are not to be evicted now."""
        before = 0
        for state in states:
            if state.n <= n_keep:
                self.states.use(state, before)
            before = state.n

    def _go_back(self, place: Placement, states: Seq[State]) -> Placement:
        """Put the slot, or a copy of its donor, back to a saved state, or let it stand where it does."""
        slot_id, n_keep, donor_id = place.slot_id, place.n_keep, place.donor_id
        n_there = self.slots.n_tokens(slot_id if donor_id is None else donor_id)
        state = next((state for state in states if state.n == n_keep and self.states.keeps(state)), None)
        if not n_keep or (n_keep < n_there and state is None):  # the state was evicted just now
            self._instruct(messages.Truncate(slot_id, 0))
            return place._replace(n_keep=0, donor_id=None)
        if donor_id is not None:
            self._instruct(messages.Truncate(slot_id, 0))
            self._instruct(messages.Copy(donor_id, slot_id, n_there))
        if n_keep < n_there and state is not None:
            self.states.n_restored += 1
            self._instruct(messages.RestoreState(slot_id, state.state_id, n_keep))
        return place

    def cuts(self, sequence: Sequence, place: Placement) -> tuple[int, ...]:
        """Return at which tokens a prompt's state is to be saved for later prompts that begin alike."""
        limits, rows = self._limits, sequence.request.rows
        if not limits.n_states or sequence.salt is None:
            return ()

        def pays(start: int, end: int) -> bool:
            compute_s = self._compute_s(start, end)
            return not compute_s or compute_s >= _STATE_MOVES * self.states.seconds

        cuts = cuts_of(
            start=place.n_keep, end=sequence.n_reusable, turns=sequence.request.turns, fork=place.n_alike,
            least=limits.state_step, step=sparse_step(limits.n_states, limits.n_ctx_slot), pays=pays,
        )  # fmt: skip
        return tuple([n for n in cuts if not any(part.start < n <= part.end + 1 for part in rows)])

    def keep_state(self, slot_id: int, tokens: array[int], n: int, salt: str | None) -> None:
        """Save the state of a slot that holds the first `n` of these tokens, if it is worth it."""
        if salt is None:
            return
        new, evicted = self.states.add(tokens, n, salt, self._limits.state_step)
        if evicted:
            self._instruct(messages.ForgetStates(tuple(evicted)))
        if new is not None:
            self._instruct(messages.SaveState(slot_id, new.state_id, n))

    def drop_idle(self, n: int | None = None) -> bool:
        """Evict `n` tokens of the idle prefix that is worth least; return whether there was one.

        All of it where `n` is None, or where slots cannot be cut.
        """
        dropped = self.slots.drop_idle(None if self._limits.state_bytes else n)
        if dropped is None:
            return False
        held, n_keep = dropped
        self.save(held.slot_id, held.tokens, held.n_tokens, held.salt)
        self._instruct(messages.Truncate(held.slot_id, n_keep))
        return True

    def close_gaps(self, runs_s: Callable[[Seq[int]], float]) -> bool:
        """Make busy sequence ids neighbours where that pays; return whether any changed."""
        swaps = self.slots.close_gaps(runs_s, 2 * self.moves.s_per_token)  # out of a slot and back
        for slot_id, other_id, n_cells in swaps:
            self._instruct(messages.Swap(slot_id, other_id, n_cells))
        return bool(swaps)

    def save(self, slot_id: int, tokens: array[int], n: int, salt: str | None) -> None:
        """Save to host memory what a slot is about to lose, as far as it is worth it and there is time."""
        if salt is None or self._stays(tokens, n):
            return
        if self._limits.states_alone:
            self.keep_state(slot_id, tokens, n, salt)
            self._store(tokens, salt, (), self.states.find(tokens, n, salt))
        if n < self._limits.host_block or not self.host.n_cells or not self.moves.affords(n):
            return
        new, removed = self.host.insert(tokens, n, salt)
        states: Seq[State] = ()
        if self._limits.state_bytes:
            if sum([block.n_tokens for block in self.host.match(tokens, n, salt)]) >= n:
                self.keep_state(slot_id, tokens, n, salt)
            states = self.states.find(tokens, n, salt)
            # The block in which one stands may go on otherwise in another text. A longer tail takes the place
            # of a shorter one, so the deepest state is first.
            for state in reversed(states):
                if state.n % self._limits.host_block:
                    more, less = self.host.insert(tokens, state.n, salt)
                    new, removed = [*new, *more], [*removed, *less]
        unsaved = {block.block_id for block in new}
        removed = [block_id for block_id in removed if block_id not in unsaved]
        if removed:
            self._instruct(messages.Forget(tuple(removed)))
        if kept := [block for block in new if self.host.keeps(block)]:
            spans = tuple([(block.block_id, block.start, block.end) for block in kept])
            self._instruct(messages.Save(slot_id, spans))
            self.moves.plan(n)  # the whole slot is read
        self._store(tokens, salt, self.host.match(tokens, n, salt), states)

    def _stays(self, tokens: array[int], n: int) -> bool:
        """Return whether what a slot holds cannot be kept elsewhere: there is an image in it."""
        return not self._limits.keeps_images and min(tokens[:n], default=0) < 0

    def _restore(self, held: SlotContents, sequence: Sequence, begin: _Beginning, n_keep: int) -> int:
        """Fill an emptied slot from host memory; return how many tokens it holds then."""
        self.slots.drop(held)
        while (n := self.slots.n_short(n_keep)) > 0 and self.drop_idle(n):
            pass
        kept = [block for block in begin.blocks if self.host.keeps(block)]
        n_there = n_keep if self._limits.states_alone else kept[-1].end if kept else 0
        n_keep, state = whole_prefix(min(n_there, n_keep), sequence.request.rows), None
        if self._limits.state_bytes:
            kept_states = [s for s in begin.states if s.n <= n_keep and self.states.keeps(s)]
            state = kept_states[-1] if kept_states else None
            n_keep = 0 if state is None else state.n
            kept = [block for block in kept if block.start < n_keep]
        if n_keep:
            self.host.n_hits += 1
            self.host.n_restored += n_keep
            self.states.n_restored += state is not None
            block_ids = tuple([block.block_id for block in kept])
            state_id = None if state is None else state.state_id
            self._instruct(messages.Restore(held.slot_id, block_ids, n_keep, state_id))
            self._store(sequence.tokens, sequence.salt or "", kept, () if state is None else (state,))
            self.moves.plan(n_keep)
        return n_keep

    def moved(self, event: messages.Moved) -> None:
        """Learn how long moving cells took, and forget blocks that could not be saved."""
        self.moves.learn(event.n_tokens, event.seconds)
        if event.lost and (dropped := self.host.drop(event.lost)):
            self._instruct(messages.Forget(tuple(dropped)))

    def states_moved(self, event: messages.StatesMoved) -> None:
        """Learn how long moving states took, and forget those that could not be saved or restored."""
        self.states.learn(event.n, event.seconds)
        self.moves.spent_s += event.seconds
        if event.lost and (dropped := self.states.drop(event.lost)):
            self._instruct(messages.ForgetStates(tuple(dropped)))

    def unrestored(self, event: messages.Unrestored) -> None:
        """Record that slots could not be restored: their prompts are computed."""
        if dropped := self.host.drop(event.block_ids):
            self._instruct(messages.Forget(tuple(dropped)))
        for slot_id in event.slot_ids:
            if (sequence := self.slots.by_slot[slot_id]) is not None:
                self.slots.empty(sequence)
                if len(sequence.stays) == 1:
                    sequence.account.charge(sequence.n_cached)
                    sequence.n_cached, sequence.cached_from = 0, "none"

    # -- slots that are filled and emptied from outside -----------------------------------------------

    def fill(self, event: messages.Filled) -> None:
        """Make room in an idle slot for tokens whose cells come from a file, and book them."""
        held, n = self._take_off(event.slot_id), len(event.tokens)
        if held.n_tokens:
            self.save(held.slot_id, held.tokens, held.n_tokens, held.salt)
        self._instruct(messages.Truncate(event.slot_id, 0))
        while self.slots.n_short(n) > 0:
            if not self.drop_idle():
                raise InvariantError(f"no room for {n} tokens from outside")
        self.slots.hold(event.slot_id, event.tokens, event.salt)
        self._hold_states([(event.tokens, n, event.salt, name) for n, name in event.states])

    def _hold_states(self, states: Seq[tuple[array[int], int, str, bytes]]) -> None:
        """Book states that came from a file: their tokens, how many of them, the salt, the name."""
        for tokens, n, salt, name in states:
            new, evicted = self.states.add(tokens, n, salt)
            if evicted:
                self._instruct(messages.ForgetStates(tuple(evicted)))
            if new is not None:
                self._instruct(messages.Hold((), ((new.state_id, name),)))

    def empty(self, event: messages.Emptied) -> None:
        self._take_off(event.slot_id)
        self._instruct(messages.Truncate(event.slot_id, 0))

    def _take_off(self, slot_id: int) -> SlotContents:
        """Take an idle slot's prefix off the books and return it."""
        if self.slots.by_slot[slot_id] is not None:
            raise InvariantError(f"slot {slot_id} is not idle")
        held = self.slots.held(slot_id)
        self.slots.drop(held)
        return held

    # -- the disk -------------------------------------------------------------------------------------

    def look_on_disk(self, sequence: Sequence, now_s: float) -> None:
        """Read what the disk has of a prompt, if that is a block more than slots and host memory hold.

        And if reading takes less time than computing, which is the longest that the request waits.
        """
        tokens, most, salt = sequence.tokens, sequence.n_reusable, sequence.salt
        if salt is None or not self.disk.open:
            return
        n_held = self.n_held(tokens, most, salt, sequence.request.rows)
        least = max(n_held + self._limits.host_block, self._limits.min_prefix)
        if (part := self._part_on_disk(tokens, most, salt, least)) is None:
            return
        compute_s = self._compute_s(n_held, part.end)
        n_states = sum(map(is_state, part.names))
        n_cells = (len(part.names) - n_states) * self._limits.host_block
        n_bytes = n_cells * self._limits.cell_bytes + n_states * self._limits.state_bytes
        if not self.disk.pays(n_bytes, compute_s):
            return
        load_id, unread = self.disk.load(
            sequence, part.names, now_s,
            n_cells=part.n_cells, n_state=part.end * n_states, most_s=compute_s or WAIT_S,
        )  # fmt: skip
        skipped = (len(part.names) - len(unread)) * self._limits.host_block
        self._instruct(messages.LoadBlocks(load_id, min(part.start + skipped, part.n_cells), tuple(unread)))
        sequence.hold_back()

    def _part_on_disk(self, tokens: array[int], most: int, salt: str, least: int) -> _Part | None:
        """Return what to read so that at least `least` tokens are held; None if the disk has less."""
        if not self._limits.state_bytes:
            part = self._cells_on_disk(tokens, min(most, self.host.n_cells), salt)
            end = min(part.n_cells, most)
            return part._replace(end=end) if part.names and end >= least else None
        for n, name in reversed(self.disk.states(tokens, most, salt) if self.states.n_most else ()):
            if n < least:
                return None
            if self._limits.states_alone:
                return _Part(n, n, n, (name,))
            part = self._cells_on_disk(tokens, n, salt, tail=name[-NAME_BYTES:])
            if n <= min(part.n_cells, self.host.n_cells):
                return part._replace(end=n, names=(*part.names, name))
        return None

    def _cells_on_disk(self, tokens: array[int], n: int, salt: str, tail: bytes = b"") -> _Part:
        """Return the blocks that host memory lacks of the first `n` tokens, as far as they are on disk.

        `tail` is the name of the block with which these tokens would end.
        """
        held, block = self.host.match(tokens, n, salt), self._limits.host_block
        if held and held[-1].end >= n:
            return _Part(n, n, n, ())
        whole_blocks = whole(held, block)
        start, name = (whole_blocks[-1].end, whole_blocks[-1].name) if whole_blocks else (0, root_name(salt))
        names = self.disk.behind(name, tokens, start, n)
        n_cells = start + len(names) * block
        if n - block < n_cells < n and self.disk.has(tail):
            names, n_cells = [*names, tail], n
        return _Part(start, n_cells, n, tuple(names))

    def loaded(self, event: messages.BlocksLoaded) -> None:
        """Keep blocks read from disk in host memory; the request continues after the last of them."""
        self.disk.learn(event.n_bytes, event.seconds)
        loading = self.disk.loading(event.load_id)
        if loading is None:
            return
        sequence, salt, block = loading.sequence, loading.sequence.salt or "", self._limits.host_block
        states = [name for name in event.names if is_state(name)]
        end = min(event.start + (len(event.names) - len(states)) * block, loading.n_cells)
        new, removed = self.host.load(sequence.tokens, event.start, end, salt)
        if removed:
            self._instruct(messages.Forget(tuple(removed)))
        if new:
            self._instruct(messages.Hold(tuple([(block.block_id, block.name) for block in new])))
        self._hold_states([(sequence.tokens, loading.n_state, salt, name) for name in states])
        of_use = bool(new or states)
        if of_use and loading.waits:
            sequence.cached_from = "disk"  # if it begins there
        n_new = sum([block.n_tokens for block in new])
        self.disk.loaded(loading, n_new, event.missing, of_use=of_use)
        if event.done:
            self.disk.done(event.load_id)
            if loading.waits:
                sequence.note_ready()

    @property
    def backup_due_s(self) -> float | None:
        """When an idle engine is to write what a slot holds to disk; None: never."""
        return None if self.disk.writing or not self.disk.open else self.backups.due_s(self._copy_s)

    def _copy_s(self, slot_id: int) -> float:
        """Return the seconds that copying what an idle slot holds takes."""
        if self.slots.by_slot[slot_id] is not None:
            return 0.0
        n = self.slots.held(slot_id).n_tokens
        return n * self.moves.s_per_token + (self.states.seconds if self._limits.state_bytes else 0.0)

    def back_up(self, now_s: float, *, idle: bool) -> None:
        """Write to disk what it lacks of an idle slot, if it is time for that."""
        if self.disk.writing or not self.disk.open:
            return
        slot_id = self.backups.next(now_s, self._copy_s, idle=idle)
        if slot_id is None or self.slots.by_slot[slot_id] is not None:
            return
        tokens, n, salt = (held := self.slots.held(slot_id)).tokens, held.n_tokens, held.salt or ""
        if self._stays(tokens, n):
            return
        block = self._limits.host_block
        n_cells = 0 if self._limits.states_alone else min(n, self.host.n_cells)
        parts: list[messages.BackupPart] = []
        room = PART_BYTES
        for end, name in [*chain(tokens, n_cells, salt, block)][1:]:
            cells = None if self.disk.has(name) else (end - block, end)
            room -= 0 if cells is None else block * self._limits.cell_bytes
            if room < 0 and any(part.cells for part in parts):
                self.backups.again(slot_id)
                break
            parts.append(messages.BackupPart(name, cells))
        runs = [(0, parts)] if parts else []
        if self._limits.state_bytes and room >= 0:
            end = n if self._limits.states_alone else n_cells
            runs += [self._state_part(state) for state in self._newest(held, salt) if state.n <= end]
        new = {part.name for _, run in runs for part in run if part.cells or part.state_id is not None}
        if new:
            self.disk.writing = new
            self._instruct(messages.BackUp(slot_id, n, runs))
            self.moves.plan(n)

    def _newest(self, held: SlotContents, salt: str) -> list[State]:
        """Return states that the disk lacks: the last one saved of a slot's text, and the present one."""
        tokens, n = held.tokens, held.n_tokens
        newest = self.states.find(tokens, n, salt)[-1:]
        if n - (newest[0].n if newest else 0) >= self._limits.host_block:
            self.keep_state(held.slot_id, tokens, n, salt)
            newest += [state for state in self.states.find(tokens, n, salt)[-1:] if state.n == n]
        return [state for state in newest if self.states.keeps(state) and not self.disk.has(state.name)]

    def _state_part(self, state: State) -> tuple[int, list[messages.BackupPart]]:
        """Return how a state is written, behind the shorter block in which it may stand."""
        n_before, n_tail = divmod(state.n, self._limits.host_block)
        parts = [messages.BackupPart(state.name, state_id=state.state_id)]
        if n_tail and not self._limits.states_alone:
            tail = state.name[-NAME_BYTES:]
            cells = None if self.disk.has(tail) else (state.n - n_tail, state.n)
            parts.insert(0, messages.BackupPart(tail, cells))
        return n_before, parts

    def flush(self) -> None:
        """Save all that slots hold, and so to disk: the busy ones, then by worth."""
        if self.disk.open:
            for held in sorted(self.slots.contents(), key=lambda held: (held.idle, -held.worth_until)):
                self.moves.begin()
                self.save(held.slot_id, held.tokens, held.n_tokens, held.salt)

    def _store(self, tokens: array[int], salt: str, blocks: Seq[Block], states: Seq[State]) -> None:
        """Write blocks and states of a text to disk, or count those that are there as used."""
        if not self.disk.open:
            return
        block = self._limits.host_block
        whole_blocks = whole(blocks, block)
        if whole_blocks:
            self._instruct(messages.StoreBlocks(tuple([(b.block_id, b.name) for b in whole_blocks])))
        for state in reversed(states):  # the deepest first: there the next turn begins
            n_before = state.n // block
            has_blocks = n_before <= len(whole_blocks)
            tail = self.host.tail(tokens, state.n, salt, whole_blocks) if has_blocks else None
            cells = None if tail is None else (tail.block_id, tail.name)
            if self.states.keeps(state):
                self._instruct(messages.StoreState(state.state_id, state.name, cells, n_before))
