"""Fleet: the models that are served and the engines behind each, as the API sees them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TypeVar

from cobali_ray.api.apart import begin_apart
from cobali_ray.api.client import EngineClient
from cobali_ray.api.continuation import Asked, Offer, continued
from cobali_ray.api.loading import Loader
from cobali_ray.backend.port import Words
from cobali_ray.core.events import Delta, End, Event, Word, first_word
from cobali_ray.core.fair import OUTPUT_COST, Elsewhere
from cobali_ray.core.request import Request
from cobali_ray.core.route import Route, Router
from cobali_ray.core.scale import Demand, handicaps
from cobali_ray.core.stats import EngineState, EngineStatus, ModelCard
from cobali_ray.errors import (
    CobaliError,
    DeadlineExceededError,
    EngineDiedError,
    InvalidParameterError,
    LoadingError,
    QueueFullError,
    RefusedError,
    UnknownModelError,
    UnloadedError,
)
from cobali_ray.telemetry.exposition import render_all
from cobali_ray.telemetry.names import HttpTime
from cobali_ray.telemetry.usage import Usage

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
        n_stay: int | None = None,
        scale_up_wait_s: float = 1.0,
        max_waiting: int = 128,
        adapters: Sequence[str] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`names` are those under which clients may ask for it, its own first; empty: what its card says.

        `adapters` are names under which it is asked for with one of its adapters.
        The first `n_stay` engines (None: all) make no room for others, and the router prefers them. One that
        is not loaded is, where requests would wait `scale_up_wait_s`; `max_waiting` may wait for the first.
        """
        self.engines, self._names, self._now = dict(engines), tuple(names), now
        self.adapters = tuple(adapters)
        self.max_waiting = max_waiting
        self._n_stay = len(self.engines) if n_stay is None else n_stay
        self.n_waiting = self.n_open = 0
        self.loader = Loader([self])
        self._router = Router(handicaps(list(self.engines), self._n_stay, scale_up_wait_s))
        self._demand, self._elsewhere = Demand(scale_up_wait_s), Elsewhere()
        self._growing: asyncio.Task[None] | None = None
        self._seen_s: dict[str, float] = {}
        """When each engine said what the router knows of it."""

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

    async def generate(self, request: Asked) -> AsyncGenerator[list[Event], None]:
        """Have one of the engines answer; where it refuses another one, and where it dies, too.

        If all that are there refuse, the refusal that asks for the least patience is raised. A model that is
        not loaded is loaded first.
        """
        self.n_open += 1
        try:
            goes_on = continued(request, self._choose, self._now)
            async with aclosing(goes_on) as batches:
                async for events in batches:
                    yield events
        finally:
            self.n_open -= 1

    @property
    def loose(self) -> list[str]:
        """The engines that may be unloaded while they are idle; with requests open, one is kept for them."""
        return list(self.engines)[max(self._n_stay, min(self.n_open, 1)) :]

    async def load(self) -> None:
        """Wait until one of the engines has loaded the model; see Loader."""
        await self.loader.load(self)

    async def _choose(self, request: Asked) -> Offer:
        """Find the engine that is best for a request; where none is there, the first that is."""
        if (route := self._next(request, {})) is not None:
            model = await self.engines[route.engine_id].find()
        else:
            model, engine_id = await self._first_there()
            route = _to(engine_id)
        return Offer(model, partial(self._attempt, route, model, request))

    async def _first_there(self) -> tuple[str, str]:
        """Wait for any of the engines; return what it answers with, and its id. Raises LoadingError."""
        finds = {asyncio.ensure_future(engine.find()): id_ for id_, engine in self.engines.items()}
        try:
            done, _ = await asyncio.wait(finds, return_when=asyncio.FIRST_COMPLETED)
            found = next((find for find in finds if find in done and not find.exception()), next(iter(done)))
            return found.result(), finds[found]
        finally:
            for find in finds:
                find.cancel()

    async def _attempt(
        self, first: Route, model: str, asked: Asked, request: Asked
    ) -> AsyncGenerator[list[Word], None]:
        """Have an engine answer; where it cannot another one, and once more where none has the model.

        `asked` is the request as the client sent it, which may have been begun elsewhere. An engine that
        answers with something else than `model` is not asked.
        """
        refusals: dict[str, RefusedError] = {}
        gone: set[str] = set()
        route: Route | None = first
        loads = True
        while route is not None:
            engine_id = route.engine_id
            try:
                if await self.engines[engine_id].find() != model:
                    raise LoadingError  # for this request it is not there
                async with aclosing(self._answered(route, asked.request_id, request)) as batches:
                    async for events in batches:
                        yield events
                    return
            except UnloadedError:
                gone.add(engine_id)
                if (other := self._next(asked, refusals.keys() | gone)) is None:
                    if not loads:
                        raise
                    loads = False
                    request = await self._loaded_for(request)
                    other = self._next(asked, refusals) or first
                route = other
            except RefusedError as refusal:  # always before the first event
                refusals[engine_id] = refusal
                route = self._next(asked, refusals.keys() | gone)
        raise min(refusals.values(), key=lambda refusal: refusal.retry_after_s)

    async def _loaded_for(self, request: Asked) -> Asked:
        """Load the model in the time that a request has; return it with what is left of that."""
        began_s, timeout_s = self._now(), request.timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self.load()
        except TimeoutError:
            raise DeadlineExceededError(timeout_s or 0.0) from None
        except LoadingError:  # it went away meanwhile, and another one takes its place
            raise EngineDiedError from None
        if timeout_s is None:
            return request
        return replace(request, timeout_s=max(timeout_s - (self._now() - began_s), 0.001))

    async def _answered(
        self, route: Route, asked_id: str, request: Asked
    ) -> AsyncGenerator[list[Word], None]:
        """Have an engine answer, and tell the router when the prompt is computed."""
        engine_id, tenant = route.engine_id, request.tenant
        shared = len(self.engines) > 1 and bool(tenant)
        n_elsewhere = 0.0
        if shared and isinstance(request, Request):
            n_elsewhere = self._elsewhere.take(engine_id, tenant)
            request = replace(request, served_elsewhere=n_elsewhere)
        waits = True
        self._router.booked(asked_id, route, self._now())
        try:
            async with aclosing(self.engines[engine_id].attempt(request)) as batches:
                async for events in batches:
                    if waits and (first := first_word(events)) is not None:
                        waits = False
                        self._note(asked_id, first)
                    if shared:
                        self._elsewhere.note(engine_id, tenant, given(events))
                    yield events
        except CobaliError:
            if waits:  # it did not take the request; from one that somebody has left it may have
                self._elsewhere.put_back(engine_id, tenant, n_elsewhere)
            raise
        finally:
            self._router.released(asked_id)

    def _note(self, asked_id: str, first: Event) -> None:
        """Tell the router what an engine's first word says of a prompt. Raises what refuses it after all."""
        if isinstance(first, End) and isinstance(first.error, QueueFullError):
            raise first.error  # it had to make room in that queue
        if first.stats is not None and first.stats.ttft_s is not None:  # else it ended in the queue
            self._router.released(asked_id, first.stats.n_cached)

    def _next(self, request: Asked, refused: Collection[str]) -> Route | None:
        """Choose among the engines that are there and have not refused."""
        present = self._look()
        there = [engine_id for engine_id in present if engine_id not in refused]
        if len(self.engines) == 1 or not there:
            return _to(there[0]) if there else None
        now_s, elsewhere = self._now(), [engine_id for engine_id in self.engines if engine_id not in there]
        salt = request.cache_salt
        if isinstance(request, Request):  # with logprobs of its prompt it begins with nothing
            salt = request.salt if request.n_prompt_logprobs is None else None
        route = self._router.choose(request.prompt, salt, now_s, without=elsewhere)
        if route is None:  # none of them has said yet how it is doing
            return _to(there[0])
        may_grow = len(present) < len(self.engines) and self._growing is None
        if may_grow and self._demand.grows(route.ttft_s - route.own_s, now_s):
            self._growing = begin_apart(self._grow())
        return route

    async def _grow(self) -> None:
        """Have one more engine loaded, while requests go to those that are there."""
        try:
            if not await self.loader.grow(self):
                self._demand.failed(self._now())
        finally:
            self._growing = None

    def _look(self) -> list[str]:
        """Tell the router what engines have said since the last look; return those that are there."""
        there = []
        for engine_id, engine in self.engines.items():
            if not engine.present:
                if self._seen_s.pop(engine_id, None) is not None:
                    self._router.left(engine_id)
                continue
            there.append(engine_id)
            if engine.busy is not None and engine.busy[1] != self._seen_s.get(engine_id):
                self._router.published(engine_id, *engine.busy)
                self._seen_s[engine_id] = engine.busy[1]
        return there

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
            except UnloadedError as error:  # this one can be loaded, whatever is with the others
                trouble = error
            except LoadingError:
                pass
        raise trouble


def given(events: Sequence[Word]) -> float:
    """Return what an engine gave with these events, as fairness counts."""
    n = OUTPUT_COST * sum([len(event.tokens) for event in events if isinstance(event, Delta)])
    first = first_word(events)
    stats = first.stats if isinstance(first, Delta) else None
    return n + (stats.n_prompt - stats.n_cached if stats else 0)


def _to(engine_id: str) -> Route:
    """Return the route to an engine of which nothing is expected."""
    return Route(engine_id, 0.0, 0, 0.0, ())


class Fleet:
    """All models by name, and all engines by id. Neither changes while the process lives.

    `processes` tells, called by a thread, what the server takes beside its engines.
    """

    def __init__(
        self, models: Iterable[Model], processes: Callable[[], Sequence[Usage]] = tuple[Usage, ...]
    ) -> None:
        self.models, self._processes = tuple(models), processes
        self.loader = Loader(self.models)
        for model in self.models:
            model.loader = self.loader
        self.engines = {id_: engine for model in self.models for id_, engine in model.engines.items()}

    def find(self, asked: str | None) -> Model:
        """Return the model that a client asks for; it need not say which if there is but one.

        Raises:
            UnknownModelError: nothing of this name is served.
            InvalidParameterError: there are several, and none was named.
        """
        if asked is None:
            if len(self.models) == 1:
                return self.models[0]
            raise InvalidParameterError("model", f"must be one of '{self._served()}'")
        for model in self.models:
            if asked in model.names or asked in model.adapters:
                return model
        raise UnknownModelError(asked[:LONGEST_NAME], self._served())

    def _served(self) -> str:
        return "', '".join(name for model in self.models for name in (model.names[0], *model.adapters))

    def engine(self, engine_id: str | None) -> EngineClient:
        """Return an engine; the first where none is named. Raises InvalidParameterError."""
        if engine_id is None:
            return next(iter(self.engines.values()))
        if (engine := self.engines.get(engine_id)) is None:
            known = ", ".join(self.engines)
            raise InvalidParameterError("engine", f": there is no engine with this id; the ids are: {known}")
        return engine

    async def states(self) -> list[EngineState]:
        """Ask all engines how they are."""
        return [
            state for found in await asyncio.gather(*(m.states() for m in self.models)) for state in found
        ]

    async def metrics(self) -> str:
        """Return the Prometheus exposition of all engines."""
        counts = await asyncio.gather(*(engine.counts() for engine in self.engines.values()))
        return await asyncio.to_thread(lambda: render_all(counts, self._processes()))


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
