"""EngineLoop in its real thread, over the scripted backend. The test and the thread meet at gates."""

import queue
import threading

import pytest

from cobali_ray.backend.scripted import ScriptedBackend, ScriptedEmbedder
from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.core.request.events import End
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request
from cobali_ray.core.views.stats import EngineStatus
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.loop import EngineLoop
from cobali_ray.errors import (
    DrainingError,
    EngineDiedError,
    InternalError,
    InvalidParameterError,
    LoadingError,
    PromptTooLongError,
    QueueFullError,
    RequestCancelledError,
    TextTooLongError,
    UnloadedError,
    WrongTaskError,
)
from cobali_ray.testing import FakeClock

WAIT_S = 60


class GatedBackend(ScriptedBackend):
    """Says when a forward pass begins, computes it when told to, and breaks when told to."""

    def __init__(self, **scripted):
        super().__init__(**scripted)
        self.begun, self.may_go = threading.Semaphore(0), threading.Semaphore(0)
        self.gated, self.n_breaks, self.breaks_clear, self.closed = False, 0, False, False

    def forward(self, batch):
        self.begun.release()
        if self.gated:
            assert self.may_go.acquire(timeout=WAIT_S)
        if self.n_breaks:
            self.n_breaks -= 1
            raise RuntimeError("the model is on fire")
        super().forward(batch)

    def clear(self):
        if self.breaks_clear:
            raise RuntimeError("the cache is on fire")
        super().clear()

    def close(self):
        self.closed = True


class Onlooker:
    """Remembers what it saw; `idle` is released whenever the loop goes to sleep."""

    def __init__(self):
        self.ends, self.refusals, self.n_ticks, self.idle = [], [], 0, threading.Semaphore(0)
        self.entered = []

    def on_submit(self, sequence):
        self.entered.append(sequence.request_id)

    def on_embed(self, request):
        self.entered.append(request.request_id)

    def on_tick(self, stats):
        self.n_ticks += 1

    def on_end(self, end):
        self.ends.append(end)

    def on_refusal(self, reason):
        self.refusals.append(reason)

    def on_idle(self, n_cells, **waiting):
        self.idle.release()


class Setup:
    """A loop with everything around it; `events` is all its sink ever got."""

    def __init__(self, *, n_slots=2, n_cells=None, onlooker=None, embedder=None, **limits):
        self.backend = GatedBackend(n_slots=n_slots, n_ctx_slot=64, n_batch=32, embedder=embedder)
        self.limits = EngineLimits(
            n_slots=n_slots, n_ctx_slot=64, n_cells=n_cells or 64 * n_slots, token_budget=32,
            prefill_chunk=32, min_prefix=0, **limits,
        )  # fmt: skip
        self.clock, self.seen = FakeClock(), onlooker or Onlooker()
        self.inbox, self.events = queue.SimpleQueue(), []
        self.may_build = threading.Event()
        self.may_build.set()
        self.loop = EngineLoop(self.build, self.clock, self.sink, stall_timeout_s=60)

    def build(self, sink):
        assert self.may_build.wait(WAIT_S)
        return Engine(self.backend, self.limits, self.clock, sink, entropy=lambda: 1), self.seen

    def sink(self, batch):
        for _, event in batch:
            self.inbox.put(event)

    def open(self):
        self.loop.start()
        self.loop.wait_open()
        return self

    def submit(self, *request_ids, max_tokens=3, **kwargs):
        for request_id in request_ids:
            self.loop.submit(
                Request(request_id=request_id, prompt=(1, 2, 3), max_tokens=max_tokens, **kwargs)
            )

    def submit_into_a_tick(self, *request_ids, **kwargs):
        """Submit, and come back when the thread stands in a forward pass."""
        self.backend.gated = True
        self.submit(*request_ids, **kwargs)
        assert self.backend.begun.acquire(timeout=WAIT_S)

    def let_go(self):
        self.backend.gated = False
        self.backend.may_go.release()

    def end(self, request_id):
        while not (ends := [e for e in self.events if isinstance(e, End) and e.request_id == request_id]):
            self.events.append(self.inbox.get(timeout=WAIT_S))
        return ends[0]

    def finish(self):
        """Stop, and return how often each request ended."""
        self.loop.stop(timeout_s=WAIT_S)
        while not self.inbox.empty():
            self.events.append(self.inbox.get())
        ends = [event.request_id for event in self.events if isinstance(event, End)]
        return {request_id: ends.count(request_id) for request_id in ends}


@pytest.fixture
def make():
    made = []

    def make(**kwargs):
        made.append(Setup(**kwargs))
        return made[-1]

    yield make
    for setup in made:
        setup.let_go()
        setup.may_build.set()
        if setup.loop._thread.ident is not None:
            setup.loop.stop(timeout_s=WAIT_S)
        assert not setup.loop._thread.is_alive()


def test_requests_run_to_their_end(make):
    s = make().open()
    s.submit("a", "b", "c")
    assert [s.end(name).finish_reason for name in "abc"] == ["length"] * 3
    assert s.finish() == {"a": 1, "b": 1, "c": 1}
    assert sorted(end.request_id for end in s.seen.ends) == ["a", "b", "c"]
    assert s.seen.entered == ["a", "b", "c"]
    assert s.seen.n_ticks >= 3
    assert s.backend.closed


@pytest.mark.parametrize(("n_cells", "n_output"), [(None, 61), (7, 4)], ids=["slot", "fewer-cells"])
def test_an_answer_ends_where_its_slot_does(make, n_cells, n_output):
    s = make(n_cells=n_cells).open()
    s.submit("a", max_tokens=1000)
    assert (s.end("a").finish_reason, s.end("a").stats.n_output) == ("length", n_output)
    assert s.finish() == {"a": 1}


def test_cancel_ends_a_running_and_a_waiting_request(make):
    s = make(n_slots=1).open()
    s.submit_into_a_tick("running", max_tokens=50)
    s.submit("waiting")
    s.loop.cancel("waiting")
    s.loop.cancel("running")
    s.loop.cancel("nobody")
    s.let_go()
    assert isinstance(s.end("running").error, RequestCancelledError)
    assert isinstance(s.end("waiting").error, RequestCancelledError)
    assert s.end("running").stats.n_output <= 1, "within one tick"
    assert s.finish() == {"running": 1, "waiting": 1}


def test_free_slots_that_cells_cannot_fill_make_no_room_in_the_queue(make):
    s = make(n_slots=4, n_cells=7, max_queue=0).open()
    s.submit_into_a_tick("running", max_tokens=4)
    s.submit("waiting")
    s.backend.may_go.release()
    assert s.backend.begun.acquire(timeout=WAIT_S), "the next tick found no cells for the second"
    with pytest.raises(QueueFullError):
        s.submit("late")
    s.let_go()
    assert s.finish() == {"running": 1, "waiting": 1}


def test_drain_refuses_the_new_and_finishes_the_running(make):
    s = make(n_slots=1).open()
    s.submit_into_a_tick("running")
    s.submit("waiting")
    s.loop.drain()
    assert s.loop.state().status is EngineStatus.DRAINING
    with pytest.raises(DrainingError):
        s.submit("late")
    s.let_go()
    assert s.end("running").finish_reason == s.end("waiting").finish_reason == "length"
    assert s.finish() == {"running": 1, "waiting": 1}
    assert s.seen.refusals == ["draining"]


def test_stop_ends_whatever_is_open(make):
    s = make(n_slots=1).open()
    s.submit_into_a_tick("running", max_tokens=50)
    s.submit("waiting")
    s.loop.stop(timeout_s=0)
    s.let_go()
    assert s.finish() == {"running": 1, "waiting": 1}
    assert all(isinstance(s.end(name).error, EngineDiedError) for name in ("running", "waiting"))
    with pytest.raises(DrainingError):
        s.submit("late")


def test_what_is_asked_of_an_engine_that_has_ended_is_refused_and_not_waited_for(make):
    s = make().open()
    s.finish()
    for ask in (s.loop.ask, s.loop.act):
        with pytest.raises(UnloadedError):
            ask(lambda engine: engine.slots).result(WAIT_S)


def test_a_request_that_passes_the_door_while_the_engine_ends_is_refused(make, monkeypatch):
    s = make().open()
    check = s.loop._check_door

    def end_behind(request):
        passed = check(request)
        s.finish()
        return passed

    monkeypatch.setattr(s.loop, "_check_door", end_behind)
    with pytest.raises(UnloadedError):
        s.submit("late")


def test_who_is_open_when_a_drained_engine_stops_hears_that_the_server_does(make):
    s = make(n_slots=1).open()
    s.submit_into_a_tick("running", max_tokens=50)
    s.loop.drain()
    s.loop.stop(timeout_s=0)
    s.let_go()
    s.finish()
    assert isinstance(s.end("running").error, DrainingError)


@pytest.mark.parametrize("n_open", [1, 5])
def test_a_tick_that_raises_ends_every_request_once_and_the_next_one_works(make, n_open):
    s = make().open()
    s.backend.n_breaks = 1
    names = [f"r{i}" for i in range(n_open)]
    s.submit_into_a_tick(*names)
    s.let_go()
    assert all(isinstance(s.end(name).error, InternalError) for name in names)
    assert "on fire" in str(s.end("r0").error)
    s.submit("after")
    assert s.end("after").finish_reason == "length"
    assert s.loop.failure is None
    assert set(s.finish().values()) == {1}


def test_a_good_tick_forgives_the_failures_before_it(make):
    s = make().open()
    for i in range(4):
        s.backend.n_breaks = 1
        s.submit(f"bad{i}")
        assert s.end(f"bad{i}").error is not None
        s.submit(f"good{i}")
        assert s.end(f"good{i}").finish_reason == "length"
    s.finish()
    assert s.loop.failure is None


def test_three_failures_in_a_row_end_the_engine(make):
    s = make().open()
    s.backend.n_breaks = 99
    for i in range(3):
        s.submit(f"r{i}")
        assert isinstance(s.end(f"r{i}").error, InternalError)
    # Whoever passed the door just before the failure showed has its mail in the box by now.
    late = Request(request_id="late", prompt=(1,), max_tokens=1)
    s.loop._mailbox.put(lambda engine: engine.submit(late))
    assert "on fire" in str(s.end("late").error)
    with pytest.raises((LoadingError, DrainingError)):
        s.submit("refused")
    assert not s.backend.closed, "late mail still asks the engine"
    assert s.finish() == {"r0": 1, "r1": 1, "r2": 1, "late": 1}
    assert "on fire" in str(s.loop.failure)
    assert s.loop.state().status is EngineStatus.LOADING
    assert s.backend.closed


def test_what_cannot_even_fail_its_requests_has_failed_for_good(make):
    s = make().open()
    s.backend.breaks_clear, s.backend.n_breaks = True, 1
    s.submit("a")
    s.finish()
    assert "the cache is on fire" in str(s.loop.failure)


def test_an_engine_that_fails_at_its_mail_stops_when_told(make):
    s = make().open()
    s.backend.breaks_clear = True
    s.loop._mailbox.put(lambda engine: engine.backend.truncate(0, 99))
    assert s.finish() == {}
    assert "the cache is on fire" in str(s.loop.failure)
    assert s.backend.closed


class Blind(Onlooker):
    """Breaks at the first look at anything."""

    def on_tick(self, stats):
        raise OSError("no space left")

    on_submit = on_end = on_refusal = on_tick


def test_an_observer_that_breaks_harms_nobody(make):
    s = make(onlooker=Blind()).open()
    s.submit("a")
    assert s.end("a").finish_reason == "length"
    s.submit("b")
    assert s.end("b").finish_reason == "length"
    assert s.loop.failure is None


def test_the_door_refuses_by_count(make):
    s = make(n_slots=1, max_queue=2).open()
    s.submit_into_a_tick("running")
    s.submit("first", "second")
    with pytest.raises(QueueFullError) as caught:
        s.submit("third")
    assert (caught.value.what, caught.value.limit) == ("requests", 2)
    assert caught.value.retry_after_s >= 1
    assert s.loop.state().n_queued == 2
    assert s.loop.state().n_running == 1
    s.let_go()
    assert s.end("second").finish_reason == "length"
    s.submit("fourth")
    assert s.end("fourth").finish_reason == "length"
    assert s.finish() == {"running": 1, "first": 1, "second": 1, "fourth": 1}
    assert s.seen.refusals == ["queue_full_requests"]


def test_what_asks_for_the_impossible_is_counted_at_the_door(make):
    s = make(n_slots=1).open()
    for request, error in (
        (Request(request_id="long", prompt=(1,) * 10_000, max_tokens=1), PromptTooLongError),
        (Request(request_id="odd", prompt=(10_000,), max_tokens=1), InvalidParameterError),
    ):
        with pytest.raises(error):
            s.loop.submit(request)
    s.submit("a")
    assert s.end("a").finish_reason == "length"
    assert s.seen.refusals == ["context_length_exceeded", "invalid_value"]


def test_loading_refuses(make):
    s = make()
    s.may_build.clear()
    s.loop.start()
    assert s.loop.state().status is EngineStatus.LOADING
    with pytest.raises(LoadingError):
        s.submit("early")
    s.may_build.set()
    s.loop.wait_open()
    assert s.loop.state().status is EngineStatus.READY
    s.submit("a")
    assert s.end("a").finish_reason == "length"


def test_a_build_that_fails_is_told_to_whoever_waits(make):
    s = make()
    s.loop._build = lambda sink: (_ for _ in ()).throw(ValueError("no such model"))
    s.loop.start()
    with pytest.raises(ValueError, match="no such model"):
        s.loop.wait_open()
    assert s.loop.state().detail == "no such model"
    with pytest.raises(LoadingError):
        s.submit("a")


def test_a_tick_that_hangs_shows(make):
    s = make().open()
    assert s.seen.idle.acquire(timeout=WAIT_S)
    s.clock.advance(1000)
    assert s.loop.state().status is EngineStatus.READY, "an idle engine never stalls"
    s.submit_into_a_tick("a")
    s.clock.advance(60)
    assert s.loop.state().status is EngineStatus.READY
    s.clock.advance(1)
    state = s.loop.state()
    assert (state.status, state.last_tick_age_s) == (EngineStatus.STALLED, 61)
    assert "61 s" in state.detail
    s.let_go()
    s.end("a")
    assert s.seen.idle.acquire(timeout=WAIT_S)
    s.clock.advance(1000)
    assert s.loop.state().status is EngineStatus.READY
    assert s.loop.state().last_tick_age_s == 0


def texts(request_id, *lengths, **kwargs):
    return EmbeddingRequest.of([[1] * n for n in lengths], request_id=request_id, **kwargs)


def test_what_comes_during_a_tick_waits_in_the_queue_from_then_on(make):
    s = make(embedder=ScriptedEmbedder(32)).open()
    s.submit_into_a_tick("a")
    received_s = s.clock.now()
    s.clock.advance(0.5)
    s.submit("b", received_s=received_s)
    s.loop.submit(texts("e", 9, received_s=received_s))
    s.clock.advance(7)
    s.let_go()
    for name in ("b", "e"):
        stats = s.end(name).stats
        assert (stats.intake_s, stats.queue_s, stats.e2e_s) == (0.5, 7, 7)
    assert s.end("b").stats.ttft_s == 7


def test_the_door_counts_texts_apart_from_answers(make):
    setup = make(embedder=ScriptedEmbedder(32), max_queue=2, max_queue_tokens=40).open()
    setup.submit_into_a_tick("a", max_tokens=9)
    setup.loop.submit(texts("e", 30))
    with pytest.raises(QueueFullError, match="tokens"):
        setup.loop.submit(texts("f", 30))
    setup.loop.submit(texts("g", 9))
    with pytest.raises(QueueFullError, match="requests"):
        setup.loop.submit(texts("h", 1))
    setup.submit("b")
    setup.let_go()
    for name in "aegb":
        setup.end(name)
    setup.loop.submit(texts("i", 30))
    assert setup.end("i").error is None
    assert setup.seen.refusals == ["queue_full_tokens", "queue_full_requests"]


def test_texts_end_with_whoever_leaves_and_with_the_engine(make):
    setup = make(embedder=ScriptedEmbedder(32)).open()
    setup.submit_into_a_tick("a", max_tokens=9)
    setup.loop.submit(texts("e", 30))
    setup.loop.submit(texts("f", 30))
    setup.loop.cancel("e")
    setup.backend.n_breaks = 1
    setup.let_go()
    assert isinstance(setup.end("e").error, RequestCancelledError)
    setup.end("f")
    assert setup.finish() == {"a": 1, "e": 1, "f": 1}


def test_a_model_does_what_it_can_and_refuses_the_rest(make):
    setup = make().open()
    with pytest.raises(WrongTaskError):
        setup.loop.submit(texts("e", 3))
    setup.backend.generates = False
    with pytest.raises(WrongTaskError):
        setup.submit("a")
    setup = make(embedder=ScriptedEmbedder(32)).open()
    with pytest.raises(TextTooLongError):
        setup.loop.submit(texts("e", 33))


@pytest.mark.parametrize("way", ["ask", "act"])
def test_what_fails_between_two_ticks_ends_what_is_open_if_it_was_to_change_something(make, way):
    s = make().open()
    s.submit_into_a_tick("a")
    failed = getattr(s.loop, way)(lambda engine: 1 / 0)
    s.let_go()
    with pytest.raises(ZeroDivisionError):
        failed.result(WAIT_S)
    assert isinstance(s.end("a").error, InternalError) == (way == "act")
