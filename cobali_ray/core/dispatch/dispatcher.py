"""Dispatcher: one pure state machine per ingress, from events to instructions.

    RequestArrived ─► _place ─► Send ─► EventsReceived … ─► Deliver … End
                      ▲ │
                      │ └─► waits for a load, or for an engine's return, which bring it there again
                      └──── its engine is gone (`_cut`), refused it (`_refused`), or unloaded (`_released`)

`_place` says what becomes of a request that no engine has, `_take` what an engine's event means, `_returned`
what the end of its control call does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, Final

from cobali_ray.core.dispatch.engines import AWAY, LOADABLE, EngineChange, EngineRecord, Phase
from cobali_ray.core.dispatch.loading import RETRY_AFTER_S, Loader, LoadJob
from cobali_ray.core.dispatch.messages import (
    AnswerLoad,
    Attended,
    Cancel,
    Deliver,
    Describe,
    Described,
    EngineLoaded,
    EngineUnloaded,
    Event,
    EventsReceived,
    Fail,
    HangUp,
    Instruction,
    Kill,
    LoadRequested,
    Log,
    Lost,
    Reattend,
    RequestArrived,
    RequestLeft,
    Returned,
    Send,
    Silent,
    Surveyed,
    Unheard,
    Unreadable,
    Wake,
    WakeDue,
)
from cobali_ray.core.dispatch.models import ModelPlan, ModelRecord, cost_of
from cobali_ray.core.dispatch.request import RequestRecord, Stage
from cobali_ray.core.request.events import Computing, Delta, End, EngineEvent, RequestProgress, Vectors
from cobali_ray.core.request.request import Request
from cobali_ray.core.views.progress import named
from cobali_ray.errors import (
    CobaliError,
    DeadlineExceededError,
    EngineDiedError,
    EventsLostError,
    InvariantError,
    LoadingError,
    QueueFullError,
    RefusedError,
    ReleasedError,
    RequestCancelledError,
    SupersededError,
    UnloadedError,
)

BACK_S: Final = 60.0
"""How long a request waits for an engine that is away, in seconds."""
END_GRACE_S: Final = 5.0
"""How long the end may lag behind the return of the control call."""
VERDICT_S: Final = 0.5
"""How long the control call may lag behind an end event that this ingress did not ask for."""


class Dispatcher:
    """All models, engines and open requests of one ingress. Times are the caller's, on one clock."""

    def __init__(self, plans: Iterable[ModelPlan]) -> None:
        self.models = {plan.name: ModelRecord(plan) for plan in plans}
        self.engines = {
            id_: engine for model in self.models.values() for id_, engine in model.engines.items()
        }
        self._model_of = {id_: model for model in self.models.values() for id_ in model.engines}
        self._open: dict[str, RequestRecord] = {}
        self._sent: dict[str, RequestRecord] = {}
        """Requests that an engine has, by the id that it knows. Events with another id are dropped."""
        self._out: list[Instruction] = []
        self._instruct = self._out.append
        self._now_s, self._wake_s = 0.0, inf
        """The time of the event; the next time at which a request's wait is over."""
        self._loader = Loader(self._model_of, self._instruct, self._load_over)
        self._handlers: dict[type, Callable[[Any], None]] = {
            RequestArrived: self._request_arrived,
            RequestLeft: self._request_left,
            Attended: self._attended,
            Described: self._described,
            Silent: self._silent,
            Lost: self._lost,
            EventsReceived: self._events_received,
            Unreadable: self._unreadable,
            Unheard: self._unheard,
            Returned: self._returned,
            LoadRequested: self._load_requested,
            EngineLoaded: self._engine_loaded,
            Surveyed: lambda event: self._loader.surveyed(event.states),
            EngineUnloaded: self._engine_unloaded,
            WakeDue: self._wake_due,
        }

    def handle(self, event: Event, now_s: float) -> Sequence[Instruction]:
        """Take an event; return what is to be done, in this order."""
        self._now_s = now_s
        self._handlers[type(event)](event)
        out = [*self._out]
        self._out.clear()
        return out

    # -- what becomes of a request ----------------------------------------------------------------------

    def _request_arrived(self, event: RequestArrived) -> None:
        request_id, model = event.request.request_id, self.models[event.model]
        if request_id in self._open:
            raise InvariantError(f"request id {request_id} is in use")
        one = self._open[request_id] = RequestRecord(event.request, model, self._now_s)
        model.n_open += 1
        if one.supersedes:
            self._supersede(one)
        self._place(one)

    def _supersede(self, one: RequestRecord) -> None:
        """End older requests that this one supersedes; those of its own call are as old as it is."""
        older = [
            other
            for other in self._open.values()
            if other.supersedes == one.supersedes and other.received_s < one.received_s
        ]
        for other in older:
            other.answered = True  # its engine may have charged its tenant already
            self._unsend(other, cancels=True)
            self._end(other, SupersededError())

    def _place(self, one: RequestRecord) -> None:
        """Decide what becomes of a request that no engine has.

        | its model's engines | the request |
        |---|---|
        | some take requests, have its file, and have not refused it | goes to the best of them |
        | one has refused it, and no other takes it | ends with the refusal that asks for the least patience |
        | one can be loaded | waits for the load; where it had one, its model is gone again: UnloadedError |
        | one has given its memory back in a pause | waits for the end of that, if not too many do |
        | some are away: silent, or being restarted | waits for the first to return, up to BACK_S |
        | all that are there have another file than it began with | ends, the engine that had it is gone |

        Draining engines refuse. An engine that is silent keeps the requests that it has.
        """
        model, engines = one.model, one.model.engines
        there = {
            id_: e for id_, e in engines.items() if e.present and id_ not in one.refusals and one.fits(e)
        }
        phases = {engine.phase for engine in engines.values()}
        if there:
            self._send(one, there)
        elif one.refusals:
            self._end(one, min(one.refusals.values(), key=lambda refusal: refusal.retry_after_s))
        elif phases & LOADABLE and not one.loads:
            try:
                self._wait(one, Stage.LOAD, inf)
                self._loader.want(model, 1, one.request_id)
            except QueueFullError as refusal:
                self._end(one, refusal)
        elif phases & LOADABLE:
            self._end(one, UnloadedError())
        elif Phase.RELEASED in phases:
            self._wait_in_pause(one)
        elif phases & AWAY:
            self._wait(one, Stage.RETURN, self._now_s + BACK_S)
        else:
            self._log("warning", "another_model", request_id=one.request_id)
            self._end(one, EngineDiedError())

    def _wait_in_pause(self, one: RequestRecord) -> None:
        """Let a request wait for the end of a pause, unless it is new and as many wait as may."""
        model = one.model
        n_waiting = sum(
            o.stage is Stage.RETURN for o in self._open.values() if o.model is model and o is not one
        )
        if not one.n_moves and n_waiting >= model.plan.max_waiting:
            self._end(one, QueueFullError("requests", model.plan.max_waiting, RETRY_AFTER_S))
        else:
            self._wait(one, Stage.RETURN, inf)

    def _send(self, one: RequestRecord, there: dict[str, EngineRecord]) -> None:
        model, now_s = one.model, self._now_s
        route = model.choose(one.request, there, now_s)
        if model.needs_more(route, now_s):
            self._loader.grow(model)
        model.router.booked(one.request_id, route, now_s)
        request = one.send(there[route.engine_id], now_s)
        self._sent[one.sent_id] = one
        self._instruct(Send(route.engine_id, one.request_id, request))

    def _unsend(self, one: RequestRecord, *, cancels: bool = False) -> None:
        if one.engine is None:
            return
        engine, one.engine = one.engine, None
        del self._sent[one.sent_id]
        one.model.router.released(one.request_id)
        if one.fair and not one.answered:  # the engine did not take it, so it did not count this either
            one.model.elsewhere.put_back(engine.engine_id, one.request.tenant, one.n_elsewhere)
        if cancels:
            self._instruct(Cancel(engine.engine_id, one.sent_id))

    def _cut(self, one: RequestRecord, *, cancels: bool = True) -> None:
        """Take a request from an engine that is gone: it continues on another one, after the tokens sent."""
        self._unsend(one, cancels=cancels)
        computing = one.computing
        if not one.move(self._now_s):
            self._end(one, EngineDiedError())
            return
        fields = {"n_said": len(one.tokens), "attempt": one.n_moves, "computing": computing}
        self._log("warning", "engine_gone", request_id=one.request_id, **fields)
        self._place(one)

    def _released(self, one: RequestRecord) -> None:
        """Take a request from an engine that frees its memory: it continues later, after the tokens sent."""
        engine, one.computing = one.engine, False
        self._unsend(one)
        if engine is not None:
            self._change(engine, EngineChange.RELEASED)
        if one.move(self._now_s):
            self._place(one)
        else:
            self._end(one, EngineDiedError())

    def _refused(self, one: RequestRecord, error: RefusedError) -> None:
        """Take a request from an engine that refused it, and place it again."""
        engine = one.engine
        if engine is None:
            return
        self._unsend(one)
        if isinstance(error, UnloadedError):
            self._change(engine, EngineChange.UNLOADED)
        else:
            one.refusals[engine.engine_id] = error
        self._place(one)

    def _wait(self, one: RequestRecord, stage: Stage, until_s: float) -> None:
        one.stage, one.due_s = stage, min(until_s, one.deadline_s)
        one.waited = one.waited or stage in {Stage.RETURN, Stage.LOAD}
        self._wake(one.due_s)

    def _end(self, one: RequestRecord, error: CobaliError) -> None:
        """End a request with an error: raised if its client has received nothing, else as the last event."""
        self._close(one)
        if one.begun:
            self._instruct(Deliver(one.request_id, one.broken_off(error, self._now_s)))
        else:
            self._instruct(Fail(one.request_id, error))

    def _close(self, one: RequestRecord) -> None:
        self._unsend(one)
        self._loader.leave(one.request_id)
        del self._open[one.request_id]
        one.model.n_open -= 1

    def _request_left(self, event: RequestLeft) -> None:
        if (one := self._open.get(event.request_id)) is None:
            self._loader.leave(event.request_id)
            return
        one.answered = True  # its engine may have charged its tenant already
        self._unsend(one, cancels=True)
        self._close(one)

    # -- events of requests -----------------------------------------------------------------------------

    def _events_received(self, received: EventsReceived) -> None:
        for event in received.events:
            if (one := self._sent.get(event.request_id)) is not None:
                one.source, one.responded = received.source, True
                self._take(one, event)

    def _take(self, one: RequestRecord, event: EngineEvent) -> None:
        """Handle one event of a request. Most are for its client, some move it to another engine."""
        if isinstance(event, Computing):
            one.computing = event.on
            return
        end = event if isinstance(event, End) else None
        if end is not None and isinstance(end.error, ReleasedError):
            self._released(one)
            return
        if end is not None and isinstance(end.error, EngineDiedError | RequestCancelledError):
            # The engine stops and will be replaced; or the control call broke, and its error says why.
            self._wait(one, Stage.VERDICT, self._now_s + VERDICT_S)
            return
        if one.stage is Stage.VERDICT:
            return
        if isinstance(event, RequestProgress):  # no part of the answer; it may not compute yet
            self._instruct(Deliver(one.request_id, one.enter(event, self._now_s)))
            return
        one.computing = True
        if one.fair and one.engine is not None:
            one.model.elsewhere.note(one.engine.engine_id, one.request.tenant, cost_of(event))
        if not one.answered and (not isinstance(event, Delta) or event.tokens):
            one.answered = True
            if end is not None and isinstance(end.error, QueueFullError):  # it had to make room there
                self._refused(one, end.error)
                return
            stats = None if isinstance(event, Vectors) else event.stats
            if stats is not None and stats.ttft_s is not None:  # else it ended in the queue
                one.model.router.released(one.request_id, stats.n_cached)
        if one.gone_s is not None:
            waited_s, one.gone_s = round(self._now_s - one.gone_s, 3), None
            self._log("info", "request_went_on", request_id=one.request_id, waited_s=waited_s)
        self._instruct(Deliver(one.request_id, one.enter(event, self._now_s)))
        if end is not None:
            self._close(one)

    def _returned(self, event: Returned) -> None:
        """Handle the return of a control call, which travels apart from the events.

        | it returned | the request |
        |---|---|
        | nothing, and its end has come | has ended, and is not known here |
        | nothing, and its end has not | waits for that for END_GRACE_S |
        | nothing, after an end that was not asked for | continues elsewhere: the engine stops |
        | that the engine is gone | continues elsewhere |
        | that its memory was given back in a pause | waits for the end of that |
        | a refusal, before any event | goes elsewhere |
        | any other error | ends with it: the engine is there |
        """
        one = self._sent.get(event.request_id)
        if one is None or one.engine is None or one.engine.engine_id != event.engine_id:
            return  # an engine that refused it returns late
        error = event.error
        if isinstance(error, EngineDiedError) or (error is None and one.stage is Stage.VERDICT):
            self._lose_engine_of(one)
            self._cut(one, cancels=False)
        elif error is None:
            self._wait(one, Stage.LAST_EVENTS, self._now_s + END_GRACE_S)
        elif isinstance(error, ReleasedError):
            self._released(one)
        elif isinstance(error, RefusedError) and not one.responded:
            self._refused(one, error)
        else:
            self._end(one, error)

    def _unreadable(self, event: Unreadable) -> None:
        for request_id in event.request_ids:
            if (one := self._sent.get(request_id)) is not None:
                self._unsend(one, cancels=True)
                self._end(one, EventsLostError())

    def _unheard(self, event: Unheard) -> None:
        engine = self.engines[event.engine_id]
        gone = [o for o in self._sent.values() if o.engine is engine and o.source in event.sources]
        for one in gone:
            self._lose_engine_of(one)
        for one in gone:
            self._cut(one)

    # -- engines ----------------------------------------------------------------------------------------

    def _attended(self, event: Attended) -> None:
        engine, found = self.engines[event.engine_id], event.attendance
        before = engine.attendance
        is_new = before is not None and found.incarnation_id != before.incarnation_id
        if is_new and found.up_s < self._now_s - event.asked_s:
            # It began after its predecessor had answered, which was not replaced, then: it died just as it
            # was called, and Serve sent the call to this one instead.
            self._lose(engine, EngineChange.ENDED, event.asked_s)
        if (away_s := engine.away_s(self._now_s)) is not None:
            fields = {"away_s": round(away_s, 3), "n_restarts": found.n_restarts}
            self._log("info", "engine_back", engine_id=engine.engine_id, **fields)
        engine.attendance = found
        if before is not None and (is_new or found.model != before.model):
            self._instruct(Describe(engine.engine_id))
        change = EngineChange.RELEASED if found.released else EngineChange.FOUND_EMPTY
        self._change(engine, EngineChange.FOUND if found.loaded and engine.described else change)
        self._publish(engine)
        if before is not None and is_new and found.model == before.model:
            # They move to a successor that goes on with them. Who heard nothing may be with that already.
            for one in self._sent_to(engine, before.incarnation_id):
                if one.responded:
                    self._cut(one)

    def _described(self, event: Described) -> None:
        engine = self.engines[event.engine_id]
        engine.described = True
        if engine.attendance is not None and engine.attendance.loaded and engine.phase is Phase.UNLOADED:
            self._change(engine, EngineChange.FOUND)

    def _silent(self, event: Silent) -> None:
        """Handle an engine's silence: at first it only gets no requests, in the end it is taken for dead."""
        engine = self.engines[event.engine_id]
        known = engine.attendance
        if event.ended:
            self._give_up(engine, event.asked_s)
        elif engine.phase is Phase.STALLED:
            if known is not None and event.silent_s >= engine.stall_timeout_s:
                self._log("error", "engine_given_up", engine_id=engine.engine_id, silent_s=event.silent_s)
                if not known.wire_key:  # else it is a process of another machine
                    self._instruct(Kill(engine.engine_id, known.pid, known.began))
                self._give_up(engine, event.asked_s)
        elif engine.phase in AWAY:  # asked anew, as its successor may be there
            self._instruct(Reattend(engine.engine_id))
        else:
            self._lose(engine, EngineChange.SILENT, event.asked_s)

    def _give_up(self, engine: EngineRecord, since_s: float) -> None:
        """Take an engine for dead. Serve would wait for 15 s, and Ray ends no process that hangs."""
        self._lose(engine, EngineChange.ENDED, since_s)
        self._instruct(Reattend(engine.engine_id))
        for one in self._sent_to(engine, engine.incarnation_id):
            self._cut(one)

    def _sent_to(self, engine: EngineRecord, incarnation_id: str) -> list[RequestRecord]:
        sent = self._sent.values()
        return [one for one in sent if one.engine is engine and one.incarnation_id == incarnation_id]

    def _lost(self, event: Lost) -> None:
        self._lose(self.engines[event.engine_id], EngineChange.ENDED, self._now_s)

    def _lose_engine_of(self, one: RequestRecord) -> None:
        """Record that the process that has a request is gone; its successor is not affected."""
        if one.engine is not None and one.incarnation_id == one.engine.incarnation_id:
            self._lose(one.engine, EngineChange.ENDED, self._now_s)

    def _lose(self, engine: EngineRecord, change: EngineChange, since_s: float) -> None:
        was_away, was_released = engine.phase in AWAY, engine.phase is Phase.RELEASED
        if engine.lose(change, since_s):
            status = "stalled" if engine.phase is Phase.STALLED else "restarting"
            lost = {"lost": engine.lost_device} if engine.lost_device else {}
            self._log("warning", "engine_away", engine_id=engine.engine_id, status=status, **lost)
            model = self._model_of[engine.engine_id]
            model.router.left(engine.engine_id)
            if not was_away:
                self._instruct(HangUp(engine.engine_id))
            if was_released:  # the pause has ended with it, and nobody waits for ever
                self._place_waiting(model, {Stage.RETURN})

    def _change(self, engine: EngineRecord, change: EngineChange) -> None:
        """Apply a change of an engine that answers; place the requests that waited for it."""
        model = self._model_of[engine.engine_id]
        if not engine.advance(change):
            return
        self._publish(engine)
        self._place_waiting(model, {Stage.RETURN, Stage.LOAD} if engine.present else {Stage.RETURN})

    def _place_waiting(self, model: ModelRecord, stages: set[Stage]) -> None:
        for one in [o for o in self._open.values() if o.model is model and o.stage in stages]:
            if one.stage is Stage.LOAD:
                self._loader.leave(one.request_id)
                one.loads = True
            self._place(one)

    def _publish(self, engine: EngineRecord) -> None:
        """Give the router an engine's last report of its load, if it is present."""
        router = self._model_of[engine.engine_id].router
        if not engine.present:
            router.left(engine.engine_id)
        elif engine.attendance is not None and engine.attendance.busy is not None:
            router.published(engine.engine_id, engine.attendance.busy, self._now_s)

    # -- loads ------------------------------------------------------------------------------------------

    def _load_requested(self, event: LoadRequested) -> None:
        try:
            self._loader.want(self.models[event.model], event.n_engines, event.ticket)
        except QueueFullError as refusal:
            self._instruct(AnswerLoad(event.ticket, refusal))

    def _engine_loaded(self, event: EngineLoaded) -> None:
        if event.error is not None:
            self._loader.failed(event.engine_id, event.error)
            return
        engine = self.engines[event.engine_id]
        engine.described = True
        if engine.attendance is not None:
            engine.attendance = engine.attendance._replace(loaded=True)
        self._change(engine, EngineChange.LOADED)
        self._loader.loaded(event.engine_id)

    def _engine_unloaded(self, event: EngineUnloaded) -> None:
        if event.error is None:
            self._change(self.engines[event.engine_id], EngineChange.UNLOADED)
        self._loader.unloaded(event.engine_id, event.error)

    def _load_over(self, job: LoadJob, error: CobaliError | None) -> None:
        if job.grows and error is not None:
            job.model.demand.failed(self._now_s)
        for who in list(job.waiting):
            one = self._open.get(who)
            if one is None:
                self._instruct(AnswerLoad(who, error))
            elif error is None:
                one.loads = True
                self._place(one)
            elif isinstance(error, LoadingError):  # it went away meanwhile, and another one takes its place
                if one.move(self._now_s):
                    self._place(one)
                else:
                    self._end(one, EngineDiedError())
            else:
                self._end(one, error)

    # -- time -------------------------------------------------------------------------------------------

    def _wake(self, at_s: float) -> None:
        if at_s < self._wake_s:
            self._wake_s = at_s
            self._instruct(Wake(at_s))

    def _wake_due(self, event: WakeDue) -> None:
        """End the waits that are over."""
        self._now_s = max(self._now_s, event.at_s)  # timers may be a moment early
        if event.at_s == self._wake_s:
            self._wake_s = inf
        due = [one for one in self._open.values() if one.due_s <= self._now_s]
        for one in due:
            if one.stage is Stage.VERDICT:
                self._lose_engine_of(one)
        for one in due:
            if one.stage is Stage.VERDICT:
                self._cut(one)
            elif one.stage is Stage.LAST_EVENTS:
                self._end(one, EventsLostError())
            elif self._now_s >= one.deadline_s:
                self._end(one, DeadlineExceededError(one.request.timeout_s or 0.0))
            else:
                self._end(one, EngineDiedError() if one.n_moves else LoadingError())
        self._wake(min([one.due_s for one in self._open.values()], default=inf))

    def _log(self, level: Any, event: str, **fields: Any) -> None:
        self._instruct(Log(level, event, fields))

    # -- queries ----------------------------------------------------------------------------------------

    def find(self, asked: str, tenant: str) -> list[RequestRecord]:
        """Return a tenant's open requests of this name; see `named`."""
        return [
            one
            for one in self._open.values()
            if isinstance(one.request, Request)
            and one.request.tenant == tenant
            and named(one.request_id, one.request.x_request_id, asked)
        ]

    def check(self) -> None:
        """Raise InvariantError where the books do not balance."""
        sent = {one.sent_id: one for one in self._open.values() if one.engine is not None}
        if sent != self._sent:
            raise InvariantError(f"sent are {sorted(self._sent)}, but by their records {sorted(sent)}")
        for one in self._open.values():
            if (one.engine is None) != (one.stage in {Stage.RETURN, Stage.LOAD}):
                raise InvariantError(f"{one.request_id} is {one.stage.name} at {one.engine}")
        for model in self.models.values():
            mine = [one for one in self._open.values() if one.model is model]
            if model.n_open != len(mine):
                raise InvariantError(f"{model.n_open} requests are open, and {len(mine)} are known")
        if self._loader.idle and any(one.stage is Stage.LOAD for one in self._open.values()):
            raise InvariantError("a request waits for a load that nobody does")
        if self._loader.idle and any(engine.phase is Phase.LOADING for engine in self.engines.values()):
            raise InvariantError("an engine is loading for no job")
