"""What holds for every engine, whatever happens to it (stateful, over the scripted backend).

The hashes of each salt begin elsewhere, and those of a request that shares nothing too: who began with a cell
of somebody else's would say something else than alone.
"""

import random
import zlib
from array import array
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cobali_ray.backend.grammar import check
from cobali_ray.backend.scripted import CELL_BYTES, ScriptedBackend
from cobali_ray.core.cache.disk_tier import WAIT_S
from cobali_ray.core.cost.ticktime import TickShape
from cobali_ray.core.plan.adapters import Adapter
from cobali_ray.core.plan.goodput import SIZES, DraftPlan, Drafts, Speculation
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.request.events import Delta
from cobali_ray.core.request.life import life_of
from cobali_ray.core.request.limits import EngineLimits, Grain
from cobali_ray.core.request.request import ReasoningBudget, Request, SamplingParams
from cobali_ray.core.views.stats import DECODE, PREFILL
from cobali_ray.engine.disk import Disk
from cobali_ray.engine.engine import Engine
from cobali_ray.errors import (
    BackendError,
    CacheFullError,
    DeadlineExceededError,
    RequestCancelledError,
    SlotFaultError,
)
from cobali_ray.testing import EventRecorder, FakeClock

N_CTX = 48
WORDS = ["", "the quick brown fox ", "the quick red fox jumps over ", "lorem ipsum dolor sit amet "]
prompts = st.builds(
    lambda word, tail: (word + tail)[:30].encode(),
    st.sampled_from(WORDS),
    st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=12),
)
sampling = st.builds(
    SamplingParams, temperature=st.sampled_from([0.0, 0.0, 1.0, 2.0]), top_k=st.sampled_from([0, 5]),
    seed=st.integers(0, 3), presence_penalty=st.sampled_from([0.0, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]), ignore_eos=st.booleans(),
    min_tokens=st.sampled_from([0, 0, 5]), n_logprobs=st.sampled_from([None, None, 1]),
)  # fmt: skip
NUMBER = check("p", "regex", "[0-9]{2,4}[a-z]{3}").grammar
grammars = st.sampled_from([None, None, None, None, NUMBER, NUMBER._replace(triggers=tuple("aeiou<({[ "))])
budgets = st.none() | st.builds(
    ReasoningBudget,
    n_tokens=st.integers(0, 6),
    start=st.just(""),
    end=st.sampled_from(["}{", "e"]),
    closing=st.sampled_from([tuple(b"}{"), tuple(b"so: <")]),
)


def seed_of(request):
    """Return what the cells of a request depend on beside its tokens: its tenant, or it alone."""
    return zlib.crc32((request.request_id if request.cache_salt is None else request.cache_salt).encode())


ADAPTERS = (Adapter("one", "1", "one.gguf", 1.0), Adapter("two", "2", "two.gguf", 1.0))


def lone_answer(request, end_probability):
    """Return what a request is told that is computed whole, alone, with nothing before it, and its tokens."""
    backend = ScriptedBackend(
        n_slots=1, n_ctx_slot=64, n_batch=64, end_probability=end_probability, adapters=ADAPTERS
    )
    backend._seeds[0] = seed_of(request)
    limits = EngineLimits(
        n_slots=1, n_ctx_slot=64, n_cells=64, token_budget=64, prefill_chunk=64, min_prefix=0
    )
    events = EventRecorder()
    engine = Engine(backend, limits, FakeClock(), events, entropy=lambda: 0)
    tokens = engine.submit(request).tokens
    while engine.has_work:
        engine.tick()
    return told(events, request.request_id), tokens


def told(events, request_id):
    (end,) = events.ends(request_id)
    logprobs = [p for e in events.events[request_id] if isinstance(e, Delta) for p in e.logprobs]
    return events.text(request_id), end.finish_reason, end.stats.n_output, logprobs, prompt_told(events, end)


def prompt_told(events, end):
    """Return what a client is told of its prompt, which all comes before the answer."""
    deltas = [e for e in events.events[end.request_id] if isinstance(e, Delta)]
    assert not any(e.prompt for e in deltas[sum(not e.tokens for e in deltas) :])
    return [p for e in deltas for p in e.prompt]


class Guesses(Speculation):
    """Drafts that are right as far as the dice say, or a head's."""

    def __init__(self, answers, dice, backend):
        self.answers, self.dice = answers, dice
        self.sizes = [0, *(size for size in SIZES[:3] if size <= backend.max_draft)]
        self.has_head = backend.has_head

    def choose(self, streams, *, plain_s, most_s, room):
        del plain_s, most_s
        found = {}
        if self.has_head and self.dice.random() < 0.5:
            for s in streams:
                if (n := min(self.dice.choice(self.sizes), room, s.n_most - len(s.tokens) - 1)) > 0:
                    found[s.slot_id] = array("i", [0] * n)
                    room -= n
            return Drafts(found, 0.0, DraftPlan(1, 1, 1, head=True))
        for s in streams:
            tokens, n = self.answers[s.request_id], len(s.tokens)
            draft = tokens[n : max(n, min(n + self.dice.choice(self.sizes), n + room, s.n_most - 1))]
            if draft and self.dice.random() < 0.4:
                draft[self.dice.randrange(len(draft))] = self.dice.randrange(97, 123)
            ends = [i for i, token in enumerate(draft) if token in s.end_tokens]
            if draft := draft[: ends[0]] if ends else draft:
                found[s.slot_id] = draft
                room -= len(draft)
        return Drafts(found, 0.0)

    def begin(self, drafts):
        pass

    def learn(self, seconds):
        return 0.0


@pytest.mark.parametrize("overlaps", [False, True], ids=["inline", "overlapped"])
@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong-at-the-end"])
def test_a_stop_string_ends_an_answer_wherever_it_is_in_a_draft(overlaps, right):
    class Sevens(random.Random):
        def choice(self, sizes):
            return max(sizes)

        def random(self):
            return float(right)

    plain = Request(
        request_id="r", prompt=tuple(b"quick"), max_tokens=24, sampling=SamplingParams(temperature=0.0)
    )
    whole = lone_answer(plain, 0.0)[0][0]
    for at in range(len(whole) - 1):
        asked = replace(plain, stop=(whole[at : at + 2],), max_tokens=at + 2 if at % 2 else 24)
        lone, _ = lone_answer(asked, 0.0)
        backend = ScriptedBackend(n_slots=1, n_ctx_slot=N_CTX, n_batch=64, overlaps=overlaps)
        limits = EngineLimits(n_slots=1, n_ctx_slot=N_CTX, n_cells=N_CTX, token_budget=64, prefill_chunk=64)
        pacer, guesses = Pacer("auto"), Guesses({}, Sevens(1), backend)
        for _ in range(6):
            pacer.model.learn(TickShape(1, 10, ()), 0.001)
        events = EventRecorder()
        engine = Engine(
            backend, limits, FakeClock(), events, pacer=pacer, speculation=guesses, entropy=lambda: 0,
            check_every=1,
        )  # fmt: skip
        _, guesses.answers["r"] = lone_answer(plain, 0.0)
        engine.submit(asked)
        while engine.has_work:
            engine.tick()
        assert told(events, "r") == lone


TROUBLES = {
    "full": lambda batch: CacheFullError("full"),
    "fault": lambda batch: SlotFaultError(batch.spans[-1].slot_id, "at fault"),
    "fire": lambda batch: BackendError("fire"),
}


class Copying(ScriptedBackend):
    """Notes how far each slot was computed or copied; may have trouble with its next pass."""

    def __init__(self, **scripted):
        super().__init__(**scripted)
        self.reached = {}
        self.trouble = None
        self.moves_fail = False
        self.seeds = {}

    def expect(self, slot_id, row):
        super().expect(slot_id, row)
        self._seeds[slot_id] = self.seeds[row]

    def use(self, adapter):
        super().use(adapter)
        self.used = adapter

    def forward(self, batch):
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            raise TROUBLES[trouble](batch)
        super().forward(batch)

    def copy(self, donor_id, slot_id, n_keep):
        super().copy(donor_id, slot_id, n_keep)
        self.reached[slot_id] = n_keep

    def save(self, slot_id, spans):
        if self.moves_fail:
            raise BackendError("no memory")
        return super().save(slot_id, spans)

    def restore(self, slot_id, cells, n_keep, state=None):
        if self.moves_fail:
            raise BackendError("no cells")
        super().restore(slot_id, cells, n_keep, state)
        self.reached[slot_id] = n_keep

    def save_state(self, slot_id, n_tokens):
        if self.moves_fail:
            raise BackendError("no memory")
        return super().save_state(slot_id, n_tokens)

    def restore_state(self, slot_id, state, n_keep):
        if self.moves_fail:
            self.truncate(slot_id, 0)
            raise BackendError("no state")
        super().restore_state(slot_id, state, n_keep)
        self.reached[slot_id] = n_keep


class Shelf:
    """Block files in a dictionary; some get lost, and writing may fail."""

    def __init__(self):
        self.kept, self.n_bytes, self.fails = {}, 0, False

    def open(self):
        return set(self.kept)

    def full(self, _n_bytes):
        return len(self.kept) > 20

    def tidy(self, _n_bytes):
        for name in list(self.kept)[:10]:
            del self.kept[name]
        return set(self.kept)

    def use(self, name, _depth):
        return name in self.kept

    def is_whole(self, _name, n_bytes):
        return n_bytes > 1000

    def forget(self, names):
        for name in names:
            self.kept.pop(name, None)

    def write(self, name, cells, _depth):
        if self.fails:
            raise OSError("no space")
        self.kept[name] = cells.copy()
        return True

    def read(self, name, _depth):
        if name not in self.kept:
            raise FileNotFoundError
        return self.kept[name]


class EngineMachine(RuleBasedStateMachine):
    """Submits, cancels, lets time pass, gets into trouble and ticks, in any order."""

    @initialize(
        n_slots=st.integers(1, 5),
        cells=st.sampled_from([48, 60, 90, 240]),
        chunk=st.integers(1, 16),
        order=st.sampled_from(["shortest", "shortest", "fcfs"]),
        target_s=st.sampled_from(["auto", "auto", None, 0.004]),
        grain=st.sampled_from([Grain(step=4, least=4, beside=1), Grain(), Grain(pass_cells=100)]),
        min_prefix=st.sampled_from([0, 1, 8]),
        n_host_cells=st.sampled_from([1000, 40, 0]),
        overlaps=st.booleans(),
        disk=st.sampled_from(["", "open", "closed"]),
        end_probability=st.sampled_from([0.0, 0.05]),
        copies=st.sampled_from(["no", "split", "shared"]),
        dense=st.booleans(),
        cut_s=st.sampled_from([0.0, 1.0]),
        dice=st.none() | st.randoms(use_true_random=False),
        n_scored_rows=st.sampled_from([256, 2, 5]),
        states=st.sampled_from(["", "", "hybrid", "alone"]),
        n_states=st.sampled_from([50, 3, 1, 0]),
    )
    def open(  # the production defaults come first or twice
        self, n_slots, cells, chunk, order, target_s, grain, min_prefix, n_host_cells, overlaps, disk,
        end_probability, copies, dense, cut_s, dice, n_scored_rows, states, n_states,
    ):  # fmt: skip
        n_cells = min(cells, n_slots * N_CTX)
        budget = max(chunk, n_slots) + (16 if dice else 0)
        self.backend = Copying(
            n_slots=n_slots,
            n_ctx_slot=N_CTX,
            n_cells=n_cells,
            n_batch=budget,
            overlaps=overlaps,
            end_probability=end_probability,
            copies=copies != "no",
            shares=copies == "shared",
            n_scored_rows=n_scored_rows,
            adapters=ADAPTERS,
            keeps_states=states != "",
            states_alone=states == "alone",
            has_head=dice is not None,
        )
        if states:
            disk, n_host_cells = "", n_host_cells if states == "hybrid" else 0
        self.limits = EngineLimits(
            n_slots=n_slots, n_ctx_slot=N_CTX, n_cells=n_cells, token_budget=budget, prefill_chunk=chunk,
            prefill_order=order, min_prefix=min_prefix, n_host_cells=n_host_cells, host_block=4,
            copies=self.backend.copies, shares=self.backend.shares, dense=dense, grain=grain,
            n_scored_rows=n_scored_rows, state_bytes=self.backend.measure_state(),
            n_states=n_states if states else 0, state_step=2, states_alone=states == "alone",
        )  # fmt: skip
        self.end_probability = end_probability
        self.clock, self.events = FakeClock(step_s=0.0005), EventRecorder()
        self.jobs, self.shelf = [], Shelf()
        self.disk = Disk(lambda: self.shelf, self.clock, block=4) if disk else None
        if self.disk is not None:
            self.disk._read = self.disk._write = self.jobs.append
        self.lone = {}
        pacer, speculation = Pacer(target_s, grain), None
        pacer.model.runs_s = lambda rows: cut_s * len(rows)
        if dice is not None:
            speculation = Guesses({}, dice, self.backend)
            for _ in range(6):
                pacer.model.learn(TickShape(1, 10, ()), 0.001)
        self.speculation = speculation
        self.engine = Engine(
            self.backend, self.limits, self.clock, self.events, pacer=pacer, speculation=speculation,
            entropy=lambda: 0, check_every=1, disk=self.disk,
        )  # fmt: skip
        self.requests, self.sequences = {}, {}
        self.cancelled = set()
        self.troubled = False
        if disk == "open":
            self.the_disk_works(1, fail=False, hear=True)

    def the_disk_works(self, n, *, fail, hear):
        self.shelf.fails = fail
        for job in self.jobs[:n]:
            job()
        del self.jobs[:n]
        if hear:
            self.engine.take_disk_events()

    @rule(
        prompt=prompts,
        max_tokens=st.integers(0, 18),
        sampling=sampling,
        stop=st.sampled_from([(), (), ("e",), ("ab", "qz"), ("~", "x")]),
        timeout_s=st.sampled_from([None, None, 3.0]),
        grammar=grammars,
        budget=budgets,
        salt=st.sampled_from(["", "", "", "other", "other", None]),
        n_top=st.sampled_from([None, None, 0, 2, 20]),
        n_scored=st.sampled_from([0, 0, 0, 1, 4, 30]),
        adapter=st.sampled_from(["", "", "1", "2"]),
        turns=st.lists(st.integers(1, 20), max_size=3),
        n_plain=st.sampled_from([0, 0, 4, 12, 20]),
    )
    def submit(
        self, prompt, max_tokens, sampling, stop, timeout_s, grammar, budget, salt, n_top, n_scored, adapter,
        turns, n_plain,
    ):  # fmt: skip
        request_id = f"r{len(self.requests)}"
        self.requests[request_id] = request = Request(
            request_id=request_id, prompt=tuple(prompt), max_tokens=max_tokens, sampling=sampling, stop=stop,
            timeout_s=timeout_s, grammar=grammar, reasoning_budget=budget, reply_to=request_id,
            cache_salt=salt, n_prompt_logprobs=n_top, adapter=adapter, turns=tuple(sorted(turns)),
            n_plain=min(n_plain, len(prompt) - 1) if adapter else 0,
        )  # fmt: skip
        self.lone[request_id], tokens = lone_answer(request, self.end_probability)
        if self.speculation is not None:
            self.speculation.answers[request_id] = tokens
        if n_top is not None:  # another engine has told the beginning
            *answer, scored = self.lone[request_id]
            assert [p.token_id for p in scored] == list(prompt), "each token is told once"
            n_scored = min(n_scored, len(prompt))
            request = self.requests[request_id] = replace(request, n_scored=n_scored)
            self.lone[request_id] = (*answer, scored[n_scored:])
        self.sequences[request_id] = self.engine.submit(request)
        self.backend.seeds[self.engine.samplers.of(request_id)] = seed_of(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        self.engine.cancel(request_id)
        self.cancelled.add(request_id)

    @rule(n=st.integers(1, 8))
    def ticks(self, n):
        for _ in range(n):
            self.tick()

    def tick(self):
        decoding = Counter(s.adapter for s in self.engine.slots.running if s.decoding)
        try:
            stats = self.engine.tick()
        except BackendError as error:
            self.engine.fail_all(error)
            return
        if stats is None:
            return
        assert stats.n_tokens <= self.limits.token_budget
        assert stats.n_cells_used <= stats.n_cells
        assert stats.n_idle + stats.n_prefilling + stats.n_generating == self.limits.n_slots
        self.spans_follow(stats)
        if not stats.n_preempted and not stats.n_finished:
            assert stats.n_decode == decoding[self.backend.used], "no stream of the adapter is skipped"

    def spans_follow(self, stats):
        """Each slot's spans join without a gap, or start where it was cut or copied to."""
        rows = stats.spans
        assert [row[0] for row in rows] == sorted({row[0] for row in rows})
        assert (
            sum(length for _, _, length, kind in rows if kind == DECODE) == stats.n_decode + stats.n_drafted
        )
        assert sum(length for _, _, length, kind in rows if kind == PREFILL) == stats.n_prefill
        for slot_id, start, length, _ in rows:
            assert start <= self.backend.reached.get(slot_id, 0)
            self.backend.reached[slot_id] = start + length

    @rule(trouble=st.sampled_from(sorted(TROUBLES)), odds=st.integers(0, 3))
    def get_into_trouble(self, trouble, odds):
        if odds == 0:
            self.backend.trouble, self.troubled = trouble, True

    @rule(fail=st.sampled_from([False, False, True]))
    def moving_cells_fails_from_now_on(self, fail):
        self.backend.moves_fail = fail

    @rule(n=st.integers(1, 9), fail=st.sampled_from([False, False, True]), hear=st.booleans())
    def the_disk_goes_on(self, n, fail, hear):
        if self.disk is not None:
            self.the_disk_works(n, fail=fail, hear=hear)

    @rule(seconds=st.sampled_from([0.5, 4.0]))
    def let_time_pass(self, seconds):
        self.clock.advance(seconds)

    @invariant()
    def books_balance(self):
        self.engine.scheduler.check()
        for request_id in self.requests:
            assert len(self.events.ends(request_id)) <= 1
        held, slots = [len(chain) for chain in self.backend._hashes], self.engine.slots
        kept = [len(cells) // CELL_BYTES for cells in self.engine._host._cells.values()]
        assert sum(kept) <= self.engine.scheduler.tiers.host.n_used <= self.limits.n_host_cells
        assert len(self.engine._host._states) <= len(self.engine.scheduler.tiers.states)
        assert sum(held) == slots.n_cells_running + slots.n_cells_idle, "the cache holds what the books say"
        assert self.backend.n_used() == slots.n_used()
        assert self.backend.seq_ids == slots.seq_ids
        idle = [cells for s, cells in zip(slots.by_slot, self.backend._cells, strict=True) if s is None]
        busy = [cells for s, cells in zip(slots.by_slot, self.backend._cells, strict=True) if s is not None]
        if self.backend.shares:
            assert len(set().union(*idle) - set().union(*busy)) == slots.n_used_idle()
        assert all(held[s.slot_id] == s.n_computed for s in slots.running)

    @invariant()
    def whoever_looks_on_sees_who_holds_a_slot(self):
        by_slot = self.engine.slots.by_slot
        for request_id in self.requests:
            if not (sequence := self.sequences[request_id]).status.ended:
                slot_id = life_of(sequence).slot_id
                assert sequence not in by_slot if slot_id is None else by_slot[slot_id] is sequence

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        for _ in range(5000):
            if not self.engine.has_work and not self.waiting_for_the_disk():
                break
            self.clock.advance(0.1 * self.waiting_for_the_disk())
            self.tick()
        assert not self.engine.has_work, "every request ends"
        self.engine.scheduler.check()
        assert self.engine.slots.n_idle == self.limits.n_slots
        assert self.engine.scheduler.counts.left.n == len(self.requests), "the door counts everybody out"
        for request_id, request in self.requests.items():
            self.check_answer(request_id, request)

    def waiting_for_the_disk(self):
        due_s = self.engine.scheduler.tiers.disk.soonest()
        assert due_s is None or due_s <= self.clock.now() + WAIT_S
        return due_s is not None

    def check_answer(self, request_id, request):
        (end,) = self.events.ends(request_id)
        assert self.events.events[request_id][-1] is end, "nothing follows the end"
        text, *_, prompt = lone = self.lone[request_id]
        said = self.events.text(request_id)
        if end.error is None:
            assert told(self.events, request_id) == lone, "neither company nor drafts change an answer"
        else:
            if not self.troubled:
                assert isinstance(end.error, RequestCancelledError | DeadlineExceededError)
                assert request_id in self.cancelled or request.timeout_s is not None
            assert text.startswith(said), "what was said before the end was right"
            scored = prompt_told(self.events, end)
            assert scored == prompt[: len(scored)], "and so was what was told of the prompt"
        if request.cache_salt is None:
            assert end.stats.n_cached == 0, "who shares nothing begins with nothing"
        n_said = sum(e.n_tokens for e in self.events.events[request_id] if isinstance(e, Delta))
        assert n_said <= end.stats.n_output


EngineMachine.TestCase.settings = settings(stateful_step_count=30)
TestEngine = EngineMachine.TestCase
