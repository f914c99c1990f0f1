"""The engine over the scripted backend, case by case."""

from collections import Counter

import pytest
from answers import OnEngine

from cobali_ray.backend.scripted import CELL_BYTES, END_TOKEN, ScriptedBackend
from cobali_ray.core.plan.goodput import Speculation
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.opening import SCRIPTED, engine_on
from cobali_ray.errors import (
    BackendError,
    DeadlineExceededError,
    InternalError,
    InvalidParameterError,
)
from cobali_ray.settings import read_settings
from cobali_ray.testing import EventRecorder


class Setup(OnEngine):
    """An engine on the scripted model."""

    def __init__(
        self, *, n_slots=4, n_cells=None, n_ctx=64, chunk=8, budget=16, min_prefix=0, backend=None,
        n_host_cells=0, copies=False, speculation=None, **scripted,
    ):  # fmt: skip
        backend = backend or ScriptedBackend(
            n_slots=n_slots, n_ctx_slot=n_ctx, n_cells=n_cells, n_batch=budget, **scripted
        )
        super().__init__(
            backend, how={"speculation": speculation}, token_budget=budget, prefill_chunk=chunk,
            min_prefix=min_prefix, n_host_cells=n_host_cells, copies=copies,
        )  # fmt: skip

    def submit(self, request_id, prompt, max_tokens=5, **kwargs):
        text = prompt.encode() if isinstance(prompt, str) else prompt
        self.engine.submit(
            Request(request_id=request_id, prompt=tuple(text), max_tokens=max_tokens, **kwargs)
        )

    def end(self, request_id):
        (end,) = self.events.ends(request_id)
        assert self.events.events[request_id][-1] is end, "nothing follows the end"
        return end


def answer(prompt, **kwargs):
    """Return what the same request answers alone, computed whole."""
    alone = Setup(n_slots=1, chunk=64, budget=64)
    alone.submit("alone", prompt, **kwargs)
    alone.run()
    return alone.events.text("alone")


@pytest.fixture(params=[False, True], ids=["inline", "overlap"])
def overlaps(request):
    return request.param


def test_a_stop_string_is_never_shown(overlaps):
    text = answer("tell me", max_tokens=20)
    s = Setup(overlaps=overlaps)
    s.submit("a", "tell me", max_tokens=20, stop=(text[5:8],))
    ticks = s.run()
    cut = text.index(text[5:8])
    assert (s.end("a").finish_reason, s.end("a").stop) == ("stop", text[5:8])
    assert len(ticks) <= cut + 3 + overlaps, "at most one wasted row"
    assert s.engine.slots.n_idle == 4


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_ends_the_answer_and_shows_if_asked(overlaps, include):
    text = answer("tell me", max_tokens=20)
    end = text.index(text[7])
    s = Setup(overlaps=overlaps)
    sampling = SamplingParams(temperature=0, stop_token_ids=(ord(text[7]), 3), ignore_eos=True)
    s.submit("a", "tell me", max_tokens=20, sampling=sampling, include_stop=include)
    s.submit("b", "tell me", max_tokens=20)
    s.run()
    assert (s.events.text("a"), s.end("a").finish_reason) == (text[: end + include], "stop")
    assert s.end("a").stats.n_output == end + 1
    assert (s.events.text("b"), s.end("b").finish_reason) == (text, "length"), "the others know nothing of it"


def test_an_end_token_that_is_a_stop_token_ends_even_if_end_tokens_are_ignored(overlaps):
    s = Setup(overlaps=overlaps, end_probability=0.5)
    sampling = SamplingParams(temperature=0, ignore_eos=True, stop_token_ids=(END_TOKEN,))
    s.submit("a", "a", max_tokens=40, sampling=sampling)
    s.run()
    assert s.end("a").finish_reason == "stop"


def test_what_may_never_be_drawn_is_the_clients_fault():
    s = Setup()
    sampling = SamplingParams(temperature=0, allowed_token_ids=(END_TOKEN,), ignore_eos=True)
    s.submit("a", "a", sampling=sampling)
    s.tick()
    assert isinstance(s.end("a").error, InvalidParameterError)


@pytest.mark.parametrize("where", ["queued", "prefilling", "generating"])
def test_deadlines_hold_in_every_state(where, overlaps):
    s = Setup(overlaps=overlaps, n_slots=1, chunk=4, budget=4)
    if where == "queued":
        s.submit("first", "x" * 10, max_tokens=40)
    s.submit("late", "y" * 30, max_tokens=30, timeout_s=2.0)
    s.tick()
    for _ in range(9 if where == "generating" else 1):
        s.tick()
    assert not s.events.ends("late")
    s.clock.advance(2.0)
    s.tick()
    assert isinstance(s.end("late").error, DeadlineExceededError)
    assert (s.end("late").stats.n_output > 0) == (where == "generating")
    s.run()


def test_prefix_reuse_computes_only_the_rest(overlaps):
    s = Setup(overlaps=overlaps, min_prefix=4)
    s.submit("a", "a common beginning, one", max_tokens=3)
    s.run()
    s.submit("b", "a common beginning, two", max_tokens=3)
    ticks = s.run()
    assert s.end("b").stats.n_cached == len("a common beginning, ")
    assert ticks[0].n_prefill == len("two")
    assert s.events.text("b") == answer("a common beginning, two", max_tokens=3)


def test_idle_prefixes_make_room_before_anybody_is_preempted(overlaps):
    s = Setup(overlaps=overlaps, n_slots=2, n_ctx=40, n_cells=40, min_prefix=4)
    s.submit("a", "x" * 20, max_tokens=5)
    s.run()
    s.submit("b", "y" * 30, max_tokens=5)
    ticks = s.run()
    assert sum(t.n_preempted for t in ticks) == 0
    assert s.end("b").finish_reason == "length"


def test_a_request_that_cannot_be_sampled_for_ends_alone(overlaps):
    s = Setup(overlaps=overlaps)
    s.submit("good", "fine", max_tokens=5)
    s.engine.samplers._entropy = lambda: int("no number")
    s.submit("bad", "x", sampling=SamplingParams(temperature=1.0))
    s.run()
    assert isinstance(s.end("bad").error, InternalError)
    assert s.events.text("good") == answer("fine", max_tokens=5)
    assert s.engine.scheduler.counts.left.n == 2, "the door counts who left"


class Stuck(ScriptedBackend):
    """Cannot cut slots any more."""

    def truncate(self, slot_id, n_keep):
        raise BackendError(f"slot {slot_id} cannot be cut to {n_keep} tokens")


def test_fail_all_ends_those_too_who_were_about_to_get_a_slot(overlaps):
    s = Setup(backend=Stuck(n_slots=2, n_ctx_slot=64, n_batch=16, overlaps=overlaps), n_slots=2)
    for i in range(4):
        s.submit(f"r{i}", "prompt")
    with pytest.raises(BackendError):
        s.tick()
    s.engine.fail_all(InternalError("broken"))
    assert not s.engine.has_work
    for i in range(4):
        assert isinstance(s.end(f"r{i}").error, InternalError)


def test_nobody_begins_with_the_cells_of_a_request_that_failed_inside(overlaps):
    s = Setup(overlaps=overlaps, min_prefix=4)
    s.submit("bad", [*b"a common beginning", 999], max_tokens=5)
    s.run()
    assert isinstance(s.end("bad").error, InternalError)
    s.submit("next", "a common beginning, two", max_tokens=3)
    s.run()
    assert s.end("next").stats.n_cached == 0
    assert s.events.text("next") == answer("a common beginning, two", max_tokens=3)


PEOPLE = [f"person {i} says " * 9 for i in range(8)]


def answers_of(setup):
    return {name: setup.events.text(name) for name in setup.events.events}


def take_turns(setup):
    said = PEOPLE
    setup.ticks = []
    for turn in range(2):
        for i, text in enumerate(said):
            setup.submit(f"{turn}.{i}", text, max_tokens=5)
        setup.ticks += setup.run()
        said = [text + setup.events.text(f"{turn}.{i}") + " and?" for i, text in enumerate(said)]
    return answers_of(setup), [setup.end(f"1.{i}").stats.n_cached for i in range(len(PEOPLE))]


def test_with_more_people_than_slots_everybody_finds_what_was_said():
    setup = Setup(n_slots=2, n_ctx=256, min_prefix=8, n_host_cells=4000)
    answers, n_cached = take_turns(setup)
    alone, n_found = take_turns(Setup(n_slots=2, n_ctx=256))
    assert answers == alone, "and hears what it would have heard"
    assert n_cached == [len(text) + 4 for text in PEOPLE], "all that was computed"
    tier = setup.engine.scheduler.tiers.host
    assert [
        sum(getattr(tick, name) for tick in setup.ticks) for name in ("n_host_hits", "n_restored", "n_saved")
    ] == [8, 8 * 130, tier.n_saved]
    assert setup.ticks[-1].n_host_cells == tier.n_used > 0
    assert n_found == [0] * len(PEOPLE)


def computed(setup, n=12):
    for i in range(n):
        setup.submit(str(i), f"{i} asks something " * 8, max_tokens=80)
    ticks = setup.run()
    assert {setup.end(str(i)).finish_reason for i in range(n)} == {"length"}
    return sum(stats.n_tokens for stats in ticks), sum(stats.n_preempted for stats in ticks)


def test_a_cache_overcommitted_twofold_computes_hardly_more_than_a_whole_one():
    shape = {"n_slots": 8, "n_ctx": 256, "chunk": 64, "budget": 72}
    whole, n_preempted = computed(Setup(**shape, min_prefix=8, n_host_cells=4000))
    assert n_preempted == 0
    tight, n_preempted = computed(Setup(**shape, n_cells=8 * 128, min_prefix=8, n_host_cells=4000))
    assert n_preempted >= 3
    assert tight <= 1.05 * whole
    without, _ = computed(Setup(**shape, n_cells=8 * 128, min_prefix=8))
    assert without > 1.05 * whole, "or this shows nothing"


def test_a_prefix_that_loses_its_end_again_and_again_is_saved_once():
    setup = Setup(n_slots=2, n_ctx=1200, n_cells=1500, chunk=512, budget=600, min_prefix=8, n_host_cells=4000)
    n_saved, save = Counter(), setup.backend.save

    def watched(slot_id, spans):
        n_saved[slot_id] += 1
        return save(slot_id, spans)

    setup.backend.save = watched
    setup.submit("earlier", "x" * 1001, max_tokens=3)
    setup.run()
    setup.submit("grows", "y" * 400, max_tokens=700)
    setup.run()
    assert setup.engine.slots.held(0).n_tokens < 1001 - 512, "its end was cut more than once"
    assert n_saved == {0: 1}


@pytest.mark.parametrize(
    ("asked", "n_tokens"),
    [
        pytest.param({"host_cache_mib": 3}, 3 * 1024, id="a-number"),
        pytest.param({}, 5000, id="a-tenth-of-what-is-free"),
        pytest.param({"host_cache_mib": 0}, 0, id="none"),
        pytest.param({"min_prefix": 0}, 0, id="nothing-is-reused"),
    ],
)
def test_how_much_host_memory_is_taken(monkeypatch, asked, n_tokens):
    monkeypatch.setattr("cobali_ray.backend.memory.available_bytes", lambda: 50_000 * 1024)
    settings = read_settings({"model": SCRIPTED} | asked)
    assert engine_on(ScriptedBackend(), settings, EventRecorder()).limits.n_host_cells == n_tokens


def test_slots_are_saved_without_host_memory_too():
    settings = read_settings({"model": SCRIPTED, "host_cache_mib": 0, "slot_save_path": "somewhere"})
    limits = engine_on(ScriptedBackend(), settings, EventRecorder()).limits
    assert (limits.n_host_cells, limits.cell_bytes) == (0, CELL_BYTES)


@pytest.mark.parametrize(("cell_bytes", "free"), [(0, 10**9), (1024, None)], ids=["no-cells", "no-memory"])
def test_where_it_cannot_be_nothing_is_kept_outside(monkeypatch, cell_bytes, free):
    monkeypatch.setattr("cobali_ray.backend.memory.available_bytes", lambda: free)
    monkeypatch.setattr(ScriptedBackend, "measure_cell", lambda _self: cell_bytes)
    settings = read_settings({"model": SCRIPTED})
    assert engine_on(ScriptedBackend(), settings, EventRecorder()).limits.n_host_cells == 0


def test_who_asks_the_same_again_is_answered_in_fewer_ticks_and_nobody_else():
    setup = Setup(n_ctx=256, chunk=64, budget=64, min_prefix=8, copies=True, speculation=Speculation())

    def ask(request_id, salt):
        setup.submit(request_id, "what is a tick, and who takes part?", 120, cache_salt=salt, sampling=drawn)
        n_ticks = sum(setup.tick() is not None for _ in iter(lambda: setup.engine.has_work, False))
        return setup.events.text(request_id), n_ticks

    drawn = SamplingParams(temperature=1.0, seed=3, ignore_eos=True)
    answer, n_ticks = ask("first", "a")
    again, n_again = ask("again", "a")
    other, n_other = ask("other", "b")
    assert answer == again == other
    assert n_again < n_ticks / 3
    assert n_other > 0.9 * n_ticks
