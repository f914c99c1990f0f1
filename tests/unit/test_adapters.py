"""Adapters in the core and the engine: whose turn it is, what they say, and how long others wait."""

from itertools import pairwise
from math import inf
from types import SimpleNamespace

import pytest
from answers import OnEngine
from hypothesis import given
from hypothesis import strategies as st

from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.core.cost.ticktime import TickShape
from cobali_ray.core.plan.adapters import RUN, Adapter, AdapterTurns
from cobali_ray.core.plan.pace import MIN_CHUNK, Pacer
from cobali_ray.core.request.request import Request
from cobali_ray.engine.loop import EngineLoop
from cobali_ray.errors import AdapterGoneError, BackendError
from cobali_ray.testing import FakeClock


def member(adapter, *, decoding=True, n_computed=10):
    return SimpleNamespace(adapter=adapter, decoding=decoding, n_computed=n_computed)


class Times:
    """Ticks of one length, and a target."""

    def __init__(self, tick_s=0.001, target_s=0.1):
        self.tick_s, self.target_s = tick_s, target_s

    def decode_s(self, n_decode, _context):
        return self.tick_s * (n_decode > 0)

    def round_s(self, _decode_s):
        return self.target_s


def take_turns(members, times, n, turns=None):
    """Return who had each of the next `n` passes, which take as long as `times` says."""
    turns, now_s, had = turns or AdapterTurns(), 0.0, []
    for _ in range(n):
        adapter, _ = turns.next(members, now_s, times)
        turns.begin(adapter, now_s)
        had.append(adapter)
        now_s += times.tick_s
    return "".join(had)


def test_one_adapter_has_every_turn_and_all_the_time():
    assert AdapterTurns().next([member("a"), member("a")], 5.0, Times()) == ("a", inf)


def test_a_run_is_as_long_as_is_worth_a_change():
    had = take_turns([member("a"), member("b"), member("a")], Times(), 3 * RUN)
    assert had == "a" * RUN + "b" * RUN + "a" * RUN


@pytest.mark.parametrize(
    ("adapters", "tick_s", "target_s", "had"),
    [
        pytest.param("ab", 0.010, 0.030, "aabbaabb", id="two-ticks-of-another-and-ones-own-fit"),
        pytest.param("ab", 0.010, 0.029, "abababab", id="less-than-two"),
        pytest.param("ab", 0.010, 0.001, "abababab", id="not-even-one"),
        pytest.param("abc", 0.010, 0.050, "aabbccaa", id="two-others-share-what-one-may-wait"),
        pytest.param("abc", 0.010, 0.040, "abcabcab", id="three-fit-no-second"),
    ],
)
def test_a_run_ends_when_those_who_wait_would_have_their_token_too_late(adapters, tick_s, target_s, had):
    assert take_turns([member(one) for one in adapters], Times(tick_s, target_s + 1e-9), 8) == had


def test_whoever_waits_longest_is_next():
    turns = AdapterTurns()
    assert (
        take_turns([member("a"), member("b"), member("c")], Times(), 2 * RUN, turns) == "a" * RUN + "b" * RUN
    )
    # c was next; d comes, a and b leave and a comes again.
    assert take_turns([member("d"), member("a"), member("c")], Times(), 1, turns) == "c"


def test_a_run_that_its_own_left_is_over():
    turns = AdapterTurns()
    take_turns([member("a"), member("b")], Times(), 1, turns)
    assert take_turns([member("b"), member("c")], Times(), RUN + 1, turns) == "b" * RUN + "c"


def test_a_pass_may_take_what_streams_that_wait_leave_it():
    turns, times = AdapterTurns(), Times(0.010, 0.1)
    members = [member("a", decoding=False), member("b")]
    assert turns.next(members, 0.0, times) == ("a", pytest.approx(0.09))
    turns.begin("a", 0.0)
    assert turns.next(members, 0.03, times) == ("a", pytest.approx(0.06))


def test_prompts_that_wait_bind_no_pass():
    members = [member("a", decoding=False), member("b", decoding=False)]
    assert AdapterTurns().next(members, 0.0, Times()) == ("a", inf)


@given(
    crowds=st.lists(st.sets(st.sampled_from("abcde"), min_size=1), min_size=1, max_size=60),
    tick_s=st.sampled_from([0.0, 0.001, 0.02]),
    target_s=st.sampled_from([0.01, 0.05, 10.0]),
)
def test_nobody_waits_for_ever_and_only_those_who_are_there_have_a_turn(crowds, tick_s, target_s):
    """Whoever comes and goes, an adapter that is there has a turn after a run of each other one."""
    turns, times, waited, now_s = AdapterTurns(), Times(tick_s, target_s), {}, 0.0
    for crowd in crowds:
        for _ in range(3):
            members = [member(one) for one in sorted(crowd)]
            adapter, within_s = turns.next(members, now_s, times)
            assert adapter in crowd
            assert within_s >= 0
            turns.begin(adapter, now_s)
            waited = {one: waited.get(one, 0) + 1 for one in crowd}
            waited[adapter] = 0
            assert max(waited.values()) <= RUN * 4
            now_s += tick_s


@pytest.mark.parametrize(
    ("target_s", "decode_s", "round_s"),
    [
        pytest.param(0.05, 0.2, 0.05, id="what-was-asked-for"),
        pytest.param("auto", 0.02, 0.06, id="three-rounds"),
        pytest.param("auto", 0.001, 0.03, id="at-least-30-ms"),
        pytest.param(None, 0.001, 0.03, id="no-target-is-no-reason-to-wait-for-ever"),
    ],
)
def test_how_long_streams_wait_for_their_turn(target_s, decode_s, round_s):
    assert Pacer(target_s).round_s(decode_s) == pytest.approx(round_s)


def test_what_is_not_known_takes_no_time():
    pacer = Pacer("auto")
    assert pacer.decode_s(4, 100) == 0.0
    for n in range(20):
        pacer.model.learn(TickShape(1 + n % 8, 100, ()), 0.01)
    assert pacer.decode_s(4, 100) == pytest.approx(0.01, rel=0.2)


ADAPTERS = (Adapter("one", "1", "one.gguf", 1.0), Adapter("two", "2", "two.gguf", 1.0))


class Passes(ScriptedBackend):
    """Takes a millisecond a pass and another one a token, and notes who was in which pass."""

    def __init__(self, clock, **scripted):
        super().__init__(adapters=ADAPTERS, **scripted)
        self.clock, self.passes = clock, []

    def use(self, adapter):
        super().use(adapter)
        self.used = adapter

    def forward(self, batch):
        super().forward(batch)
        self.passes.append((self.used, batch.n_tokens))
        self.clock.advance(0.001 * (1 + batch.n_tokens))


class Setup(OnEngine):
    """An engine on such a backend."""

    def __init__(self, target_s="auto", n_slots=4):
        backend = Passes(clock := FakeClock(), n_slots=n_slots, n_ctx_slot=1024, n_batch=516)
        super().__init__(
            backend, clock=clock, how={"pacer": Pacer(target_s)}, token_budget=516, prefill_chunk=512,
            min_prefix=32, prefill_order="shortest", copies=True, n_host_cells=4096,
            cell_bytes=1024,
        )  # fmt: skip

    def submit(self, name, adapter="", prompt=b"once upon a time", max_tokens=8, **fields):
        self.engine.submit(
            Request(request_id=name, prompt=tuple(prompt), max_tokens=max_tokens, adapter=adapter, **fields)
        )


def test_a_prompt_begins_with_nothing_that_was_computed_under_another_adapter():
    setup = Setup()
    prompt = b"the same beginning of a long prompt for everybody, whatever its adapter is, " * 3
    cached = {}
    for name, adapter in [("a", ""), ("b", "1"), ("c", "2"), ("d", "1"), ("e", "")]:
        setup.submit(name, adapter, prompt)
        setup.run()
        cached[name] = setup.cached(name)
    assert [cached[name] for name in "abc"] == [0, 0, 0]
    assert min(cached["d"], cached["e"]) > 100


@pytest.mark.parametrize(("target_s", "most_s"), [(0.05, 0.05), ("auto", 0.03)])
def test_streams_of_other_adapters_wait_no_longer_than_the_target(target_s, most_s):
    setup = Setup(target_s)
    setup.submit("b", "2", max_tokens=400)
    for i in range(8):  # the pacer learns what streams and prompts take
        for _ in range(8):
            setup.engine.tick()
        setup.submit(f"warm{i}", "2", bytes([97 + i]) * 7 * (i + 1), max_tokens=1)
    gaps = []
    setup.submit("a", "1", bytes(range(97, 122)) * 36, max_tokens=2)
    while not setup.events.ends("a"):
        setup.engine.tick()
        gaps += setup.engine.scheduler.counts.gaps
    chunks = [n for adapter, n in setup.backend.passes if adapter == "1"]
    assert len(chunks) > 10
    assert max(chunks) > 5 * MIN_CHUNK, "it is not starved for that"
    assert chunks.count(MIN_CHUNK) < len(chunks) / 10, "nor fed in crumbs"
    assert sorted(gaps)[-3] <= most_s, "but for the first, which teach what prompts take alone"


def test_prompts_of_all_adapters_go_on():
    setup = Setup(n_slots=8)
    for i, adapter in enumerate(["1", "2", "", "1", "2", "", "1", "2"]):
        setup.submit(f"r{i}", adapter, bytes([97 + i]) * 900, max_tokens=40)
    setup.run()
    assert all(setup.events.ends(f"r{i}")[0].stats.n_output == 40 for i in range(8))
    used = [adapter for adapter, _ in setup.backend.passes]
    assert setup.engine.scheduler.counts.n_adapter_changes == sum(a != b for a, b in pairwise(["", *used]))


def test_what_comes_before_an_adapter_is_computed_without_it_where_it_could_not_be_restored(monkeypatch):
    prompt = bytes(range(32, 127)) * 3
    alone, setup = Setup(n_slots=1), Setup(n_slots=1)
    setup.submit("plain", "", prompt)
    setup.run()
    setup.submit("other", "", prompt[::-1])
    setup.run()

    def failing(*_):
        raise BackendError("no memory")

    monkeypatch.setattr(setup.backend, "restore", failing)
    for one in (alone, setup):
        one.submit("a", "1", prompt, n_plain=192)
        one.run()
    assert setup.engine.scheduler.tiers.host.n_hits == 1, "it was tried"
    assert setup.events.text("a") == alone.events.text("a")


def test_who_asks_for_an_adapter_that_is_not_there_ends_alone():
    setup = Setup()
    setup.submit("a", "1")
    setup.submit("gone", "9")
    setup.run()
    assert setup.events.ends("a")[0].finish_reason == "length"
    (end,) = setup.events.ends("gone")
    assert isinstance(end.error, AdapterGoneError)


def test_the_door_refuses_what_is_to_go_on_under_an_adapter_that_is_not_there():
    setup = Setup()
    loop = EngineLoop(lambda _: (setup.engine, None), setup.clock, setup.events)
    loop._engine = setup.engine
    asked = Request(request_id="r", prompt=(97, 98), max_tokens=5, adapter="9", sent_tokens=(99,), attempt=1)
    with pytest.raises(AdapterGoneError):
        loop._check_door(asked)
