"""EngineClient: all that the API knows of an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from prometheus_client.samples import Exemplar

from cobali_ray.backend.port import Words
from cobali_ray.core.dispatch.engines import EngineRecord
from cobali_ray.core.dispatch.messages import AnyRequest, Event, ToEngine
from cobali_ray.core.views.cache import CacheView, SlotMove
from cobali_ray.core.views.progress import RequestView
from cobali_ray.core.views.stats import EngineState, ModelCard, TickFeed
from cobali_ray.telemetry.exposition import EngineMetrics
from cobali_ray.telemetry.names import HttpAnswer, HttpTime


class EngineClient(Protocol):
    """An engine as the API sees it. Implemented in process (tests, offline) and over Serve (actors)."""

    @property
    def card(self) -> ModelCard:
        """What is served. Raises LoadingError until it is known."""

    @property
    def words(self) -> Words:
        """Its vocabulary and chat template, for any thread. Raises LoadingError until it is there."""

    def connect(self, on_event: Callable[[Event], None], record: EngineRecord) -> None:
        """Send the engine's events to `on_event` from now on; `record` is the dispatcher's of it."""

    def send(self, request: AnyRequest) -> None:
        """Begin a request: its events are EventsReceived, its control call Returned, which may be first.

        A refusal at the door returns a RefusedError or a BadRequestError.
        """

    def cancel(self, request_id: str) -> None:
        """Cancel a request that was sent; nothing is returned of it any more. Unknown ones are ignored."""

    def follow(self, instruction: ToEngine) -> None:
        """Carry out an instruction that keeps in touch with the engine."""

    async def state(self) -> EngineState:
        """Say whether the engine takes work. Never raises; an unreachable engine is LOADING or RESTARTING."""

    def observe(self, name: HttpTime, waited: Exemplar) -> None:
        """Count one value in a histogram of `cobali_*`: the engine, which counts for all, gets it soon."""

    def count(self, answer: HttpAnswer) -> None:
        """Count an HTTP request that has ended, likewise."""

    async def counts(self) -> EngineMetrics:
        """Return what `/metrics` shows: the engine's counters while it is there, and whether it is."""

    async def ticks(self, *, last: int, since: int = 0, before: int | None = None) -> TickFeed:
        """Return the newest `last` of the ticks `since .. before` and their requests. Raises LoadingError."""

    async def cache(self) -> CacheView:
        """Return what slots and host memory hold. Raises LoadingError while the engine cannot be reached."""

    async def find(self, name: str, tenant: str) -> list[RequestView]:
        """Return where a tenant's requests of this name are; see `named`. An engine that is away has none."""

    async def move_slot(self, action: str, slot_id: int, filename: str) -> SlotMove:
        """Save, restore or erase a slot. Raises BadRequestError."""

    async def pause(self) -> int:
        """Park running requests and begin none; return how many are parked. Raises LoadingError."""

    async def release(self) -> int:
        """Do the same, and give the model's memory back until `resume`."""

    async def resume(self) -> int:
        """Go on; return how many requests waited for that. Raises why its model cannot be loaded."""

    async def load(self) -> None:
        """Load the model, unless it is there, and learn what it is. Raises why it cannot be."""

    async def unload(self) -> None:
        """Give its memory back. Raises ModelBusyError while requests are open."""
