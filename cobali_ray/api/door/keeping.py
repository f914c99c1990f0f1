"""The store as the routes use it: whose it is, how much of it, for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from cobali_ray.api.door.clock import ApiClock
from cobali_ray.errors import NoStoreError
from cobali_ray.settings import ApiSettings
from cobali_ray.store.connection import StoreConnection
from cobali_ray.store.database import Store
from cobali_ray.store.files import StoreQuota

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

DAY_S = 24 * 3600


class Keeping:
    """`await keeping(files.find, owner, file_id)`, as with the store itself."""

    def __init__(self, store: Store | None, settings: ApiSettings, clock: ApiClock) -> None:
        self._store, self._clock = store, clock
        self._most = int(settings.stored_gib * (1 << 30)), settings.stored_count
        self._kept_s = int(settings.stored_days * DAY_S)
        self.max_body_bytes = settings.max_body_bytes

    async def __call__(
        self, work: Callable[Concatenate[StoreConnection, P], ResultT], *args: P.args, **kwargs: P.kwargs
    ) -> ResultT:
        """Do work in one transaction. Raises NoStoreError where the server has no store, StoreFailedError."""
        return await self.require()(work, *args, **kwargs)

    def require(self) -> Store:
        """Return the store; without one nothing else matters. Raises NoStoreError."""
        if self._store is None:
            raise NoStoreError
        return self._store

    @property
    def on(self) -> bool:
        """Whether the server has a store."""
        return self._store is not None

    def now_s(self) -> int:
        return self._clock.unix()

    def until_s(self, requested_s: int | None = None) -> int:
        """Return until when something made now is kept: as long as requested, or as the operator lets it."""
        return self.now_s() + min(requested_s or self._kept_s, self._kept_s)

    def quota(self, requested_s: int | None = None) -> StoreQuota:
        """Return what each key may keep from now on, for as long as `until_s` says."""
        return StoreQuota(*self._most, self.until_s(requested_s))


def page(entries: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """Return a page of a list; `entries` has one more than the limit if there are more pages."""
    data = entries[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(entries) > limit,
    }
