"""Loader: models that are loaded when they are asked for, and make room for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

import structlog

from cobali_ray.api.apart import begin_apart
from cobali_ray.api.client import EngineClient
from cobali_ray.core.scale import AGAIN_S
from cobali_ray.core.stats import EngineState, EngineStatus
from cobali_ray.errors import CobaliError, LoadingError, NoRoomError, QueueFullError

_log = structlog.get_logger(__name__)

RETRY_AFTER_S: Final = 5.0
_LOADABLE: Final = frozenset({EngineStatus.UNLOADED, EngineStatus.FAILED, EngineStatus.READY})
"""How an engine is that can be had by loading; READY where another ingress has loaded it."""


class Model(Protocol):
    """What loading needs of a model; a model asks its loader, and a loader knows all models."""

    max_waiting: int
    n_waiting: int

    @property
    def names(self) -> Sequence[str]: ...
    @property
    def engines(self) -> Mapping[str, EngineClient]: ...
    @property
    def loose(self) -> Sequence[str]: ...
    async def states(self) -> Sequence[EngineState]: ...


class Loader:
    """Loads one model at a time, so that two do not count on the same memory. One per process."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = models
        self._turn = asyncio.Lock()
        self._loading: dict[tuple[Model, int], asyncio.Task[None]] = {}
        """The last one of each, for so many engines."""

    async def load(self, model: Model, n_wanted: int = 1) -> None:
        """Wait until so many of a model's engines are loaded; others make room, the longest idle first.

        Those that are away do not count: the others serve until they are back. All who wait for the same wait
        for one loading, which goes on when they leave, as the engine's does.

        Raises:
            QueueFullError: as many requests as its queue may hold wait for it already.
            LoadingError: none of its engines is there.
            NoRoomError: what has the room is at work, or is to stay.
            ModelTooLargeError: it can never fit.
        """
        if model.n_waiting >= model.max_waiting:
            raise QueueFullError("requests", model.max_waiting, RETRY_AFTER_S)
        model.n_waiting += 1
        try:
            await asyncio.shield(self._loading_of(model, n_wanted))
        finally:
            model.n_waiting -= 1

    def _loading_of(self, model: Model, n_wanted: int) -> asyncio.Task[None]:
        task = self._loading.get((model, n_wanted))
        if task is None or task.done():
            task = begin_apart(self._load(model, n_wanted))
            self._loading[model, n_wanted] = task
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # who waited was told
        return task

    async def _load(self, model: Model, n_wanted: int) -> None:
        async with self._turn:
            if not model.n_waiting:  # all have left before its turn came
                return
            n_loaded = 0
            for engine in model.engines.values():
                if n_loaded < n_wanted:
                    with suppress(LoadingError):
                        await self._load_one(engine, model)
                        n_loaded += 1
            if not n_loaded:
                raise LoadingError

    async def _load_one(self, engine: EngineClient, model: Model) -> None:
        while True:
            try:
                await engine.load()
            except NoRoomError:
                if not await self._make_room(model):
                    raise
            else:
                return

    async def _make_room(self, wanted: Model) -> bool:
        """Unload the engine of another model that has been idle for longest, if one may be; say whether."""
        idle = [
            (state.idle_s, state.engine_id, model)
            for model in self._models
            if model is not wanted
            for state in await model.states()
            if state.engine_id in model.loose
            and state.status is EngineStatus.READY
            and not (state.n_running or state.n_queued)
        ]
        for idle_s, engine_id, model in sorted(idle, key=lambda found: -found[0]):
            with suppress(CobaliError):  # a request has come in between, or it is away
                await model.engines[engine_id].unload()
                _log.info("made_room", engine_id=engine_id, idle_s=idle_s, wanted=wanted.names[0])
                return True
        return False

    async def grow(self, model: Model) -> bool:
        """Have one more engine of a model that has some; say whether. For that nothing makes room."""
        async with self._turn:
            for state in await model.states():
                engine = model.engines[state.engine_id]
                if engine.present or state.status not in _LOADABLE:
                    continue
                try:
                    await engine.load()
                except CobaliError as error:
                    _log.warning("cannot_grow", engine_id=state.engine_id, error=str(error), again_s=AGAIN_S)
                    return False
                _log.info("grew", engine_id=state.engine_id)
                return True
        return False

    @staticmethod
    async def unload(model: Model) -> None:
        """Give a model's memory back. Raises ModelBusyError while requests are open."""
        for engine in model.engines.values():
            await engine.unload()
