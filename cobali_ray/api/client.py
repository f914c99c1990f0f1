"""EngineClient: all that the API knows of an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from cobali_ray.backend.port import Words
from cobali_ray.core.cache import CacheView, SlotMove
from cobali_ray.core.embedding import EmbeddingRequest
from cobali_ray.core.events import Word
from cobali_ray.core.request import Request
from cobali_ray.core.stats import EngineState, LoadView, ModelCard, TickFeed
from cobali_ray.telemetry.exposition import Counts
from cobali_ray.telemetry.names import HttpTime


class EngineClient(Protocol):
    """An engine as the API sees it. Implemented in process (tests, offline) and over Serve (actors)."""

    @property
    def card(self) -> ModelCard:
        """What is served. Raises LoadingError until it is known."""
        ...

    @property
    def words(self) -> Words:
        """Its vocabulary and chat template, for any thread. Raises LoadingError until it is there."""
        ...

    @property
    def present(self) -> bool:
        """Whether the engine is there, as far as anyone knows at this moment."""
        ...

    @property
    def busy(self) -> tuple[LoadView, float] | None:
        """How busy the engine said it was, and when on the monotonic clock; None: it has not said."""
        ...

    async def find(self) -> str:
        """Wait until the engine is there; return what tells its model's file from others.

        Raises LoadingError if that takes too long.
        """
        ...

    def attempt(self, request: Request | EmbeddingRequest) -> AsyncGenerator[list[Word], None]:
        """Yield everything pending for the request, per wake-up; the last list closes with its End.

        Raises RefusedError or BadRequestError before the first event if the door says no. Closing the
        generator early cancels the request. Raises EngineDiedError where the engine is gone.
        """
        ...

    async def state(self) -> EngineState:
        """Say whether the engine takes work. Never raises; an unreachable engine is LOADING or RESTARTING."""
        ...

    def observe(self, name: HttpTime, seconds: float) -> None:
        """Count one value in a histogram of `cobali_*`, in a moment: the engine keeps the counts of all."""
        ...

    async def counts(self) -> Counts:
        """Return what `/metrics` shows: the engine's counters while it is there, and whether it is."""
        ...

    async def ticks(self, *, last: int, since: int = 0, before: int | None = None) -> TickFeed:
        """Return the newest `last` of the ticks `since .. before` and the requests of that time.

        Raises LoadingError while the engine cannot be reached.
        """
        ...

    async def cache(self) -> CacheView:
        """Return what slots and host memory hold. Raises LoadingError while the engine cannot be reached."""
        ...

    async def move_slot(self, action: str, slot_id: int, filename: str) -> SlotMove:
        """Save, restore or erase a slot. Raises BadRequestError."""
        ...

    async def load(self) -> None:
        """Load the model, unless it is there. Raises NoRoomError, ModelTooLargeError, or why it cannot be."""
        ...

    async def unload(self) -> None:
        """Give its memory back. Raises ModelBusyError while requests are open."""
        ...
