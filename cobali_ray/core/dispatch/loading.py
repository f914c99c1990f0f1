"""Loads on demand: one model at a time; others are unloaded for it, the longest idle first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cobali_ray.core.dispatch.engines import AWAY, LOADABLE, EngineChange, EngineRecord, Phase
from cobali_ray.core.dispatch.messages import Instruction, LoadEngine, Log, Survey, UnloadEngine
from cobali_ray.core.dispatch.models import ModelRecord
from cobali_ray.core.dispatch.scale import RETRY_S
from cobali_ray.core.views.stats import EngineState, EngineStatus
from cobali_ray.errors import CobaliError, LoadingError, ModelTooLargeError, NoRoomError, QueueFullError

RETRY_AFTER_S: Final = 5.0


class LoadJob:
    """Engines of a model that are to be loaded, and the callers that wait for them."""

    def __init__(self, model: ModelRecord, n_engines: int, *, grows: bool) -> None:
        self.model, self.n_engines, self.grows = model, n_engines, grows
        self.waiting: dict[str, None] = {}
        """Ids of requests, and tickets of other callers, in the order in which they came."""
        self.n_loaded = 0
        self.left: list[EngineRecord] = []
        """Engines that were not tried yet."""
        self.engine: EngineRecord | None = None
        """The one that is being loaded."""
        self.error: CobaliError | None = None
        """Why the first one could not be."""
        self.no_room: NoRoomError | None = None
        self.idle: list[EngineState] = []
        """Engines that may make room for it."""


class Loader:
    """The loads of one ingress, one at a time, so that two do not count on the same memory.

    A load goes on when all callers that waited for it have left, as it does inside the engine. Engines that
    are away do not count: the others serve until they are back.
    """

    def __init__(
        self,
        model_of: Mapping[str, ModelRecord],
        instruct: Callable[[Instruction], None],
        done: Callable[[LoadJob, CobaliError | None], None],
    ) -> None:
        """`model_of` has the model of each engine, and `instruct` takes instructions.

        `done` is called with each job that is over, and why it failed.
        """
        self._model_of, self._instruct, self._done = model_of, instruct, done
        self._jobs: list[LoadJob] = []
        """Those that wait for their turn."""
        self._current: LoadJob | None = None

    @property
    def idle(self) -> bool:
        """Whether no load is running or waiting."""
        return self._current is None and not self._jobs

    def want(self, model: ModelRecord, n_engines: int, waiter: str, *, always: bool = False) -> None:
        """Let a caller wait until `n_engines` engines of a model are loaded.

        Raises QueueFullError where too many wait, unless it was accepted before (`always`).
        """
        if model.n_waiting >= model.plan.max_waiting and not always:
            raise QueueFullError("requests", model.plan.max_waiting, RETRY_AFTER_S)
        job = next((job for job in self._all() if job.model is model and job.n_engines == n_engines), None)
        if job is None:
            job = LoadJob(model, n_engines, grows=False)
            self._jobs.append(job)
        job.waiting[waiter] = None
        model.n_waiting += 1
        self._begin()

    def grow(self, model: ModelRecord) -> None:
        """Load one more engine of a model, for no caller; nothing is unloaded for it."""
        model.growing = True
        self._jobs.append(LoadJob(model, 1, grows=True))
        self._begin()

    def leave(self, waiter: str) -> None:
        for job in self._all():
            if waiter in job.waiting:
                del job.waiting[waiter]
                job.model.n_waiting -= 1

    def _all(self) -> Sequence[LoadJob]:
        jobs = self._jobs if self._current is None else [self._current, *self._jobs]
        return [job for job in jobs if not job.grows]

    def _begin(self) -> None:
        while self._current is None and self._jobs:
            job = self._jobs.pop(0)
            if not job.waiting and not job.grows:  # all have left before its turn came
                continue
            # One that failed is tried last: another one may be sound.
            engines = sorted(job.model.engines.values(), key=lambda engine: engine.phase is Phase.FAILED)
            if job.grows:
                engines = [engine for engine in engines if engine.phase in LOADABLE][:1]
            job.left, self._current = engines, job
            self._next(job)

    def _next(self, job: LoadJob) -> None:
        while job.left and job.n_loaded < job.n_engines:
            job.engine = job.left.pop(0)
            if job.engine.phase not in AWAY | {Phase.RELEASED}:
                self._load(job.engine)
                return
        self._finish(job, None if job.n_loaded else job.error or LoadingError())

    def _load(self, engine: EngineRecord) -> None:
        engine.advance(EngineChange.LOAD)
        self._instruct(LoadEngine(engine.engine_id))

    def _finish(self, job: LoadJob, error: CobaliError | None) -> None:
        self._current = None
        job.model.n_waiting -= len(job.waiting)
        if job.grows:
            job.model.growing = False
            engine_id = None if job.engine is None else job.engine.engine_id
            if error is None:
                self._instruct(Log("info", "grew", {"engine_id": engine_id}))
            elif engine_id is not None:
                fields = {"engine_id": engine_id, "error": str(error), "again_s": RETRY_S}
                self._instruct(Log("warning", "cannot_grow", fields))
        self._done(job, error)
        self._begin()

    def _of(self, engine_id: str) -> LoadJob | None:
        """Return the job for which this engine is being loaded."""
        job = self._current
        return job if job and job.engine and job.engine.engine_id == engine_id else None

    def loaded(self, engine_id: str) -> None:
        """Record that an engine is loaded; its phase shows it already."""
        if (job := self._of(engine_id)) is not None:
            job.n_loaded += 1
            self._next(job)

    def failed(self, engine_id: str, error: CobaliError) -> None:
        if (job := self._of(engine_id)) is None or (engine := job.engine) is None:
            return
        if isinstance(error, NoRoomError) and not job.grows:
            job.no_room = error
            self._instruct(Survey())
            return
        away = isinstance(error, LoadingError)
        not_now = away or isinstance(error, NoRoomError | ModelTooLargeError)
        engine.advance(EngineChange.NOT_LOADED if not_now else EngineChange.LOAD_FAILED)
        if job.grows:
            self._finish(job, error)
            return
        if not away:
            job.error = job.error or error
        self._next(job)

    def surveyed(self, states: Sequence[EngineState]) -> None:
        """Choose engines to unload: idle ones of other models that need not stay, the longest idle first."""
        if (job := self._current) is None or job.no_room is None:
            return
        idle = [
            state
            for state in states
            if state.status is EngineStatus.READY
            and not (state.n_running or state.n_queued)
            and (model := self._model_of[state.engine_id]) is not job.model
            and state.engine_id in model.loose
        ]
        job.idle = sorted(idle, key=lambda state: -state.idle_s)
        self._make_room(job, job.no_room)

    def _make_room(self, job: LoadJob, no_room: NoRoomError) -> None:
        if job.idle:
            self._instruct(UnloadEngine(job.idle[0].engine_id))
        elif job.engine is not None:
            job.engine.advance(EngineChange.NOT_LOADED)
            self._finish(job, no_room)

    def unloaded(self, engine_id: str, error: CobaliError | None) -> None:
        """Record that an engine was unloaded, or was not: it got a request meanwhile, or is away."""
        job = self._current
        if job is None or job.no_room is None or not job.idle or job.idle[0].engine_id != engine_id:
            return
        idle, no_room = job.idle.pop(0), job.no_room
        if error is not None:
            self._make_room(job, no_room)
        elif job.engine is not None:
            fields = {"engine_id": engine_id, "idle_s": idle.idle_s, "wanted": job.model.name}
            self._instruct(Log("info", "made_room", fields))
            job.no_room, job.idle = None, []
            self._load(job.engine)
