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

from cobali_ray.core.dispatch import messages
from cobali_ray.core.dispatch.engines import AWAY, LOADABLE, EngineChange, EngineRecord, Phase
from cobali_ray.core.dispatch.loading import RETRY_AFTER_S, Loader, LoadJob
from cobali_ray.core.dispatch.models import ModelPlan, ModelRecord, cost_of
from cobali_ray.core.dispatch.request import RequestRecord, Stage
from cobali_ray.core.request.events import Computing, Delta, End, EngineEvent, RequestProgress, Vectors
from cobali_ray.core.request.request import Request
from cobali_ray.core.views.progress import named
from cobali_ray.errors import (
    BadRequestError,
    CobaliError,
    DeadlineExceededError,
    DrainingError,
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
        self._out: list[messages.Instruction] = []
        self._instruct = self._out.append
        self._now_s, self._wake_s = 0.0, inf
        """The time of the event; the next time at which a request's wait is over."""
        self._loader = Loader(self._model_of, self._instruct, self._load_over)
        self._handlers: dict[type, Callable[[Any], None]] = {
            messages.RequestArrived: self._request_arrived,
            messages.RequestLeft: self._request_left,
            messages.Attended: self._attended,
            messages.Described: self._described,
            messages.Silent: self._silent,
            messages.Lost: self._lost,
            messages.EventsReceived: self._events_received,
            messages.Unreadable: self._unreadable,
            messages.Unheard: self._unheard,
            messages.Returned: self._returned,
            messages.LoadRequested: self._load_requested,
            messages.EngineLoaded: self._engine_loaded,
            messages.Surveyed: lambda event: self._loader.surveyed(event.states),
            messages.EngineUnloaded: self._engine_unloaded,
            messages.WakeDue: self._wake_due,
            messages.ServerStopping: self._server_stopping,
        }
        self._stopping = False
        """Whether the server stops: its engines refuse new requests, and none waits for an engine."""

    def handle(self, event: messages.Event, now_s: float) -> Sequence[messages.Instruction]:
        """Take an event; return what is to be done, in this order."""
        self._now_s = now_s
        self._handlers[type(event)](event)
        out = [*self._out]
        self._out.clear()
        return out

    # -- what becomes of a request ----------------------------------------------------------------------

    def _request_arrived(self, event: messages.RequestArrived) -> None:
        request_id, model = event.request.request_id, self.models[event.model]
        if request_id in self._open:
            raise InvariantError(f"request id {request_id} is in use")
        record = self._open[request_id] = RequestRecord(event.request, model, self._now_s)
        record.read_for = {id_: e.words_of for id_, e in model.engines.items() if e.words_of}
        model.n_open += 1
        if record.supersedes:
            self._supersede(record)
        self._place(record)

    def _supersede(self, record: RequestRecord) -> None:
        """End older requests that this one supersedes; those of its own call are as old as it is."""
        older = [
            other
            for other in self._open.values()
            if other.supersedes == record.supersedes and other.received_s < record.received_s
        ]
        for other in older:
            other.answered = True  # its engine may have charged its tenant already
            self._unsend(other, cancels=True)
            self._end(other, SupersededError())

    def _place(self, record: RequestRecord) -> None:
        """Decide what becomes of a request that no engine has.

        | its model's engines | the request |
        |---|---|
        | some take requests, have its file, and have not refused it | goes to the best of them |
        | one has refused it, and no other takes it | ends with the refusal of the shortest Retry-After |
        | none, and the server stops | ends with DrainingError |
        | one can be loaded | waits for the load; after one already, ends with UnloadedError |
        | one has given its memory back in a pause | waits for the end of that, if not too many do |
        | some are away: silent, or being restarted | waits for the first to return, up to BACK_S |
        | those that are there have another file, or smaller slots, than it began with | EngineDiedError |

        Draining engines refuse. An engine that is silent keeps the requests that it has.
        """
        model, engines = record.model, record.model.engines
        there = {
            id_: e
            for id_, e in engines.items()
            if e.present and id_ not in record.refusals and record.fits(e)
        }
        phases = {engine.phase for engine in engines.values()}
        if there:
            self._send(record, there)
        elif record.refusals:
            self._end(record, min(record.refusals.values(), key=lambda refusal: refusal.retry_after_s))
        elif self._stopping:
            self._end(record, DrainingError())
        elif phases & LOADABLE and not record.loads:
            try:
                self._wait(record, Stage.LOAD, inf)
                self._loader.want(model, 1, record.request_id, always=record.n_moves > 0)
            except QueueFullError as refusal:
                self._end(record, refusal)
        elif phases & LOADABLE:
            self._end(record, UnloadedError())
        elif Phase.RELEASED in phases:
            self._wait_in_pause(record)
        elif phases & AWAY:
            self._wait(record, Stage.RETURN, self._now_s + BACK_S)
        else:
            self._log("warning", "another_model", request_id=record.request_id)
            self._end(record, EngineDiedError())

    def _wait_in_pause(self, record: RequestRecord) -> None:
        """Let a request wait for the end of a pause, unless it is new and too many wait already."""
        model = record.model
        n_waiting = sum(
            other.stage is Stage.RETURN
            for other in self._open.values()
            if other.model is model and other is not record
        )
        if not record.n_moves and n_waiting >= model.plan.max_waiting:
            self._end(record, QueueFullError("requests", model.plan.max_waiting, RETRY_AFTER_S))
        else:
            self._wait(record, Stage.RETURN, inf)

    def _send(self, record: RequestRecord, there: dict[str, EngineRecord]) -> None:
        model, now_s = record.model, self._now_s
        route = model.choose(record.request, there, now_s)
        if model.needs_more(route, now_s):
            self._loader.grow(model)
        model.router.booked(record.request_id, route, now_s)
        request = record.send(there[route.engine_id], now_s)
        self._sent[record.sent_id] = record
        self._wake(record.due_s)
        self._instruct(messages.Send(route.engine_id, record.request_id, request))

    def _unsend(self, record: RequestRecord, *, cancels: bool = False) -> None:
        if record.engine is None:
            return
        engine, record.engine = record.engine, None
        del self._sent[record.sent_id]
        record.model.router.released(record.request_id)
        if record.fair and not record.answered:  # the engine did not take it, so it did not count this either
            record.model.elsewhere.put_back(engine.engine_id, record.request.tenant, record.n_elsewhere)
        if cancels:
            self._instruct(messages.Cancel(engine.engine_id, record.sent_id))

    def _cut(self, record: RequestRecord, *, cancels: bool = True) -> None:
        """Take a request from an engine that is gone: it continues on another one, after the tokens sent."""
        self._unsend(record, cancels=cancels)
        self._move(record, logs=True)

    def _move(self, record: RequestRecord, *, logs: bool = False) -> None:
        """Have a request go on with another engine, unless it has lost too many."""
        computing = record.computing
        if not record.move(self._now_s):
            self._end(record, EngineDiedError())
            return
        if logs:
            fields = {"n_said": len(record.tokens), "attempt": record.n_moves, "computing": computing}
            self._log("warning", "engine_gone", request_id=record.request_id, **fields)
        self._place(record)

    def _released(self, record: RequestRecord) -> None:
        """Take a request from an engine that frees its memory: it continues later, after the tokens sent."""
        engine, record.computing = record.engine, False
        self._unsend(record)
        if engine is not None:
            self._change(engine, EngineChange.RELEASED)
        self._move(record)

    def _refused(self, record: RequestRecord, error: RefusedError) -> None:
        """Take a request from an engine that refused it, and place it again."""
        engine = record.engine
        if engine is None:
            return
        self._unsend(record)
        if isinstance(error, UnloadedError):
            self._change(engine, EngineChange.UNLOADED)
        else:
            record.refusals[engine.engine_id] = error
        self._place(record)

    def _wait(self, record: RequestRecord, stage: Stage, until_s: float) -> None:
        over = stage in {Stage.LAST_EVENTS, Stage.VERDICT}  # then its engine has kept the deadline, or not
        record.stage, record.due_s = stage, until_s if over else min(until_s, record.deadline_s)
        record.waited = record.waited or stage in {Stage.RETURN, Stage.LOAD}
        self._wake(record.due_s)

    def _end(self, record: RequestRecord, error: CobaliError) -> None:
        """End a request with an error: raised if its client has received nothing, else as the last event."""
        self._close(record)
        if record.begun:
            self._instruct(messages.Deliver(record.request_id, record.broken_off(error, self._now_s)))
        else:
            self._instruct(messages.Fail(record.request_id, error))

    def _close(self, record: RequestRecord) -> None:
        self._unsend(record)
        self._loader.leave(record.request_id)
        del self._open[record.request_id]
        record.model.n_open -= 1

    def _request_left(self, event: messages.RequestLeft) -> None:
        if (record := self._open.get(event.request_id)) is None:
            self._loader.leave(event.request_id)
            return
        record.answered = True  # its engine may have charged its tenant already
        self._unsend(record, cancels=True)
        self._close(record)

    def _server_stopping(self, _: messages.ServerStopping) -> None:
        self._stopping = True
        for record in [*self._open.values()]:
            if record.stage in {Stage.RETURN, Stage.LOAD}:
                self._end(record, DrainingError())

    # -- events of requests -----------------------------------------------------------------------------

    def _events_received(self, received: messages.EventsReceived) -> None:
        for event in received.events:
            if (record := self._sent.get(event.request_id)) is not None:
                record.source, record.responded, record.accepted = received.source, True, True
                self._take(record, event)

    def _take(self, record: RequestRecord, event: EngineEvent) -> None:
        """Handle one event of a request. Most are for its client, some move it to another engine."""
        if isinstance(event, Computing):
            record.computing = event.on
            return
        end = event if isinstance(event, End) else None
        if end is not None and isinstance(end.error, ReleasedError):
            self._released(record)
            return
        if end is not None and isinstance(end.error, EngineDiedError | RequestCancelledError):
            # The engine stops and will be replaced; or the control call broke, and its error says why.
            self._wait(record, Stage.VERDICT, self._now_s + VERDICT_S)
            return
        if record.stage is Stage.VERDICT:
            return
        if isinstance(event, RequestProgress):  # no part of the answer; it may not compute yet
            self._instruct(messages.Deliver(record.request_id, record.enter(event, self._now_s)))
            return
        record.computing = True
        if record.fair and record.engine is not None:
            record.model.elsewhere.note(record.engine.engine_id, record.request.tenant, cost_of(event))
        if not record.answered and (not isinstance(event, Delta) or event.tokens):
            record.answered = True
            if end is not None and isinstance(end.error, QueueFullError):  # it had to make room there
                self._refused(record, end.error)
                return
            stats = None if isinstance(event, Vectors) else event.stats
            if stats is not None and stats.ttft_s is not None:  # else it ended in the queue
                record.model.router.released(record.request_id, stats.n_cached)
        if record.engine_lost_s is not None:
            waited_s, record.engine_lost_s = round(self._now_s - record.engine_lost_s, 3), None
            self._log("info", "request_went_on", request_id=record.request_id, waited_s=waited_s)
        self._instruct(messages.Deliver(record.request_id, record.enter(event, self._now_s)))
        if end is not None:
            self._close(record)

    def _returned(self, event: messages.Returned) -> None:
        """Handle the return of a control call, which travels apart from the events.

        | it returned | the request |
        |---|---|
        | nothing, and its end has come | has ended, and is not known here |
        | nothing, and its end has not | waits for that for END_GRACE_S |
        | nothing, after an end that was not asked for | continues elsewhere: the engine stops |
        | that the engine is gone | continues elsewhere |
        | that its memory was given back in a pause | waits for the end of that |
        | a refusal, before any event | goes elsewhere |
        | that it is wrong, though another engine took it | goes elsewhere: this one has smaller slots |
        | any other error | ends with it: the engine is there |
        """
        record = self._sent.get(event.request_id)
        if record is None or record.engine is None or record.engine.engine_id != event.engine_id:
            return  # an engine that refused it returns late
        error = event.error
        if isinstance(error, EngineDiedError) or (error is None and record.stage is Stage.VERDICT):
            self._lose_engine_of(record)
            self._cut(record, cancels=False)
        elif error is None:
            self._wait(record, Stage.LAST_EVENTS, self._now_s + END_GRACE_S)
        elif isinstance(error, ReleasedError):
            self._released(record)
        elif isinstance(error, RefusedError) and not record.responded:
            self._refused(record, error)
        elif isinstance(error, BadRequestError) and record.accepted and not record.responded:
            # Another engine accepted it.
            self._log("warning", "does_not_fit", request_id=record.request_id, error=str(error))
            record.too_small.add(event.engine_id)
            self._unsend(record)
            self._place(record)
        else:
            self._end(record, error)

    def _unreadable(self, event: messages.Unreadable) -> None:
        for request_id in event.request_ids:
            if (record := self._sent.get(request_id)) is not None:
                self._unsend(record, cancels=True)
                self._end(record, EventsLostError())

    def _unheard(self, event: messages.Unheard) -> None:
        engine = self.engines[event.engine_id]
        affected = [
            record
            for record in self._sent.values()
            if record.engine is engine and record.source in event.sources
        ]
        for record in affected:
            self._lose_engine_of(record)
        for record in affected:
            self._cut(record)

    # -- engines ----------------------------------------------------------------------------------------

    def _attended(self, event: messages.Attended) -> None:
        engine, attendance = self.engines[event.engine_id], event.attendance
        before = engine.attendance
        is_new = before is not None and attendance.incarnation_id != before.incarnation_id
        if is_new and attendance.up_s < self._now_s - event.called_s:
            # It began after its predecessor had answered, which was not replaced, then: it died just as it
            # was called, and Serve sent the call to this one instead.
            self._lose(engine, EngineChange.ENDED, event.called_s)
        if (away_s := engine.away_s(self._now_s)) is not None:
            fields = {"away_s": round(away_s, 3), "n_restarts": attendance.n_restarts}
            self._log("info", "engine_back", engine_id=engine.engine_id, **fields)
        engine.attendance = attendance
        if before is not None and (is_new or attendance.model != before.model):
            self._instruct(messages.Describe(engine.engine_id))
            if attendance.model != before.model:  # no prompt is to be read with another file's vocabulary
                engine.described = False
        change = EngineChange.RELEASED if attendance.released else EngineChange.FOUND_EMPTY
        self._change(engine, EngineChange.FOUND if attendance.loaded and engine.described else change)
        if attendance.released:  # a load that was begun ends with the pause, and no other waits for that
            self._loader.failed(engine.engine_id, ReleasedError())
        self._publish(engine)
        if before is not None and is_new and attendance.model == before.model:
            # They move to the successor. Those that have had no event may be with that already.
            for record in self._sent_to(engine, before.incarnation_id):
                if record.responded:
                    self._cut(record)

    def _described(self, event: messages.Described) -> None:
        engine = self.engines[event.engine_id]
        engine.described = True
        if event.model and engine.attendance is not None:
            engine.attendance = engine.attendance._replace(model=event.model)
        engine.words_of = engine.model
        if engine.attendance is not None and engine.attendance.loaded and engine.phase is Phase.UNLOADED:
            self._change(engine, EngineChange.FOUND)

    def _silent(self, event: messages.Silent) -> None:
        """Handle an engine's silence: at first it only gets no requests, in the end it is taken for dead."""
        engine = self.engines[event.engine_id]
        attendance = engine.attendance
        if event.ended:
            self._give_up(engine, event.called_s)
        elif engine.phase is Phase.STALLED:
            if attendance is not None and event.silent_s >= engine.stall_timeout_s:
                self._log("error", "engine_given_up", engine_id=engine.engine_id, silent_s=event.silent_s)
                if not attendance.wire_key:  # else it is a process of another machine
                    self._instruct(messages.Kill(engine.engine_id, attendance.pid, attendance.began))
                self._give_up(engine, event.called_s)
        elif engine.phase in AWAY:  # called anew, as its successor may be there
            self._instruct(messages.Reattend(engine.engine_id))
        else:
            self._lose(engine, EngineChange.SILENT, event.called_s)

    def _give_up(self, engine: EngineRecord, since_s: float) -> None:
        """Take an engine for dead. Serve would wait for 15 s, and Ray ends no process that hangs."""
        self._lose(engine, EngineChange.ENDED, since_s)
        self._instruct(messages.Reattend(engine.engine_id))
        for record in self._sent_to(engine, engine.incarnation_id):
            self._cut(record)

    def _sent_to(self, engine: EngineRecord, incarnation_id: str) -> list[RequestRecord]:
        sent = self._sent.values()
        return [
            record for record in sent if record.engine is engine and record.incarnation_id == incarnation_id
        ]

    def _lost(self, event: messages.Lost) -> None:
        self._lose(self.engines[event.engine_id], EngineChange.ENDED, self._now_s)

    def _lose_engine_of(self, record: RequestRecord) -> None:
        """Record that the process that has a request is gone; its successor is not affected."""
        if record.engine is not None and record.incarnation_id == record.engine.incarnation_id:
            self._lose(record.engine, EngineChange.ENDED, self._now_s)

    def _lose(self, engine: EngineRecord, change: EngineChange, since_s: float) -> None:
        was_away, was_released = engine.phase in AWAY, engine.phase is Phase.RELEASED
        if engine.lose(change, since_s):
            status = "stalled" if engine.phase is Phase.STALLED else "restarting"
            lost = {"lost": engine.lost_device} if engine.lost_device else {}
            self._log("warning", "engine_away", engine_id=engine.engine_id, status=status, **lost)
            model = self._model_of[engine.engine_id]
            model.router.left(engine.engine_id)
            if not was_away:
                self._instruct(messages.HangUp(engine.engine_id))
            if was_released:  # the pause has ended with it, and no request must wait for ever
                self._place_waiting(model, {Stage.RETURN})

    def _change(self, engine: EngineRecord, change: EngineChange) -> None:
        """Apply a change of an engine that answers; place the requests that waited for it."""
        model = self._model_of[engine.engine_id]
        if not engine.advance(change):
            return
        self._publish(engine)
        self._place_waiting(model, {Stage.RETURN, Stage.LOAD} if engine.present else {Stage.RETURN})

    def _place_waiting(self, model: ModelRecord, stages: set[Stage]) -> None:
        waiting = [
            record for record in self._open.values() if record.model is model and record.stage in stages
        ]
        for record in waiting:
            if record.stage is Stage.LOAD:
                self._loader.leave(record.request_id)
                record.loads = True
            self._place(record)

    def _publish(self, engine: EngineRecord) -> None:
        """Give the router an engine's last report of its load, if it is present."""
        router = self._model_of[engine.engine_id].router
        if not engine.present:
            router.left(engine.engine_id)
        elif engine.attendance is not None and engine.attendance.busy is not None:
            router.published(engine.engine_id, engine.attendance.busy, self._now_s)

    # -- loads ------------------------------------------------------------------------------------------

    def _load_requested(self, event: messages.LoadRequested) -> None:
        try:
            self._loader.want(self.models[event.model], event.n_engines, event.ticket)
        except QueueFullError as refusal:
            self._instruct(messages.AnswerLoad(event.ticket, refusal))

    def _engine_loaded(self, event: messages.EngineLoaded) -> None:
        if event.error is not None:
            self._loader.failed(event.engine_id, event.error)
            return
        engine = self.engines[event.engine_id]
        engine.described, engine.words_of = True, engine.model
        if engine.attendance is not None:
            engine.attendance = engine.attendance._replace(loaded=True)
        self._change(engine, EngineChange.LOADED)
        if engine.present:
            self._loader.loaded(event.engine_id)
        else:  # it ended as soon as it was loaded
            self._loader.failed(event.engine_id, LoadingError())

    def _engine_unloaded(self, event: messages.EngineUnloaded) -> None:
        if event.error is None:
            self._change(self.engines[event.engine_id], EngineChange.UNLOADED)
        self._loader.unloaded(event.engine_id, event.error)

    def _load_over(self, job: LoadJob, error: CobaliError | None) -> None:
        if job.grows and error is not None:
            job.model.demand.failed(self._now_s)
        for waiter in list(job.waiting):
            record = self._open.get(waiter)
            if record is None:
                self._instruct(messages.AnswerLoad(waiter, error))
            elif error is None:
                record.loads = True
                self._place(record)
            elif isinstance(error, LoadingError):  # it went away meanwhile, and another one takes its place
                self._move(record)
            else:
                self._end(record, error)

    # -- time -------------------------------------------------------------------------------------------

    def _wake(self, at_s: float) -> None:
        if at_s < self._wake_s:
            self._wake_s = at_s
            self._instruct(messages.Wake(at_s))

    def _wake_due(self, event: messages.WakeDue) -> None:
        """End the waits that are over."""
        self._now_s = max(self._now_s, event.at_s)  # timers may be a moment early
        if event.at_s == self._wake_s:
            self._wake_s = inf
        due = [record for record in self._open.values() if record.due_s <= self._now_s]
        for record in due:
            if record.stage is Stage.VERDICT:
                self._lose_engine_of(record)
        for record in due:
            if record.stage is Stage.VERDICT:
                self._cut(record)
            elif record.stage is Stage.LAST_EVENTS:
                self._end(record, EventsLostError())
            elif self._now_s >= record.deadline_s:
                self._unsend(record, cancels=True)
                self._end(record, DeadlineExceededError(record.request.timeout_s or 0.0))
            else:
                self._end(record, EngineDiedError() if record.n_moves else LoadingError())
        self._wake(min([record.due_s for record in self._open.values()], default=inf))

    def _log(self, level: Any, event: str, **fields: Any) -> None:
        self._instruct(messages.Log(level, event, fields))

    # -- queries ----------------------------------------------------------------------------------------

    def find(self, name: str, tenant: str) -> list[RequestRecord]:
        """Return a tenant's open requests of this name; see `named`."""
        return [
            record
            for record in self._open.values()
            if isinstance(record.request, Request)
            and record.request.tenant == tenant
            and named(record.request_id, record.request.x_request_id, name)
        ]

    def check(self) -> None:
        """Raise InvariantError where the books do not balance."""
        sent = {record.sent_id: record for record in self._open.values() if record.engine is not None}
        if sent != self._sent:
            raise InvariantError(f"sent are {sorted(self._sent)}, but by their records {sorted(sent)}")
        for record in self._open.values():
            if (record.engine is None) != (record.stage in {Stage.RETURN, Stage.LOAD}):
                raise InvariantError(f"{record.request_id} is {record.stage.name} at {record.engine}")
        for model in self.models.values():
            mine = [record for record in self._open.values() if record.model is model]
            if model.n_open != len(mine):
                raise InvariantError(f"{model.n_open} requests are open, and {len(mine)} are known")
        if self._loader.idle and any(record.stage is Stage.LOAD for record in self._open.values()):
            raise InvariantError("a request waits for a load that nobody does")
        if self._loader.idle and any(engine.phase is Phase.LOADING for engine in self.engines.values()):
            raise InvariantError("an engine is loading for no job")
