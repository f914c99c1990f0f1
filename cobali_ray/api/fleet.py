"""Fleet: the models that are served and the engines behind each, as the API sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from cobali_ray.api.client import EngineClient
from cobali_ray.api.loading import Loader
from cobali_ray.backend.port import Words
from cobali_ray.core.choose import Choose, EngineView, least_open
from cobali_ray.core.events import Event
from cobali_ray.core.request import Request
from cobali_ray.core.stats import EngineState, EngineStatus, ModelCard
from cobali_ray.errors import (
    InvalidParameterError,
    LoadingError,
    RefusedError,
    UnknownModelError,
    UnloadedError,
)
from cobali_ray.telemetry.exposition import render_all
from cobali_ray.telemetry.names import ONLY_ENGINE, HttpTime

ResultT = TypeVar("ResultT")

LONGEST_NAME = 128
"""What is told back of a name that a client invented."""


class Model:
    """A model and the engines that serve it, used as if they were one."""

    def __init__(
        self,
        engines: Mapping[str, EngineClient],
        names: Sequence[str] = (),
        *,
        on_demand: bool = False,
        max_waiting: int = 128,
        choose: Choose = least_open,
    ) -> None:
        """`names` are those under which clients may ask for it, its own first; empty: what its card says.

        `on_demand`: it may be unloaded to make room; `max_waiting` requests may wait while it is loaded.
        """
        self.engines, self._names, self._choose = dict(engines), tuple(names), choose
        self.on_demand, self.max_waiting = on_demand, max_waiting
        self.n_waiting = self.n_open = 0
        self.loader = Loader([self])
        self._n_open_tokens = dict.fromkeys(engines, 0)
        self._turns = dict.fromkeys(engines, 0)
        self._n_chosen = 0

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the model. Raises LoadingError where only its card could tell."""
        return self._names or (self.card.model_id,)

    @property
    def card(self) -> ModelCard:
        """What is served. Raises LoadingError until one of the engines is known."""
        return self._of_any(lambda engine: engine.card)

    @property
    def words(self) -> Words:
        """Its vocabulary and chat template. Raises LoadingError until one of the engines is known."""
        return self._of_any(lambda engine: engine.words)

    def observe(self, name: HttpTime, seconds: float) -> None:
        """Count one value; it is counted once among the model's engines, and not by who served it."""
        present = [engine for engine in self.engines.values() if engine.present]
        (present or list(self.engines.values()))[0].observe(name, seconds)

    async def generate(self, request: Request) -> AsyncGenerator[list[Event], None]:
        """Have one of the engines answer; one that refuses is followed by the next.

        If all that are there refuse, the refusal that asks for the least patience is raised. A model that is
        not loaded is loaded first.
        """
        self.n_open += 1
        try:
            for may_load in (True, False):
                try:
                    async with aclosing(self._answered(request)) as batches:
                        async for events in batches:
                            yield events
                        return
                except UnloadedError:
                    if not may_load:
                        raise
                    await self.load()
        finally:
            self.n_open -= 1

    async def load(self) -> None:
        """Wait until the model is loaded; see Loader."""
        await self.loader.load(self)

    async def _answered(self, request: Request) -> AsyncGenerator[list[Event], None]:
        refusals: dict[str, RefusedError] = {}
        while (engine_id := self._next(request, refusals)) is not None:
            n_tokens = request.n_prompt + request.max_tokens
            self._n_open_tokens[engine_id] += n_tokens
            try:
                async with aclosing(self.engines[engine_id].generate(request)) as batches:
                    async for events in batches:
                        yield events
                    return
            except RefusedError as refusal:  # always before the first event
                refusals[engine_id] = refusal
            finally:
                self._n_open_tokens[engine_id] -= n_tokens
        raise min(refusals.values(), key=lambda refusal: refusal.retry_after_s)

    def _next(self, request: Request, refused: Mapping[str, RefusedError]) -> str | None:
        """Choose among the engines that are there; where none is, any may be waited for."""
        there = [engine_id for engine_id, engine in self.engines.items() if engine.present]
        left = [engine_id for engine_id in there or self.engines if engine_id not in refused]
        if not left:
            return None
        views = [EngineView(name, self._n_open_tokens[name], self._turns[name]) for name in left]
        chosen = self._choose(request, views).engine_id
        self._n_chosen += 1
        self._turns[chosen] = self._n_chosen
        return chosen

    async def states(self) -> list[EngineState]:
        """Ask all engines how they are."""
        found = await asyncio.gather(*(engine.state() for engine in self.engines.values()))
        return [
            state if state.engine_id else replace(state, engine_id=engine_id)
            for engine_id, state in zip(self.engines, found, strict=True)
        ]

    def _of_any(self, look: Callable[[EngineClient], ResultT]) -> ResultT:
        trouble = LoadingError()
        for engine in self.engines.values():
            try:
                return look(engine)
            except LoadingError as error:
                trouble = error
        raise trouble


class Fleet:
    """All models by name, and all engines by id. Neither changes while the process lives."""

    def __init__(self, models: Iterable[Model]) -> None:
        self.models = tuple(models)
        self.loader = Loader(self.models)
        for model in self.models:
            model.loader = self.loader
        self.engines = {id_: engine for model in self.models for id_, engine in model.engines.items()}

    @classmethod
    def of(cls, engine: EngineClient) -> Fleet:
        """Return the fleet of one engine."""
        return cls([Model({ONLY_ENGINE: engine})])

    def find(self, asked: str | None) -> Model:
        """Return the model that a client asks for; it need not say which if there is but one.

        Raises:
            UnknownModelError: nothing of this name is served.
            InvalidParameterError: there are several, and none was named.
        """
        if asked is None:
            if len(self.models) == 1:
                return self.models[0]
            raise InvalidParameterError("model", f"Name the model, one of '{self._served()}'.")
        for model in self.models:
            if asked in model.names:
                return model
        raise UnknownModelError(asked[:LONGEST_NAME], self._served())

    def _served(self) -> str:
        return "', '".join(model.names[0] for model in self.models)

    def engine(self, engine_id: str | None) -> EngineClient:
        """Return an engine; the first where none is named. Raises InvalidParameterError."""
        if engine_id is None:
            return next(iter(self.engines.values()))
        if (engine := self.engines.get(engine_id)) is None:
            known = ", ".join(self.engines)
            raise InvalidParameterError("engine", f"there is no engine of this id; there are: {known}")
        return engine

    async def states(self) -> list[EngineState]:
        """Ask all engines how they are."""
        return [
            state for found in await asyncio.gather(*(m.states() for m in self.models)) for state in found
        ]

    async def metrics(self) -> str:
        """Return the Prometheus exposition of all engines."""
        counts = await asyncio.gather(*(engine.counts() for engine in self.engines.values()))
        return await asyncio.get_running_loop().run_in_executor(None, render_all, counts)


def overall(states: Sequence[EngineState]) -> EngineState:
    """Return the state that says whether new requests are taken: of the engine that is best off."""
    return min(states, key=lambda state: _BEST_FIRST.index(state.status))


_BEST_FIRST = (
    EngineStatus.READY,
    EngineStatus.UNLOADED,
    EngineStatus.DRAINING,
    EngineStatus.LOADING,
    EngineStatus.RESTARTING,
    EngineStatus.STALLED,
    EngineStatus.FAILED,
)
TAKES_WORK = frozenset({EngineStatus.READY, EngineStatus.UNLOADED})
"""An engine without a model loads it for the next request."""
