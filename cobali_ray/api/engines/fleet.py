"""Fleet: the models that are served and the engines behind each, as the API sees them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from prometheus_client import Metric
from prometheus_client.samples import Exemplar

from cobali_ray.api.engines.client import EngineClient
from cobali_ray.api.engines.dispatch import Dispatch, EventStream
from cobali_ray.backend.port import Words
from cobali_ray.core.dispatch.messages import AnyRequest, ServerStopping
from cobali_ray.core.dispatch.models import ModelPlan
from cobali_ray.core.dispatch.request import RequestRecord
from cobali_ray.core.request.request import Request
from cobali_ray.core.views.stats import EngineState, EngineStatus, ModelCard
from cobali_ray.errors import InvalidParameterError, LoadingError, UnknownModelError, UnloadedError
from cobali_ray.telemetry.exposition import Encoder, render_all
from cobali_ray.telemetry.names import HttpAnswer, HttpTime
from cobali_ray.telemetry.usage import ProcessUsage

ResultT = TypeVar("ResultT")

MAX_NAME_CHARS = 128
"""So much of a name that a client invented is quoted."""


class ServedModel:
    """A model and the engines that serve it, used as if they were one, once a `Fleet` has it."""

    def __init__(
        self,
        engines: Mapping[str, EngineClient],
        names: Sequence[str] = (),
        *,
        n_stay: int | None = None,
        scale_up_wait_s: float = 1.0,
        max_waiting: int = 128,
        stall_timeout_s: float = 60.0,
        adapters: Sequence[str] = (),
    ) -> None:
        """`names` are those under which clients may ask for it, its own first; empty: what its card says.

        `adapters` are names under which it is asked for with one of its adapters. `n_stay` None: all engines
        stay. For the others see ModelPlan.
        """
        self.engines, self._names, self.adapters = dict(engines), tuple(names), tuple(adapters)
        ids = tuple(self.engines)
        self.plan = ModelPlan(
            name=(*names, *ids)[0],
            engine_ids=ids,
            n_stay=len(ids) if n_stay is None else n_stay,
            scale_up_wait_s=scale_up_wait_s,
            max_waiting=max_waiting,
            stall_timeout_s=stall_timeout_s,
        )
        self.dispatch: Dispatch

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

    @property
    def present(self) -> list[str]:
        return [engine_id for engine_id in self.engines if self.dispatch.state.engines[engine_id].present]

    @property
    def n_waiting(self) -> int:
        return self.dispatch.state.models[self.plan.name].n_waiting

    def observe(self, name: HttpTime, waited: Exemplar) -> None:
        """Count one value; it is counted once among the model's engines, and not by who served it."""
        self.engines[(self.present or list(self.engines))[0]].observe(name, waited)

    def ask(self, *requests: AnyRequest) -> EventStream:
        """Have the engines answer requests of one client, and go on with what another one has begun.

        A model that is not loaded is loaded first. Where all engines that are present refuse, the refusal
        with the shortest wait is raised.
        """
        return self.dispatch.ask(self.plan.name, [_seeded(request) for request in requests])

    async def load(self, n_engines: int = 1) -> None:
        await self.dispatch.load(self.plan.name, n_engines)

    async def unload(self) -> None:
        for engine_id in self.engines:
            await self.dispatch.unload(engine_id)

    async def states(self) -> list[EngineState]:
        return await self.dispatch.states(self.engines)

    def _of_any(self, look: Callable[[EngineClient], ResultT]) -> ResultT:
        trouble = LoadingError()
        for engine in self.engines.values():
            try:
                return look(engine)
            except UnloadedError as error:  # this engine can be loaded, whatever state others are in
                trouble = error
            except LoadingError:
                pass
        raise trouble


def _seeded(request: AnyRequest) -> AnyRequest:
    """Choose a seed if the client gave none, so that each engine draws what the first would have."""
    if not isinstance(request, Request):
        return request
    sampling = request.sampling
    if sampling.seed is not None or sampling.temperature == 0:
        return request
    return replace(request, sampling=replace(sampling, seed=secrets.randbits(63)))


class Fleet:
    """All models by name, and all engines by id. Neither changes while the process lives.

    `processes` tells, called by a thread, what the server takes beside its engines.
    """

    def __init__(
        self,
        models: Iterable[ServedModel],
        processes: Callable[[], Sequence[ProcessUsage]] = tuple[ProcessUsage, ...],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.models, self._processes = tuple(models), processes
        self.engines = {id_: engine for model in self.models for id_, engine in model.engines.items()}
        self._dispatch = dispatch = Dispatch([model.plan for model in self.models], self.engines, now)
        for model in self.models:
            model.dispatch = dispatch

    def find(self, name: str | None) -> ServedModel:
        """Return the model of this name, or the only one. Raises UnknownModelError, InvalidParameterError."""
        if name is None:
            if len(self.models) == 1:
                return self.models[0]
            raise InvalidParameterError("model", f"must be one of '{self._served()}'")
        for model in self.models:
            if name in model.names or name in model.adapters:
                return model
        raise UnknownModelError(name[:MAX_NAME_CHARS], self._served())

    def _served(self) -> str:
        return "', '".join(name for model in self.models for name in (model.names[0], *model.adapters))

    def count(self, answer: HttpAnswer) -> None:
        """Count an HTTP request that has ended, with an engine that is there."""
        present = (engine_id for model in self.models for engine_id in model.present)
        self.engines[next(present, next(iter(self.engines)))].count(answer)

    def engine(self, engine_id: str | None) -> EngineClient:
        """Return an engine; the first where none is named. Raises InvalidParameterError."""
        if engine_id is None:
            return next(iter(self.engines.values()))
        if (engine := self.engines.get(engine_id)) is None:
            ids = ", ".join(self.engines)
            raise InvalidParameterError("engine", f": there is no engine with this id; the ids are: {ids}")
        return engine

    def open_requests(self, name: str, tenant: str) -> list[RequestRecord]:
        """Return a tenant's requests of this name that came to this process and have not ended."""
        return self._dispatch.state.find(name, tenant)

    def stop(self) -> None:
        """Refuse requests that no engine has; engines that drain refuse theirs."""
        self._dispatch.handle(ServerStopping())

    async def states(self) -> list[EngineState]:
        return await self._dispatch.states(self.engines)

    async def metrics(self, encode: Encoder, others: Sequence[Metric] = ()) -> bytes:
        counts = await asyncio.gather(*(engine.counts() for engine in self.engines.values()))
        return await asyncio.to_thread(lambda: render_all(counts, self._processes(), encode, others))


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
