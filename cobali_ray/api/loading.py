"""Loader: models that are loaded when they are asked for, and make room for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from cobali_ray.core.stats import EngineStatus
from cobali_ray.errors import CobaliError, LoadingError, NoRoomError, QueueFullError

if TYPE_CHECKING:  # a model asks its loader, and a loader knows all models
    from cobali_ray.api.client import EngineClient
    from cobali_ray.api.fleet import Model

_log = structlog.get_logger(__name__)

RETRY_AFTER_S: Final = 5.0


class Loader:
    """Loads one model at a time, so that two do not count on the same memory. One per process."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = models
        self._turn = asyncio.Lock()
        self._loading: dict[Model, asyncio.Task[None]] = {}
        """The last one of each."""

    async def load(self, model: Model) -> None:
        """Wait until a model is loaded; idle ones make room, the one that was used longest ago first.

        All who wait for one model wait for one loading, which goes on when they leave, as the engine's does.

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
            await asyncio.shield(self._loading_of(model))
        finally:
            model.n_waiting -= 1

    def _loading_of(self, model: Model) -> asyncio.Task[None]:
        task = self._loading.get(model)
        if task is None or task.done():
            task = self._loading[model] = asyncio.ensure_future(self._load(model))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # who waited was told
        return task

    async def _load(self, model: Model) -> None:
        async with self._turn:
            if not model.n_waiting:  # all have left before its turn came
                return
            n_away = 0
            for engine in model.engines.values():
                try:
                    await self._load_one(engine, model)
                except LoadingError:  # the others serve until it is back
                    n_away += 1
            if n_away == len(model.engines):
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
        """Unload the model that has been idle for longest, if there is one that may be; say whether."""
        idle: list[tuple[float, Model]] = []
        for model in self._models:
            if model is wanted or not model.on_demand or model.n_open:
                continue
            states = [state for state in await model.states() if state.status is EngineStatus.READY]
            if states and not any(state.n_running or state.n_queued for state in states):
                idle.append((min(state.idle_s for state in states), model))
        for idle_s, model in sorted(idle, key=lambda found: -found[0]):
            with suppress(CobaliError):  # a request has come in between, or it is away
                await self.unload(model)
                _log.info("made_room", unloaded=model.names[0], idle_s=idle_s, wanted=wanted.names[0])
                return True
        return False

    @staticmethod
    async def unload(model: Model) -> None:
        """Give a model's memory back. Raises ModelBusyError while requests are open."""
        for engine in model.engines.values():
            await engine.unload()
