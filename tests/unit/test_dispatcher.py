"""Dispatcher: its table of phases, and what becomes of a request, case by case."""

import pytest

from cobali_ray.core.dispatch.dispatcher import BACK_S, END_GRACE_S, VERDICT_S, Dispatcher
from cobali_ray.core.dispatch.engines import AWAY, TRANSITIONS, EngineChange, EngineRecord, Phase
from cobali_ray.core.dispatch.messages import (
    Attended,
    Cancel,
    Deliver,
    Described,
    EngineLoaded,
    EventsReceived,
    Fail,
    HangUp,
    Kill,
    LoadEngine,
    LoadRequested,
    Log,
    Lost,
    Reattend,
    RequestArrived,
    RequestLeft,
    Returned,
    Send,
    ServerStopping,
    Silent,
    Wake,
    WakeDue,
)
from cobali_ray.core.dispatch.models import ModelPlan
from cobali_ray.core.dispatch.request import DEADLINE_GRACE_S, MAX_DEATHS, MAX_MOVES
from cobali_ray.core.request.events import Computing, Delta, End, RequestProgress, RequestStats
from cobali_ray.core.request.request import Grammar, Request
from cobali_ray.core.views.stats import Attendance, EngineStatus
from cobali_ray.errors import (
    DeadlineExceededError,
    DrainingError,
    EngineDiedError,
    EventsLostError,
    InternalError,
    InvalidParameterError,
    LoadingError,
    QueueFullError,
    ReleasedError,
    RequestCancelledError,
    SupersededError,
    UnloadedError,
)

STATS = RequestStats(3, 1, 1, 0.1, 0.2, 0.3, 0.0, 0.4)
NEWS = {EngineChange.FOUND, EngineChange.FOUND_EMPTY, EngineChange.RELEASED}


@pytest.mark.parametrize("change", EngineChange)
@pytest.mark.parametrize("phase", Phase)
def test_the_whole_table_of_phases(phase, change):
    leads_to, befores = TRANSITIONS[change]
    after = leads_to if phase in befores else phase
    engine = EngineRecord("a", 5.0)
    engine.phase = phase
    assert engine.advance(change) == (after is not phase)
    assert engine.phase is after
    if phase in AWAY:
        assert after is phase or change in NEWS | {EngineChange.ENDED}, (
            "what is away has to be heard from first"
        )
    if after is Phase.PRESENT and phase is not Phase.PRESENT:
        assert change in {EngineChange.FOUND, EngineChange.LOADED}
    if change is EngineChange.ENDED:
        assert after is (Phase.UNKNOWN if phase is Phase.UNKNOWN else Phase.RESTARTING)
    if change is EngineChange.SILENT:
        assert after in AWAY
    if change in NEWS:
        assert after not in AWAY, "it has been heard from"


class Site:
    """A dispatcher over one model, whose engines are there unless it is said otherwise."""

    def __init__(self, *engine_ids, loaded=True):
        ids = engine_ids or ("a",)
        plan = ModelPlan(name="m", engine_ids=ids, n_stay=len(ids), max_waiting=1, stall_timeout_s=10.0)
        self.dispatcher, self.now_s, self.logs = Dispatcher([plan]), 0.0, []
        for engine_id in ids:
            self.do(Described(engine_id)) if loaded else None
            self.attend(engine_id, loaded=loaded)

    def do(self, event):
        out = self.dispatcher.handle(event, self.now_s)
        self.logs += [one for one in out if isinstance(one, Log)]
        self.dispatcher.check()
        return [one for one in out if not isinstance(one, Log | Wake)]

    def attend(self, engine_id="a", incarnation_id="e1", **fields):
        found = Attendance(incarnation_id, 0, **{"up_s": 100.0, "pid": 7, "began": 5} | fields)
        return self.do(Attended(engine_id, found, self.now_s))

    def ask(self, name="r", **fields):
        request = Request(request_id=name, prompt=(1, 2, 3), max_tokens=500, **fields)
        return self.do(RequestArrived(request, "m"))

    def say(self, *words):
        return self.do(EventsReceived(words, "here"))

    def after(self, seconds):
        self.now_s += seconds
        return self.do(WakeDue(self.now_s))


def ends_with(out, error):
    """Say whether this is the end of a request, by this error."""
    (last,) = [one for one in out if isinstance(one, Deliver | Fail)]
    found = last.error if isinstance(last, Fail) else last.event.error
    return isinstance(found, error)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    ("returned", "error"),
    [
        pytest.param(InternalError("a bug"), InternalError, id="a-bug-is-no-death"),
        pytest.param(QueueFullError("requests", 1, 1.0), QueueFullError, id="all-refuse"),
        pytest.param(DrainingError(), DrainingError, id="draining"),
        pytest.param(EventsLostError(), EventsLostError, id="events-lost"),
    ],
)
def test_how_a_control_call_ends_a_request(returned, error, begun):
    site = Site()
    site.ask()
    if begun:
        site.say(Delta("r", "x", (1,)))
    out = site.do(Returned("a", "r", returned))
    assert ends_with(out, error)
    assert isinstance(out[-1], Deliver if begun else Fail)
    if begun:
        assert out[-1].event.stats.n_output == 1


def test_a_refusal_behind_words_is_an_answer():
    site = Site("a", "b")
    (send,) = site.ask()
    site.say(Delta("r", "x", (1,)))
    assert ends_with(site.do(Returned(send.engine_id, "r", DrainingError())), DrainingError)


def test_the_last_events_may_lag_behind_the_control_call_but_not_for_ever():
    site = Site()
    site.ask("r")
    site.ask("s")
    site.do(Returned("a", "r", None))
    site.do(Returned("a", "s", None))
    assert site.after(END_GRACE_S - 0.1) == []
    assert site.say(End("r", "stop", None, STATS)) == [Deliver("r", End("r", "stop", None, STATS))]
    assert ends_with(site.after(0.2), EventsLostError)


@pytest.mark.parametrize("verdict", ["moves", "breaks", "nobody-says"])
def test_an_end_that_nobody_asked_for(verdict):
    site = Site("a", "b")
    (send,) = site.ask()
    assert site.say(End("r", None, RequestCancelledError(), STATS)) == []
    if verdict == "breaks":
        assert ends_with(site.do(Returned(send.engine_id, "r", InternalError("a bug"))), InternalError)
        return
    out = site.do(Returned(send.engine_id, "r", None)) if verdict == "moves" else site.after(VERDICT_S)
    (again,) = [one for one in out if isinstance(one, Send)]
    assert (again.request.request_id, again.request.attempt) == ("r~1", 1)
    assert again.engine_id != send.engine_id


GRAMMAR = Grammar("", "regex")
DEATHS = {
    "nothing heard": (None, [], False),
    "computing": (None, [Computing("", on=True)], True),
    "its place in the queue": (None, [RequestProgress("", 0, 0, 3, 0.0, 2, None)], False),
    "a token from each": (None, [Computing("", on=True), Delta("", "x", (1,))], False),
    "a grammar being compiled": (GRAMMAR, [], True),
    "a grammar compiled": (GRAMMAR, [Computing("", on=False)], False),
    "a grammar, computing": (GRAMMAR, [Computing("", on=False), Computing("", on=True)], True),
}


@pytest.mark.parametrize(("grammar", "words", "counts"), DEATHS.values(), ids=DEATHS)
def test_deaths_count_where_something_was_computed(grammar, words, counts):
    site = Site()
    (send,) = site.ask(grammar=grammar)
    for n_deaths in range(1, MAX_MOVES + 2):
        site.say(*(word._replace(request_id=send.request.request_id) for word in words))
        out = site.do(Returned("a", send.request.request_id, EngineDiedError()))
        if ends := [one for one in out if isinstance(one, Deliver | Fail)]:
            break
        (send,) = site.attend(incarnation_id=f"e{n_deaths}")[-1:]
    assert ends_with(ends, EngineDiedError)
    assert n_deaths == (MAX_DEATHS if counts else MAX_MOVES) + 1
    attempts = [log.fields["attempt"] for log in site.logs if log.event == "engine_gone"]
    assert attempts == list(range(1, n_deaths)), "logged where it goes on, and not at its end"


def test_after_a_token_deaths_count_anew():
    site = Site()
    (send,) = site.ask()
    for n in range(MAX_DEATHS + 2):
        if n == 1:
            site.say(Delta(send.request.request_id, "x", (1,)))
        site.say(Computing(send.request.request_id, on=True))
        out = site.do(Returned("a", send.request.request_id, EngineDiedError()))
        assert bool([one for one in out if isinstance(one, Deliver | Fail)]) == (n == MAX_DEATHS + 1)
        (send, *_) = site.attend(incarnation_id=f"e{n}")[-1:] or [send]


@pytest.mark.parametrize("says", ["its end", "its call"])
def test_a_pause_that_gives_memory_back_is_no_death_and_has_no_end_of_its_own(says):
    site = Site()
    (send,) = site.ask("r")
    for n in range(1, MAX_DEATHS + 3):
        sent_id = send.request.request_id
        site.say(Delta(sent_id, "x", (n,)))
        if says == "its end":
            assert site.say(End(sent_id, None, ReleasedError(), STATS)) == []
        assert site.do(Returned("a", sent_id, None if says == "its end" else ReleasedError())) == []
        assert site.attend(loaded=False, released=True) == []
        assert site.after(10 * BACK_S) == []
        (send,) = site.attend()
        assert send.request.sent_tokens == tuple(range(1, n + 1))


def test_a_pause_ends_with_its_engine():
    site = Site()
    site.ask("r")
    site.do(Returned("a", "r", ReleasedError()))
    site.do(Lost("a"))
    assert ends_with(site.after(BACK_S), EngineDiedError)


def test_as_many_wait_in_a_pause_as_in_a_queue():
    site = Site()
    site.ask("r")
    site.say(End("r", None, ReleasedError(), STATS))
    assert ends_with(site.ask("new"), QueueFullError)
    site.do(RequestLeft("r"))
    assert site.ask("new") == []
    assert ends_with(site.ask("newer"), QueueFullError)
    (send,) = site.attend()
    assert send.request.request_id == "new"


def test_an_engine_whose_memory_a_pause_has_is_not_loaded():
    site = Site(loaded=False)
    site.attend(loaded=False, released=True)
    assert site.ask() == []
    (answer,) = site.do(LoadRequested("t", "m", 1))
    assert isinstance(answer.error, LoadingError)


def test_progress_is_passed_on_and_is_no_answer():
    """An engine that has to make room for others may still refuse whom it told its place."""
    site = Site("a", "b")
    (send,) = site.ask()
    progress = RequestProgress("r", 0, 0, 3, 0.0, 2, 1.5)
    assert site.say(progress) == [Deliver("r", progress)]
    full = End("r", None, QueueFullError("requests", 1, 1.0), STATS)
    (again,) = [one for one in site.say(full) if isinstance(one, Send)]
    assert again.engine_id != send.engine_id


def test_progress_of_a_later_attempt_is_told_by_the_id_that_its_client_knows():
    site = Site()
    site.ask()
    site.do(Returned("a", "r", EngineDiedError()))
    site.attend(incarnation_id="e2")
    (told,) = site.say(RequestProgress("r~1", 2, 0, 3, 0.1, None, None))
    assert (told.request_id, told.event.request_id) == ("r", "r")


SUPERSEDES = {"supersedes": "k", "received_s": 5.0}


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("where", ["sent", "waiting for an engine", "waiting for a load"])
def test_a_newer_request_takes_the_place_of_an_older_one_wherever_that_is(where, begun):
    site = Site(loaded=where != "waiting for a load")
    site.ask("old", **SUPERSEDES)
    if begun and where != "waiting for a load":
        site.say(Delta("old", "x", (1,), stats=STATS))
    if where == "waiting for an engine":
        site.do(Returned("a", "old", EngineDiedError()))
    out = site.ask("new", **SUPERSEDES | {"received_s": 6.0})
    assert ends_with([one for one in out if getattr(one, "request_id", "") == "old"], SupersededError)
    assert (Cancel("a", "old") in out) == (where == "sent")
    assert site.dispatcher.find("old", "") == []
    assert [one.request_id for one in site.dispatcher.find("new", "")] == ["new"], "it goes on"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"supersedes": "other"}, "it is another's"),
        ({"supersedes": ""}, "it did not ask for it"),
        ({"received_s": 5.0}, "it is of the same call"),
        ({"received_s": 4.0}, "it is the older one, and was overtaken"),
    ],
)
def test_nobody_else_loses_its_place(fields, why):
    site = Site()
    site.ask("old", **SUPERSEDES)
    out = site.ask("new", **SUPERSEDES | {"received_s": 6.0} | fields)
    assert [type(one) for one in out] == [Send], why


def test_an_engine_that_ends_has_its_requests_go_on_behind_what_was_told():
    site = Site()
    site.ask(timeout_s=100.0)
    site.say(Delta("r", "x", (5, 6), stats=STATS), Delta("r", "y", (7,)))
    site.now_s = 4.0
    assert site.do(Returned("a", "r", EngineDiedError())) == [HangUp("a")]
    away = site.dispatcher.engines["a"].away(5.0)
    assert (away.status, away.down_s) == (EngineStatus.RESTARTING, 1.0)
    (send,) = [one for one in site.attend(incarnation_id="e2") if isinstance(one, Send)]
    assert (send.request.sent_tokens, send.request.attempt, send.request.timeout_s) == ((5, 6, 7), 1, 96.0)
    assert site.say(Delta("r", "late", (9,))) == [], "the last words of the dead are nobody's"
    (told,) = site.say(End("r~1", "stop", None, STATS._replace(n_output=3, n_said=3)))
    end = told.event
    assert (end.request_id, end.stats.n_cached, end.stats.ttft_s, end.stats.e2e_s) == ("r", 1, 0.3, 4.0)


def test_another_file_does_not_go_on_with_an_answer():
    site = Site()
    site.ask()
    site.do(Returned("a", "r", EngineDiedError()))
    site.attend(incarnation_id="e2", model="another", loaded=True)
    assert ends_with(site.do(EngineLoaded("a")), EngineDiedError)


def test_who_was_heard_moves_to_a_successor_and_who_was_not_may_be_with_it_already():
    site = Site()
    site.ask("heard")
    site.ask("silent")
    site.say(Computing("heard", on=True))
    out = site.attend(incarnation_id="e2")
    assert [one for one in out if isinstance(one, Cancel)] == [Cancel("a", "heard")]
    assert [one.request.request_id for one in out if isinstance(one, Send)] == ["heard~1"]
    assert site.say(Delta("silent", "x", (1,))) == [Deliver("silent", Delta("silent", "x", (1,)))]
    (again,) = site.do(Returned("a", "silent", EngineDiedError()))
    assert again.engine_id == "a", "who hears late of a death blames no successor"


def test_silence_is_no_death_until_it_lasts():
    site = Site()
    site.ask()
    site.now_s = 2.0
    assert site.do(Silent("a", 2.0, 0.0, False)) == [HangUp("a")]
    assert site.dispatcher.engines["a"].away(3.0).status is EngineStatus.STALLED
    assert site.ask("waits") == []
    assert site.say(Delta("r", "x", (1,))) == [Deliver("r", Delta("r", "x", (1,)))], "it may go on"
    assert site.do(Silent("a", 9.5, 0.0, False)) == []
    assert site.do(Silent("a", 10.0, 0.0, False)) == [Kill("a", 7, 5), Reattend("a"), Cancel("a", "r")]
    assert site.do(Silent("a", 2.0, 0.0, False)) == [Reattend("a")], "it is given up once"
    sends = [one.request.request_id for one in site.attend(incarnation_id="e2") if isinstance(one, Send)]
    assert sorted(sends) == ["r~1", "waits"]


def test_a_process_that_has_ended_is_not_killed_as_well():
    """By then its id may be another's."""
    site = Site()
    site.ask()
    assert site.do(Silent("a", 10.0, 0.0, True)) == [HangUp("a"), Reattend("a"), Cancel("a", "r")]


def test_nobody_kills_a_process_of_another_machine():
    site = Site()
    site.attend(wire_key="key")
    site.do(Silent("a", 2.0, 0.0, False))
    assert site.do(Silent("a", 10.0, 0.0, False)) == [Reattend("a")]


@pytest.mark.parametrize(
    ("timeout_s", "moved", "waits_s", "error"),
    [
        pytest.param(None, False, BACK_S, LoadingError, id="none-comes"),
        pytest.param(None, True, BACK_S, EngineDiedError, id="none-comes-back"),
        pytest.param(5.0, True, 5.0, DeadlineExceededError, id="its-own-time"),
    ],
)
def test_how_long_an_engine_is_waited_for(timeout_s, moved, waits_s, error):
    site = Site()
    if moved:
        site.ask(timeout_s=timeout_s)
        site.do(Returned("a", "r", EngineDiedError()))
    else:
        site.do(Lost("a"))
        site.ask(timeout_s=timeout_s)
    assert site.after(waits_s - 0.1) == []
    assert ends_with(site.after(0.1), error)


def test_a_death_shows_though_serve_sent_the_call_to_the_successor():
    site = Site()
    site.now_s = 10.0
    found = Attendance("e2", 1, up_s=0.5)
    out = site.dispatcher.handle(Attended("a", found, 9.0), 10.0)
    assert [one.event for one in out if isinstance(one, Log)] == ["engine_away", "engine_back"]
    out = site.dispatcher.handle(Attended("a", found._replace(incarnation_id="e3", up_s=1.5), 9.0), 10.0)
    assert not [one for one in out if isinstance(one, Log)], "one that was replaced in order did not die"


def test_an_engine_that_lost_a_device_names_it_until_another_process_takes_its_place():
    site = Site()
    site.attend(lost="far:1 (the connection to it broke)")
    assert site.dispatcher.engines["a"].away(site.now_s) is None
    out = site.dispatcher.handle(Lost("a"), site.now_s)
    assert [one.fields["lost"] for one in out if isinstance(one, Log)] == [
        "far:1 (the connection to it broke)"
    ]
    away = site.dispatcher.engines["a"].away(site.now_s + 40)
    assert away.detail.startswith("the engine lost far:1 (the connection to it broke) and ended 40.0 s ago")
    site.attend(incarnation_id="e2")
    site.do(Lost("a"))
    assert "far:1" not in site.dispatcher.engines["a"].away(site.now_s).detail


def test_what_is_let_go_is_loaded_for_a_request_but_not_for_ever():
    site = Site()
    site.ask()
    assert site.do(Returned("a", "r", UnloadedError())) == [LoadEngine("a")]
    assert ends_with(site.ask("more"), QueueFullError), "as many wait as may"
    assert [type(one) for one in site.do(EngineLoaded("a"))] == [Send]
    assert ends_with(site.do(Returned("a", "r", UnloadedError())), UnloadedError)


def test_an_engine_that_goes_away_while_it_loads_is_waited_for():
    site = Site(loaded=False)
    site.ask()
    site.do(Lost("a"))
    assert site.do(EngineLoaded("a", LoadingError())) == []
    assert site.attend(incarnation_id="e2", loaded=False)[-1] == LoadEngine("a"), "its successor loads it"
    (send,) = site.do(EngineLoaded("a"))
    assert send.request.attempt == 1


def test_who_had_to_make_room_in_a_queue_goes_elsewhere_and_its_control_call_returns_late():
    site = Site("a", "b")
    (first,) = site.ask()
    (second,) = site.say(End("r", None, QueueFullError("requests", 1, 1.0), STATS))
    assert {first.engine_id, second.engine_id} == {"a", "b"}
    assert site.do(Returned(first.engine_id, "r", None)) == []
    assert site.after(END_GRACE_S) == [], "nobody waits for its last events"
    assert site.say(Delta("r", "x", (1,))) == [Deliver("r", Delta("r", "x", (1,)))]


def test_an_answer_under_way_waits_for_a_load_however_many_do():
    site = Site("a")
    site.ask("r")
    site.say(Delta("r", "x", (1,)))
    site.ask("s")
    site.say(Delta("s", "x", (1,)))
    site.do(Lost("a"))
    for name in "rs":
        site.do(Returned("a", name, EngineDiedError()))
    out = site.attend("a", "e2", loaded=False)
    assert not [one for one in out if isinstance(one, Deliver | Fail)], "max_waiting is for new requests"
    assert ends_with(site.ask("new"), QueueFullError)
    out = site.do(EngineLoaded("a"))
    assert sorted(one.request.request_id for one in out if isinstance(one, Send)) == ["r~1", "s~1"]


def test_a_pause_that_comes_while_an_engine_loads_holds_up_no_other_load():
    plans = [
        ModelPlan(name=name, engine_ids=(name,), n_stay=0, max_waiting=9, stall_timeout_s=10.0)
        for name in "ab"
    ]
    site = Site("a", loaded=False)
    site.dispatcher = Dispatcher(plans)
    for name in "ab":
        site.attend(name, loaded=False)
    asks = {name: Request(request_id=name, prompt=(1,), max_tokens=5) for name in "ab"}
    assert site.do(RequestArrived(asks["a"], "a")) == [LoadEngine("a")]
    assert site.do(RequestArrived(asks["b"], "b")) == []
    assert LoadEngine("b") in site.attend("a", loaded=False, released=True)
    assert [one.request.request_id for one in site.do(EngineLoaded("b")) if isinstance(one, Send)] == ["b"]
    site.do(EngineLoaded("a"))
    out = site.attend("a", loaded=False)
    assert LoadEngine("a") in out, "the pause is over"


def test_an_engine_that_ends_as_soon_as_it_is_loaded_is_loaded_again():
    site = Site("a", loaded=False)
    assert LoadEngine("a") in site.ask()
    site.do(Lost("a"))
    site.do(EngineLoaded("a"))
    out = site.attend("a", "e2", loaded=False)
    assert LoadEngine("a") in out
    assert [one.engine_id for one in site.do(EngineLoaded("a")) if isinstance(one, Send)] == ["a"]


def test_no_prompt_is_read_with_the_vocabulary_of_another_file():
    site = Site("a")
    site.attend("a", "e1", loaded=True, model="old")
    site.do(Described("a"))
    site.do(Lost("a"))
    site.ask("before")
    site.attend("a", "e2", loaded=True, model="other")
    site.do(Described("a", "other"))
    assert ends_with(site.do(EngineLoaded("a")), EngineDiedError)
    assert [one for one in site.ask("after") if isinstance(one, Send)], "it was read with the new one"


def test_engines_of_one_model_may_have_copies_of_its_file():
    site = Site("a", "b")
    for name in "ab":
        site.attend(name, loaded=True, model=f"copy {name}")
        site.do(Described(name, f"copy {name}"))
    sent = [site.ask(f"r{i}")[0].engine_id for i in range(2)]
    site.do(Lost("a"))
    assert [one.engine_id for one in site.ask("more") if isinstance(one, Send)] == ["b"]
    assert set(sent) <= {"a", "b"}


def test_what_fitted_elsewhere_and_not_here_is_not_the_client_s_fault():
    site = Site("a", "b")
    (send,) = site.ask()
    site.say(Delta("r", "x", (1,)))
    other = "b" if send.engine_id == "a" else "a"
    site.do(Lost(send.engine_id))
    (again,) = [
        one for one in site.do(Returned(send.engine_id, "r", EngineDiedError())) if isinstance(one, Send)
    ]
    assert again.engine_id == other
    too_long = InvalidParameterError("sent_tokens", ": 1 tokens are a whole answer already")
    assert not [one for one in site.do(Returned(other, "r~1", too_long)) if isinstance(one, Deliver)]
    (last,) = [one for one in site.attend(send.engine_id, "e2", loaded=True) if isinstance(one, Send)]
    assert last.engine_id == send.engine_id, "whose slots are as large as they were"


def test_what_no_engine_has_accepted_is_the_client_s_fault_however_it_moved():
    site = Site("a")
    site.ask()
    site.do(Returned("a", "r", EngineDiedError()))
    site.attend("a", "e2", loaded=True)
    too_long = InvalidParameterError("prompt", "is too long")
    assert ends_with(site.do(Returned("a", "r~1", too_long)), InvalidParameterError)


def test_an_engine_that_cannot_be_loaded_hides_no_other():
    site = Site("a", "b", loaded=False)
    assert LoadEngine("a") in site.ask()
    assert LoadEngine("b") in site.do(EngineLoaded("a", InternalError("a GPU is broken")))
    assert [one.engine_id for one in site.do(EngineLoaded("b")) if isinstance(one, Send)] == ["b"]
    site = Site("a", "b", loaded=False)
    site.ask()
    site.do(EngineLoaded("a", InternalError("a GPU is broken")))
    assert ends_with(site.do(EngineLoaded("b", InternalError("another is, too"))), InternalError)
    assert LoadEngine("a") in site.ask("again")


def test_the_end_may_lag_behind_its_control_call_beyond_the_deadline_too():
    site = Site()
    site.ask(timeout_s=5.0)
    site.now_s = 5.01
    assert site.do(Returned("a", "r", None)) == []
    assert site.after(1.0) == []
    out = site.say(End("r", None, DeadlineExceededError(5.0), STATS))
    assert ends_with(out, DeadlineExceededError)


def test_an_engine_that_hangs_does_not_keep_a_request_beyond_its_time():
    site = Site()
    site.ask(timeout_s=5.0)
    assert site.after(5.0) == [], "the engine says so itself"
    out = site.after(DEADLINE_GRACE_S)
    assert ends_with(out, DeadlineExceededError)
    assert Cancel("a", "r") in out


def test_a_server_that_stops_refuses_what_no_engine_has():
    site = Site("a")
    site.ask("r")
    site.do(Lost("a"))
    site.do(Returned("a", "r", EngineDiedError()))
    assert ends_with(site.do(ServerStopping()), DrainingError)
    assert ends_with(site.ask("new"), DrainingError)
