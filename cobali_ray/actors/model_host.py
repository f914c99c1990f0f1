"""ModelHost: loads this process's model and frees its memory, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog

from cobali_ray.actors.loaded_model import LoadedModel, ModelFacts, identity_of
from cobali_ray.backend import memory
from cobali_ray.core.clock import Clock
from cobali_ray.core.views.stats import EngineState, EngineStatus
from cobali_ray.engine.context import needed_bytes
from cobali_ray.engine.opening import files_beside, lies_on_devices, projector_path
from cobali_ray.errors import (
    CobaliError,
    InternalError,
    ModelBusyError,
    ModelTooLargeError,
    NoRoomError,
    ReleasedError,
)
from cobali_ray.settings import EngineSettings

_log = structlog.get_logger(__name__)


LOOK_S = 10.0
"""How often a device that is missing is looked for, while there is nothing else to do."""


class ModelHost:
    """One model, in memory or not; loading and unloading take turns."""

    def __init__(
        self,
        settings: EngineSettings,
        path: Path | None,
        clock: Clock,
        open_model: Callable[[], LoadedModel],
        n_open: Callable[[], int],
    ) -> None:
        """`open_model` blocks while it loads; `n_open` counts the requests that hold on to the model."""
        self._settings, self._path, self._clock = settings, path, clock
        self._open_model, self._n_open = open_model, n_open
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._turn, self._moves = asyncio.Lock(), set[asyncio.Task[CobaliError | None]]()
        self._state = EngineState(status=EngineStatus.UNLOADED)
        self._may_load, self._regains = asyncio.Event(), False
        """Unset while a pause has freed the model's memory; whether the end of that pause loads it again."""
        self._may_load.set()
        self._used_s = self._devices_checked_s = clock.now()
        self.model: LoadedModel | None = None
        self.facts = ModelFacts(identity_of(path, projector_path(settings)))
        """Of the model that was opened last."""
        if settings.processes.load == "eager":
            self._open()

    def state(self) -> EngineState:
        return self._state if self.model is None else self.model.loop.state()

    @property
    def idle_s(self) -> float:
        return 0.0 if self._n_open() else self._clock.now() - self._used_s

    def touch(self) -> None:
        self._used_s = self._clock.now()

    async def load(self) -> CobaliError | None:
        """Load the model, unless it is loaded; return why it cannot be. Continues if the caller has left.

        In a pause that has its memory, after that.
        """
        await self._may_load.wait()
        return await asyncio.shield(self._in_turn(self._load()))

    async def unload(self) -> CobaliError | None:
        """Free the model's memory, unless requests are open."""
        return await asyncio.shield(self._in_turn(self._unload()))

    @property
    def released(self) -> bool:
        """Whether the memory was freed by a pause."""
        return not self._may_load.is_set()

    async def release(self) -> None:
        """Free the memory for a pause; open requests end with ReleasedError."""
        self._may_load.clear()
        await asyncio.shield(self._in_turn(self._release()))

    async def regain(self) -> CobaliError | None:
        """Load the model again after a pause; return why it cannot be, and then the pause goes on."""
        error = await asyncio.shield(self._in_turn(self._load())) if self._regains else None
        if error is None:
            self._regains = False
            self._may_load.set()
        return error

    def unload_if_idle(self) -> None:
        """Begin to free the memory if the model was idle for `keep_alive_s`."""
        most_s = self._settings.processes.keep_alive_s
        if self.model is None or most_s is None or self._turn.locked():
            return
        if self.idle_s > most_s:
            _log.info("let_go", idle_s=round(self.idle_s, 1))
            self._in_turn(self._unload())

    def reload_if_whole(self) -> None:
        """Begin to load the model anew if no request is open and a missing device is back."""
        now_s = self._clock.now()
        moving = self._turn.locked()
        if self.model is None or moving or self._n_open() or now_s - self._devices_checked_s < LOOK_S:
            return
        if not all(view.there for view in self.model.devices.look()):
            self._devices_checked_s = now_s
            self._in_turn(self._reload(self.model))

    async def _reload(self, model: LoadedModel) -> CobaliError | None:
        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(self._pool, model.could_be_whole):
            return None
        if self.model is not model or await self._unload() is not None:
            return None  # busy again: another time
        _log.info("devices_are_back")
        return await self._load()

    def _in_turn(self, move: Coroutine[Any, Any, CobaliError | None]) -> asyncio.Task[CobaliError | None]:
        async def wait() -> CobaliError | None:
            async with self._turn:
                return await move

        task = asyncio.ensure_future(wait())
        self._moves.add(task)
        task.add_done_callback(self._moves.discard)
        return task

    async def _load(self) -> CobaliError | None:
        if self.model is not None:
            return None
        self._state = EngineState(status=EngineStatus.LOADING, detail="loading the model")
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._pool, self._check_room)
            await loop.run_in_executor(self._pool, self._open)
        except (NoRoomError, ModelTooLargeError) as refusal:
            self._state = EngineState(status=EngineStatus.UNLOADED, detail=str(refusal))
            return refusal
        except Exception as error:
            self._state = EngineState(status=EngineStatus.FAILED, detail=str(error))
            return error if isinstance(error, CobaliError) else InternalError(repr(error))
        return None

    def _open(self) -> None:
        model = self._open_model()
        self.facts, self.model, self._used_s = model.facts, model, self._clock.now()

    def _check_room(self) -> None:
        """Refuse a model for which Linux would kill processes. A GPU's memory is for llama.cpp to check."""
        n_bytes = needed_bytes(self._settings, self._path)
        n_bytes += sum(path.stat().st_size for path in files_beside(self._settings, self._path))
        most, free = memory.most_bytes(), memory.available_bytes()
        if most is not None and n_bytes > most:
            refusal: CobaliError = ModelTooLargeError(n_bytes, most)
        elif free is not None and n_bytes > free:
            refusal = NoRoomError(n_bytes, free)
        else:
            return
        if not lies_on_devices(self._settings, self._path):
            raise refusal

    async def _unload(self) -> CobaliError | None:
        if self.model is None:
            return None
        if n_open := self._n_open():
            return ModelBusyError(n_open)
        await self._close(self.model)
        return None

    async def _release(self) -> CobaliError | None:
        if self.model is not None:
            self._regains = True
            await self._close(self.model, ReleasedError())
        return None

    async def _close(self, model: LoadedModel, last_word: CobaliError | None = None) -> None:
        self.model, self._state = None, EngineState(status=EngineStatus.UNLOADED)
        await asyncio.get_running_loop().run_in_executor(self._pool, model.close, last_word)
