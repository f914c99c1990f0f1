"""Models that only go back to saved states: whatever conversations do, each answer is the one given alone.

The scripted backend shows a state that is put where it does not belong: what follows is another answer. Salts
begin their chains elsewhere, so that a state of somebody else's shows too.
"""

import zlib
from collections import Counter
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.backend.scripted import CELL_BYTES, ScriptedBackend
from cobali_ray.core.cache.states import cuts_of
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.block_files import BlockFiles
from cobali_ray.engine.disk import Disk
from cobali_ray.engine.engine import Engine
from cobali_ray.errors import BackendError
from cobali_ray.testing import EventRecorder, FakeClock

N_CTX, BLOCK = 96, 4
SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True)


class Watched(ScriptedBackend):
    """Counts what is asked of it; moving fails when it is told to."""

    def __init__(self, **scripted):
        super().__init__(**scripted)
        self.calls, self.seeds, self.moves_fail = Counter(), {}, False

    def expect(self, slot_id, row):
        super().expect(slot_id, row)
        self._seeds[slot_id] = self.seeds[row]

    def save_state(self, slot_id, n_tokens):
        self.calls["save_state"] += 1
        if self.moves_fail:
            raise BackendError("no memory")
        return super().save_state(slot_id, n_tokens)

    def restore_state(self, slot_id, state, n_keep):
        self.calls["restore_state"] += 1
        if self.moves_fail:
            raise BackendError("no state")
        super().restore_state(slot_id, state, n_keep)

    def copy(self, donor_id, slot_id, n_keep):
        self.calls["copy"] += 1
        super().copy(donor_id, slot_id, n_keep)

    def restore(self, slot_id, cells, n_keep, state=None):
        self.calls["restore"] += 1
        if self.moves_fail:
            raise BackendError("no cells")
        super().restore(slot_id, cells, n_keep, state)


class Served:
    """An engine of a model with states, and what it was asked."""

    def __init__(
        self,
        *,
        n_slots=2,
        n_cells=None,
        chunk=16,
        n_states=50,
        n_host_cells=0,
        alone=False,
        folder=None,
        **more,
    ):
        n_cells = n_cells or n_slots * N_CTX
        budget = max(chunk, n_slots)
        self.backend = Watched(
            n_slots=n_slots, n_ctx_slot=N_CTX, n_cells=n_cells, n_batch=budget,
            keeps_states=True, states_alone=alone, **more,
        )  # fmt: skip
        self.limits = EngineLimits(
            n_slots=n_slots, n_ctx_slot=N_CTX, n_cells=n_cells, token_budget=budget, prefill_chunk=chunk,
            prefill_order="shortest", min_prefix=2, n_host_cells=n_host_cells, host_block=BLOCK,
            copies=True, shares=self.backend.shares, dense=True, state_bytes=self.backend.measure_state(),
            n_states=n_states, state_step=2, states_alone=alone, cell_bytes=0 if alone else CELL_BYTES,
        )  # fmt: skip
        self.events, self.clock = EventRecorder(), (clock := FakeClock(step_s=0.001))
        disk = None if folder is None else Disk(lambda: files_in(folder, self.limits), clock, block=BLOCK)
        self.engine = Engine(
            self.backend, self.limits, clock, self.events, entropy=lambda: 0, check_every=1, disk=disk
        )
        self.sequences = {}

    def submit(self, prompt, *, max_tokens=6, salt="", turns=(), **fields):
        request_id = f"r{len(self.sequences)}"
        request = Request(
            request_id=request_id, prompt=tuple(prompt), max_tokens=max_tokens, sampling=SAMPLING,
            cache_salt=salt, turns=tuple(turns), **fields,
        )  # fmt: skip
        sequence = self.sequences[request_id] = self.engine.submit(request)
        self.backend.seeds[self.engine.samplers.of(request_id)] = seed_of(salt)
        return sequence

    def run(self, n_ticks=None):
        while self.engine.has_work and n_ticks != 0:
            self.engine.tick()
            n_ticks = None if n_ticks is None else n_ticks - 1

    def ask(self, prompt, **fields):
        sequence = self.submit(prompt, **fields)
        self.run()
        return list(sequence.tokens), sequence.n_prompt - sequence.n_cached


def files_in(folder, limits):
    return BlockFiles(
        folder, "0" * 32, cell_bytes=limits.cell_bytes, block=BLOCK, most_bytes=1 << 20, now_ns=lambda: 10**18
    )


def seed_of(salt):
    return zlib.crc32(repr(salt).encode())


def answer_alone(prompt, salt, max_tokens):
    """Return all tokens of a request that is computed whole in an empty slot."""
    backend = ScriptedBackend(n_slots=1, n_ctx_slot=N_CTX, n_batch=N_CTX)
    backend._seeds[0] = seed_of(salt)
    limits = EngineLimits(
        n_slots=1, n_ctx_slot=N_CTX, n_cells=N_CTX, token_budget=N_CTX, prefill_chunk=N_CTX, min_prefix=0
    )
    engine = Engine(backend, limits, FakeClock(), EventRecorder(), entropy=lambda: 0)
    request = Request(request_id="r", prompt=tuple(prompt), max_tokens=max_tokens, sampling=SAMPLING)
    tokens = engine.submit(request).tokens
    while engine.has_work:
        engine.tick()
    return list(tokens)


turn = st.tuples(
    st.integers(0, 5),  # which text goes on
    st.sampled_from([0.0, 0.3, 0.6, 1.0, 1.0, 1.0]),  # how much of it
    st.integers(1, 14),  # what comes behind it
    st.integers(0, 9),  # how much is answered
    st.sampled_from(["", "", "", "other", None]),
    st.sampled_from([None, None, 0, 1, 3, 7]),  # ticks until the next one comes
    st.sampled_from([False, False, False, False, True]),  # whether moving fails from then on
)


@given(
    turns=st.lists(turn, min_size=3, max_size=9),
    n_slots=st.integers(1, 3),
    scarce=st.booleans(),
    chunk=st.sampled_from([5, 16, 1]),
    n_states=st.sampled_from([50, 3, 1, 0]),
    n_host_cells=st.sampled_from([0, 300, 20]),
    kind=st.sampled_from(["split", "shared", "alone"]),
    overlaps=st.booleans(),
    restarts=st.booleans(),
)
def test_whatever_conversations_do_each_answer_is_the_one_given_alone(
    turns, n_slots, scarce, chunk, n_states, n_host_cells, kind, overlaps, restarts, tmp_path_factory
):
    asked, folder = [], tmp_path_factory.mktemp("disk") if restarts else None
    serve = partial(
        Served, n_slots=n_slots, n_cells=N_CTX if scarce else None, chunk=chunk, n_states=n_states,
        n_host_cells=0 if kind == "alone" else n_host_cells, alone=kind == "alone",
        shares=kind == "shared", overlaps=overlaps, folder=folder,
    )  # fmt: skip
    served = serve()
    for number, (which, share, n_new, n_answer, salt, n_ticks, fails) in enumerate(turns):
        earlier = list(served.sequences.values())
        text = list(earlier[which % len(earlier)].tokens) if earlier else list(range(40, 60))
        prompt = [*text[: int(share * len(text))], *[97 + (number + i) % 26 for i in range(n_new)]]
        prompt = prompt[-(N_CTX - 10) :]
        marks = sorted({len(prompt) - n_new, len(text) // 2} & set(range(1, len(prompt))))
        asked.append((prompt, salt, n_answer))
        served.submit(prompt, salt=salt, max_tokens=n_answer, turns=marks)
        served.backend.moves_fail = fails
        served.run(n_ticks)
    served.run()
    answers = [answer_alone(*one) for one in asked]
    assert [list(sequence.tokens) for sequence in served.sequences.values()] == answers
    tiers = served.engine.scheduler.tiers
    assert set(served.engine._host._states) == set(tiers.states._by_id)
    assert set(served.engine._host._cells) == set(tiers.host._blocks)
    assert len(tiers.states) <= n_states
    if restarts:
        served.engine.flush()
        again = serve()
        assert [again.ask(prompt, salt=salt, max_tokens=n)[0] for prompt, salt, n in asked] == answers


SYSTEM = [*range(32, 52)]


@pytest.mark.parametrize("kind", ["split", "shared", "alone"])
def test_a_conversation_computes_what_is_new_of_each_turn(kind):
    """Regenerated, edited and forked messages too: each less than a turn."""
    served = Served(alone=kind == "alone", shares=kind == "shared")
    text, marks, told = SYSTEM, [], []
    for number in range(4):
        marks = [*marks, len(text)]
        question = [97 + number, *range(60, 67)]
        prompt = [*text, *question, 33, 34]  # the template opens the answer
        told.append((prompt, [*marks, len(prompt) - 2]))
        text, n_computed = served.ask(prompt, turns=told[-1][1])
        if number:
            assert n_computed <= len(question) + 3
    assert served.backend.calls["restore_state"] == 0, "each goes on where the slot stands"
    prompt, marks = told[-1]
    _, n_again = served.ask(prompt, turns=marks)
    edited = [*prompt[: marks[-2]], *range(80, 88), 33, 34]
    _, n_edited = served.ask(edited, turns=[*marks[:-1], len(edited) - 2])
    earlier, marks = told[1]
    forked = [*earlier[: marks[-2]], *range(90, 98), 33, 34]
    _, n_forked = served.ask(forked, turns=[*marks[:-1], len(forked) - 2])
    assert (n_again <= 2, n_edited <= 11, n_forked <= 11) == (True, True, True), (n_again, n_edited, n_forked)
    assert served.backend.calls["restore_state"] >= 2
    other, n_other = served.ask([*SYSTEM, *range(100, 110), 33, 34], turns=[len(SYSTEM), 30])
    assert n_other <= 12, "the instructions are everybody's"
    assert other == answer_alone([*SYSTEM, *range(100, 110), 33, 34], "", 6)


def test_where_two_prompts_part_is_learnt_at_the_second_and_used_by_the_third():
    served = Served(n_slots=1)
    shared = list(range(40, 64))
    for n_expected, tail in (
        (30, [1, 2, 3, 4, 5, 6]),
        (30, [7, 8, 9, 10, 11, 12]),
        (6, [13, 14, 15, 16, 17, 18]),
    ):
        _, n_computed = served.ask([*shared, *tail])
        assert n_computed == n_expected


def test_a_preempted_stream_goes_on_from_its_state():
    served = Served(n_slots=1, n_host_cells=300)
    slow = served.submit(list(range(40, 70)), max_tokens=20, priority=5)
    served.run(9)
    n_forwards = served.backend.n_forwards
    served.submit(list(range(100, 120)), max_tokens=1, priority=-5)
    served.run()
    assert slow.n_preempted == 1
    assert served.backend.calls["restore"] == 1
    assert list(slow.tokens) == answer_alone(range(40, 70), "", 20)
    n_more = served.backend.n_forwards - n_forwards
    assert n_more <= 20 + 3, "nothing of it is computed again"


ENDS = {
    "is stopped": lambda served: served.engine.flush(),
    "is killed": lambda served: served.ask(range(120, 160), max_tokens=1),  # once its slot was lost to others
}


def serving(kind, folder, *, n_slots):
    """Return what opens an engine on a folder: of a split or a shared cache, or of states alone."""
    alone = kind == "alone"
    return partial(
        Served, n_slots=n_slots, folder=folder, alone=alone, shares=kind == "shared",
        n_host_cells=0 if alone else 300,
    )  # fmt: skip


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize("kind", ["split", "shared", "alone"])
def test_a_conversation_goes_on_when_the_engine(kind, end, tmp_path):
    serve = serving(kind, tmp_path, n_slots=1)
    first = serve()
    prompt, marks = [*SYSTEM, 97, *range(60, 67), 33, 34], [len(SYSTEM)]
    text, _ = first.ask(prompt, turns=marks)
    end(first)
    for turn, n_most in (
        ([*text, 98, 60, 61], 6),  # goes on
        (prompt, 2),  # is answered again
        ([*SYSTEM, 99, 60, 61], 6),  # another conversation with the same instructions
    ):
        second = serve()
        answer, n_computed = second.ask(turn, turns=marks)
        assert answer == answer_alone(turn, "", 6)
        assert (n_computed <= n_most, second.sequences["r0"].cached_from) == (True, "disk")
        _, n_computed = serve().ask(turn, salt="other", turns=marks)
        assert n_computed == len(turn), "nothing of another tenant's"


@pytest.mark.parametrize("where", ["host", "disk"])
def test_each_of_two_states_in_one_block_is_begun_from(where, tmp_path):
    serve = serving("split", tmp_path, n_slots=1)
    first = second = serve()
    instructions = [*SYSTEM, 52]
    first.ask([*instructions, 97, 98, 33, 34], turns=[len(instructions)])  # the next state is 2 tokens later
    first.ask(range(120, 160), max_tokens=1)
    if where == "disk":
        second = serve()
    other = [*instructions, 99, 60, 61, 62]
    answer, n_computed = second.ask(other, turns=[len(instructions)])
    assert (answer, n_computed) == (answer_alone(other, "", 6), 4)


@pytest.mark.parametrize("kind", ["split", "shared", "alone"])
def test_a_conversation_goes_on_when_an_idle_engine_is_killed_and_only_its_newest_states_are_written(
    kind, tmp_path
):
    serve = serving(kind, tmp_path, n_slots=2)
    first = serve()
    prompt, marks = [*SYSTEM, 97, *range(60, 67), 33, 34], [len(SYSTEM)]
    text, _ = first.ask(prompt, turns=marks)
    for _ in range(3):
        first.clock.advance(0.3)
        first.engine.tick()
    states = [path for path in tmp_path.glob("*/*.kv") if len(path.stem) > 40]
    assert len(states) == 2, "that before the answer and that behind it, and not that of the instructions"
    for turn, n_most in (([*text, 98, 60, 61], 6), (prompt, 2)):
        second = serve()
        answer, n_computed = second.ask(turn, turns=marks)
        assert answer == answer_alone(turn, "", 6)
        assert (n_computed <= n_most, second.sequences["r0"].cached_from) == (True, "disk")


def test_a_prompt_waits_for_the_beginning_that_another_computes_and_copies_it():
    served = Served(n_slots=2, chunk=4)
    long = list(range(32, 80))
    first = served.submit([*long, 1, 2, 3], turns=[48])
    served.run(1)
    second = served.submit([*long, 4, 5, 6], turns=[48])
    served.run()
    assert first.n_cached == 0
    assert second.n_cached > 48 - 16, "fewer tokens are not waited for"
    assert list(second.tokens) == answer_alone([*long, 4, 5, 6], "", 6)


@given(
    start=st.integers(0, 50),
    length=st.integers(0, 400),
    turns=st.lists(st.integers(0, 400), max_size=6),
    fork=st.integers(0, 400),
    least=st.integers(1, 20),
    step=st.integers(40, 200),
)
def test_places_for_states_are_likely_ones_and_not_too_close(start, length, turns, fork, least, step):
    end = start + length
    cuts = cuts_of(start=start, end=end, turns=turns, fork=fork, least=least, step=step)
    assert all(b - a >= least for a, b in zip((start, *cuts), cuts, strict=False))
    assert all(start < n <= end for n in cuts)
    assert all(n in turns or n in {fork, end} or n % step == 0 for n in cuts)
    inside = sorted(set(turns) & set(range(start + 1, end + 1)))
    for n in {*inside[:1], *inside[-1:], fork} & set(range(start + 1, end + 1)):
        assert n - max([c for c in (start, *cuts) if c <= n]) < least, "less than a step is lost"
    gaps = [b - a for a, b in zip((start, *cuts), (*cuts, end), strict=True)]
    assert max(gaps) <= 2 * step + 8 * least
