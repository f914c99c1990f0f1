"""What holds for every dispatcher, whatever engines and clients do and in whatever order (stateful)."""

import math
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cobali_ray.core.dispatch import messages
from cobali_ray.core.dispatch.dispatcher import BACK_S, Dispatcher
from cobali_ray.core.dispatch.engines import Phase
from cobali_ray.core.dispatch.models import ModelPlan
from cobali_ray.core.dispatch.request import MAX_DEATHS, MAX_MOVES, Stage
from cobali_ray.core.request.events import Computing, Delta, End, RequestProgress, RequestStats
from cobali_ray.core.request.request import Request
from cobali_ray.core.views.stats import Attendance, EngineState, EngineStatus, LoadView
from cobali_ray.errors import (
    DeadlineExceededError,
    DrainingError,
    EngineDiedError,
    InternalError,
    InvalidParameterError,
    LoadingError,
    ModelBusyError,
    NoRoomError,
    QueueFullError,
    ReleasedError,
    RequestCancelledError,
    UnloadedError,
)

ENGINES = {"a": "big", "b": "big", "c": "small"}
IDLE = LoadView(ahead=(), n_free=2, slot_s=1.0, token_s=0.001, depth_s=0.0, n_kept=1 << 16)
RETURNS = [
    None, EngineDiedError(), QueueFullError("requests", 1, 3.0), DrainingError(), UnloadedError(),
    InternalError("a bug"), InvalidParameterError("n", "no"), ReleasedError(),
]  # fmt: skip
LOADS = [None, None, NoRoomError(5, 3), LoadingError(), InternalError("broken file")]
STALL_S = 10.0


class DispatcherMachine(RuleBasedStateMachine):
    """Engines that die, hang, let go and come back with other files; clients that come and leave."""

    @initialize(
        n_stay=st.integers(0, 2),
        max_waiting=st.sampled_from([1, 128]),
        there=st.sampled_from(["abc", "abc", "bc", ""]),
        asks=st.lists(st.booleans(), max_size=3),
    )
    def open(self, n_stay, max_waiting, there, asks):
        wanted = {"max_waiting": max_waiting, "stall_timeout_s": STALL_S, "scale_up_wait_s": 0.01}
        self.dispatcher = Dispatcher(
            [
                ModelPlan(name="big", engine_ids=("a", "b"), n_stay=n_stay, **wanted),
                ModelPlan(name="small", engine_ids=("c",), n_stay=min(n_stay, 1), **wanted),
            ]
        )
        self.now_s = 100.0
        self.asked, self.told, self.over, self.left = {}, {}, {}, set()
        self.calls, self.former, self.n_sends, self.files, self.deaths = {}, [], {}, {}, {}
        self.process = dict.fromkeys(ENGINES, 1)
        self.killed, self.loads, self.unloads, self.surveys = set(), [], [], 0
        self.tickets, self.n_tickets, self.wakes = set(), 0, []
        self.given, self.charged, self.charges = Counter(), Counter(), {}
        for engine_id in there:
            self.do(messages.Described(engine_id))
            self.attend(engine_id, anew=False, loaded=True, file="one", up_s=100.0)
        for begun in asks:
            self.ask("big", None, "alice", begun=begun)

    def do(self, event):
        for one in self.dispatcher.handle(event, self.now_s):
            match one:
                case messages.Send(engine_id, client_id, request):
                    self.sent(engine_id, client_id, request)
                    assert self.dispatcher.engines[engine_id].present
                case messages.Cancel(engine_id, request_id):
                    call = self.calls.pop(request_id, None)
                    assert call is None or call[0] == engine_id
                    self.former.append(request_id)
                case messages.Deliver(request_id, told):
                    assert request_id not in self.over, "every request ends once"
                    assert request_id not in self.left, "nothing comes to who has left"
                    assert told.request_id == request_id, "it keeps its name"
                    if isinstance(told, Delta):
                        self.told[request_id] += told.tokens
                        n = len(self.told[request_id])
                        assert self.told[request_id] == list(range(n)), "no token twice, and none missing"
                    elif not isinstance(told, RequestProgress):
                        self.over[request_id] = told.error
                        assert told.error is not None or told.stats.n_output == len(self.told[request_id])
                case messages.Fail(request_id, _):
                    assert request_id not in self.over, "every request ends once"
                    assert request_id not in self.left
                    assert not self.told[request_id], "what was begun ends with an End"
                    self.over[request_id] = one.error
                case messages.LoadEngine(engine_id):
                    assert not self.loads, "one at a time"
                    self.loads.append(engine_id)
                case messages.UnloadEngine(engine_id):
                    self.unloads.append(engine_id)
                case messages.Survey():
                    self.surveys += 1
                case messages.Kill(engine_id, pid, _):
                    assert (engine_id, pid) not in self.killed, "a process is killed once"
                    assert pid == self.process[engine_id]
                    self.killed.add((engine_id, pid))
                    self.process[engine_id] += 1
                case messages.AnswerLoad(ticket, _):
                    self.tickets.remove(ticket)
                case messages.Wake(at_s):
                    self.wakes.append(at_s)

    def sent(self, engine_id, client_id, request):
        assert client_id not in self.over
        assert client_id not in self.left
        assert request.request_id not in self.former, "a former name is never used again"
        assert not self.calls_of(client_id), "one engine at a time has it"
        engine = self.dispatcher.engines[engine_id]
        assert ENGINES[engine_id] == self.asked[client_id].model
        assert self.files.setdefault(client_id, engine.model) == engine.model, "no other file goes on with it"
        assert list(request.sent_tokens) == self.told[client_id], "it goes on behind what was told"
        if request.timeout_s is not None:
            assert 0 < request.timeout_s <= self.asked[client_id].request.timeout_s
        self.charge(engine_id, client_id, request)
        self.calls[request.request_id] = [engine_id, client_id, len(request.sent_tokens), False]
        assert request.attempt <= MAX_MOVES
        assert self.deaths.get(client_id, 0) <= MAX_DEATHS, "what ends engines does not go round for ever"

    def charge(self, engine_id, client_id, request):
        """Have an engine charge the tenant with what others gave it."""
        self.settle(client_id)
        if request.tenant and ENGINES[engine_id] == "big":
            self.charged[engine_id] += request.served_elsewhere
            self.charges[client_id] = [engine_id, request.served_elsewhere, False]

    def settle(self, client_id):
        """Take that back if the engine did not take the request."""
        engine_id, n_tokens, taken = self.charges.pop(client_id, ("", 0.0, True))
        if not taken:
            self.charged[engine_id] -= n_tokens

    def calls_of(self, client_id):
        return [call for call in self.calls.values() if call[1] == client_id and not call[3]]

    # -- clients

    @rule(
        model=st.sampled_from(["big", "big", "small"]),
        timeout_s=st.sampled_from([None, None, 5.0, 100.0]),
        tenant=st.sampled_from(["", "alice"]),
        begun=st.booleans(),
    )
    def ask(self, model, timeout_s, tenant, begun):
        request_id = f"r{len(self.asked)}"
        request = Request(
            request_id=request_id, prompt=(1,) * 70, max_tokens=10_000, timeout_s=timeout_s, tenant=tenant
        )
        self.asked[request_id], self.told[request_id] = messages.RequestArrived(request, model), []
        self.do(self.asked[request_id])
        if begun and request_id in self.calls:
            self.say_of(request_id, "delta")

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def leave(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.asked)))
        if request_id not in self.over:
            self.left.add(request_id)
            if request_id in self.charges:
                self.charges[request_id][2] = True  # the engine may have charged it
        self.do(messages.RequestLeft(request_id))
        assert not self.calls_of(request_id), "it is cancelled"

    @rule(model=st.sampled_from(["big", "small"]), n_engines=st.integers(1, 2), stays=st.booleans())
    def want(self, model, n_engines, stays):
        ticket = f"t{self.n_tickets}"
        self.n_tickets += 1
        self.tickets.add(ticket)
        self.do(messages.LoadRequested(ticket, model, n_engines))
        if not stays and ticket in self.tickets:
            self.tickets.discard(ticket)
            self.do(messages.RequestLeft(ticket))

    # -- engines

    @rule(
        engine_id=st.sampled_from("abc"),
        anew=st.sampled_from([False, False, True]),
        loaded=st.sampled_from([True, True, True, False]),
        file=st.sampled_from(["one", "one", "one", "one", "other"]),
        up_s=st.sampled_from([0.5, 100.0]),
        released=st.booleans(),
    )
    def attend(self, engine_id, anew, loaded, file, up_s, released=False):
        self.process[engine_id] += anew
        pid, known = self.process[engine_id], {"busy": IDLE, "model": file}
        found = Attendance(
            str(pid), 0, loaded=loaded, released=released and not loaded, pid=pid, up_s=up_s, **known
        )
        if found.released:  # a load that was begun ends with the pause, and no other waits for that
            self.loads = [one for one in self.loads if one != engine_id]
        self.do(messages.Attended(engine_id, found, self.now_s - 1.0))

    @rule(engine_id=st.sampled_from("abc"))
    def describe(self, engine_id):
        self.do(messages.Described(engine_id))

    @rule(engine_id=st.sampled_from("abc"))
    def lose(self, engine_id):
        self.do(messages.Lost(engine_id))

    @rule(
        engine_id=st.sampled_from("abc"),
        silent_s=st.sampled_from([2.0, STALL_S]),
        ended=st.sampled_from([False, False, True]),
    )
    def be_silent(self, engine_id, silent_s, ended):
        known = self.dispatcher.engines[engine_id].attendance
        if known is None or known.pid == self.process[engine_id]:
            self.do(messages.Silent(engine_id, silent_s, self.now_s - silent_s, ended and known is not None))

    @rule(engine_id=st.sampled_from("abc"), source=st.sampled_from(["", "here"]))
    def be_unheard(self, engine_id, source):
        self.do(messages.Unheard(engine_id, (source,)))

    @precondition(lambda self: self.calls)
    @rule(
        data=st.data(),
        what=st.sampled_from(
            ["computing", "progress", "delta", "delta", "delta", "end", "odd", "full", "released"]
        ),
    )
    def say(self, data, what):
        self.say_of(data.draw(st.sampled_from(sorted(self.calls))), what)

    def say_of(self, request_id, what):
        call = self.calls[request_id]
        n = call[2]
        stats = RequestStats(70, 0, n, 0.1, 0.1, 0.2, 0.1, 0.3)
        if what == "delta" and not call[3]:
            call[2] += 2
            event = Delta(request_id, "xy", (n, n + 1), stats=stats)
            if request_id in self.dispatcher._sent:
                self.deaths[call[1]] = 0
        elif what == "computing":
            event = Computing(request_id, on=True)
        elif what == "progress":
            event = RequestProgress(request_id, n, 0, 70, 0.1, None, None)
        else:
            error = {
                "odd": RequestCancelledError(),
                "full": QueueFullError("requests", 1, 1.0),
                "released": ReleasedError(),
            }.get(what)
            if what == "full" and n:
                error = DeadlineExceededError(1.0)
            event = End(request_id, None if error else "stop", error, stats)
            call[3] = True
        self.gave(request_id, event)
        self.do(messages.EventsReceived([event], "here"))

    def gave(self, request_id, event):
        """Note what an engine gave to a tenant, and that it took the request."""
        one = self.dispatcher._sent.get(request_id)
        if one is None or one.stage is Stage.VERDICT or one.request_id not in self.charges:
            return
        if isinstance(event, Delta):
            self.given[one.engine.engine_id] += 70 + 2 * len(event.tokens)
        if not isinstance(event, Computing | RequestProgress) and not isinstance(
            getattr(event, "error", None), RequestCancelledError | ReleasedError
        ):
            self.charges[one.request_id][2] = True

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), error=st.sampled_from(RETURNS))
    def give_back(self, data, error):
        self.end_call(data.draw(st.sampled_from(sorted(self.calls))), error)

    def end_call(self, request_id, error):
        engine_id, client_id, *_ = self.calls.pop(request_id)
        one = self.dispatcher._sent.get(request_id)
        if one is not None and isinstance(error, ReleasedError):
            self.former.append(request_id)
        if one is not None and isinstance(error, EngineDiedError):
            self.former.append(request_id)
            self.deaths[client_id] = self.deaths.get(client_id, 0) + one.computing
        self.do(messages.Returned(engine_id, request_id, error))
        if one is not None and isinstance(error, InternalError) and not isinstance(error, EngineDiedError):
            assert client_id in self.over, "a bug is no death"

    @precondition(lambda self: self.calls)
    @rule(
        data=st.data(),
        computes=st.booleans(),
        loaded=st.sampled_from([True, True, True, False]),
        file=st.sampled_from(["one", "one", "one", "other"]),
        n_times=st.integers(1, 4),
    )
    def die_and_come_back(self, data, computes, loaded, file, n_times):
        """An engine ends with a request, and its successor is there at once, again and again."""
        client_id = self.calls[data.draw(st.sampled_from(sorted(self.calls)))][1]
        for _ in range(n_times):
            mine = [name for name, call in self.calls.items() if call[1] == client_id and not call[3]]
            for request_id in mine:
                engine_id = self.calls[request_id][0]
                if computes:
                    self.do(messages.EventsReceived([Computing(request_id, on=True)], "here"))
                self.end_call(request_id, EngineDiedError())
                self.attend(engine_id, anew=True, loaded=loaded, file=file, up_s=0.5)

    @precondition(lambda self: self.former)
    @rule(data=st.data())
    def say_late(self, data):
        """A former engine's last words are nobody's."""
        request_id = data.draw(st.sampled_from(self.former))
        before = {name: list(tokens) for name, tokens in self.told.items()}
        if request_id not in self.dispatcher._sent:
            self.do(messages.EventsReceived([Delta(request_id, "late", (77,))], "here"))
            self.do(messages.Returned("a", request_id, EngineDiedError()))
        assert self.told == before

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def garble(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.calls)))
        self.do(messages.Unreadable([request_id, "nobody"]))

    # -- loads

    @precondition(lambda self: self.loads)
    @rule(error=st.sampled_from(LOADS))
    def load(self, error):
        engine_id = self.loads.pop()
        self.do(messages.EngineLoaded(engine_id, error))

    @precondition(lambda self: self.surveys)
    @rule(idle=st.booleans())
    def survey(self, idle):
        self.surveys -= 1
        self.do(
            messages.Surveyed(
                [
                    EngineState(status=EngineStatus.READY, engine_id=id_, idle_s=3.0, n_running=not idle)
                    for id_ in ENGINES
                ]
            )
        )

    @precondition(lambda self: self.unloads)
    @rule(error=st.sampled_from([None, ModelBusyError(1)]))
    def unload(self, error):
        self.do(messages.EngineUnloaded(self.unloads.pop(), error))

    @rule(seconds=st.sampled_from([0.1, 0.6, 6.0, 61.0]))
    def pass_time(self, seconds):
        """Have the timers fire whose time has come, as they were asked for."""
        self.now_s += seconds
        while self.wakes and (at_s := min(self.wakes)) <= self.now_s:
            self.wakes.remove(at_s)
            self.do(messages.WakeDue(at_s))

    # -- always

    @invariant()
    def books_balance(self):
        self.dispatcher.check()
        due_s = min([one.due_s for one in self.dispatcher._open.values()], default=math.inf)
        assert due_s == math.inf or min(self.wakes) <= due_s, "somebody wakes it"
        n_load = sum(one.stage is Stage.LOAD for one in self.dispatcher._open.values())
        n_waiting = sum(model.n_waiting for model in self.dispatcher.models.values())
        assert n_waiting == n_load + len(self.tickets), "who waits for a load is known there"
        open_ids = self.asked.keys() - self.over.keys() - self.left
        assert set(self.dispatcher._open) == open_ids
        for call in self.calls.values():
            assert call[1] in self.asked

    @invariant()
    def each_token_counts_once_elsewhere(self):
        for client_id in list(self.charges):
            one = self.dispatcher._open.get(client_id)
            if one is None or one.engine is None:
                self.settle(client_id)
        told = self.dispatcher.models["big"].elsewhere._sent
        for engine_id, other in ("ab", "ba"):
            assert told[engine_id, "alice"] == self.charged[engine_id], "what was not taken is told again"
            assert 0 <= self.charged[engine_id] <= self.given[other]

    def teardown(self):
        """Engines come back, answer and load what is asked; then everything ends."""
        if not hasattr(self, "dispatcher"):
            return
        for _ in range(100):
            while self.surveys:
                self.survey(idle=False)
            while self.unloads:
                self.unload(None)
            while self.loads:
                self.load(InternalError("broken file"))
            for request_id in sorted(self.calls):
                if (call := self.calls.pop(request_id, None)) is not None:
                    self.do(messages.Returned(call[0], request_id, InternalError("the end")))
            self.pass_time(BACK_S)
            for engine_id, engine in self.dispatcher.engines.items():
                if engine.phase is Phase.RELEASED:
                    self.attend(engine_id, anew=False, loaded=False, file="one", up_s=100.0)
        assert self.asked.keys() == self.over.keys() | self.left
        assert not self.tickets, "who waits for a load hears of it"
        for model in self.dispatcher.models.values():
            assert (model.n_open, model.n_waiting) == (0, 0)


DispatcherMachine.TestCase.settings = settings(stateful_step_count=50)
TestDispatcher = DispatcherMachine.TestCase
