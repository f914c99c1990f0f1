"""Store: the database where everything is kept, and the thread that it is used in.

Every ingress has its own connection: to a file of SQLite in a folder, or to PostgreSQL by a URL.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeAlias, TypeVar

from cobali_ray.errors import ConfigError, StoreFailedError, why_of
from cobali_ray.extras import require_extra
from cobali_ray.store.connection import StoreConnection
from cobali_ray.store.sqlite import FILE_NAME, SqliteConnection

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

StorePlace: TypeAlias = Path | str
"""A folder, or a URL of PostgreSQL."""


def new_folder(place: StorePlace | None) -> Path | None:
    """Return the folder of a store that has not been made yet; None for any other."""
    return place if isinstance(place, Path) and not os.access(place / FILE_NAME, os.F_OK) else None


def check_store(place: StorePlace | None) -> str:
    """Look whether the store can be used, make its tables, and return where it is; "" where there is none.

    Raises ConfigError and MissingExtraError.
    """
    if place is None:
        return ""
    store = Store(place)
    try:
        return store.now(lambda db: db.name)
    except StoreFailedError as error:  # a folder has raised ConfigError before
        why = why_of(error.__cause__ or error)
        raise ConfigError("data_url", f"the database cannot be used: {why}") from None
    finally:
        store.close()


class Store:
    """Opened by each process that needs it. Call it on an event loop; `now`, without one.

    await store(files.find, owner, file_id)
    """

    def __init__(self, place: StorePlace) -> None:
        """Open it. Raises ConfigError that names the setting, and MissingExtraError.

        A database behind a URL need not be there yet.
        """
        self.closed = False
        """Whether it is of no more use: this process ends."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        try:
            self._db = self._thread.submit(_open, place).result()
        except BaseException:
            self._thread.shutdown()
            raise

    async def __call__(
        self, work: Callable[Concatenate[StoreConnection, P], ResultT], *args: P.args, **kwargs: P.kwargs
    ) -> ResultT:
        """Do work in one transaction, which is undone if it raises. Raises StoreFailedError."""
        if self.closed:
            raise StoreFailedError("this process ends")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: self._do(work, *args, **kwargs))

    async def alone(
        self, work: Callable[Concatenate[StoreConnection, P], ResultT], *args: P.args, **kwargs: P.kwargs
    ) -> ResultT:
        """Do the same while this process has the lock. Raises StoreFailedError where it has lost it."""

        def checked(db: StoreConnection) -> ResultT:
            if not db.holds_lock:
                raise StoreFailedError("another process runs batches now")
            return work(db, *args, **kwargs)

        return await self(checked)

    async def take_lock(self) -> bool:
        """Try to become the one process that runs batches. Raises StoreFailedError."""
        return await self(lambda db: db.take_lock())

    @property
    def holds_lock(self) -> bool:
        """Whether this process runs batches, as far as is known."""
        return not self.closed and self._db.holds_lock

    def now(
        self, work: Callable[Concatenate[StoreConnection, P], ResultT], *args: P.args, **kwargs: P.kwargs
    ) -> ResultT:
        """Do the same and wait for it."""
        return self._thread.submit(lambda: self._do(work, *args, **kwargs)).result()

    def _do(
        self, work: Callable[Concatenate[StoreConnection, P], ResultT], *args: P.args, **kwargs: P.kwargs
    ) -> ResultT:
        try:
            with self._db.transaction() as db:
                return work(db, *args, **kwargs)
        except (self._db.errors, OSError) as error:  # the latter: the file of the lock cannot be opened
            raise StoreFailedError(self._db.why(error)) from error

    def close(self) -> None:
        """Finish what was begun, and let go of the database and of the lock."""
        self.closed = True
        with suppress(RuntimeError):  # closed before
            self._thread.submit(self._db.close).result()
        self._thread.shutdown()


def _open(place: StorePlace) -> StoreConnection:
    if isinstance(place, Path):
        try:
            return SqliteConnection(place)
        except (OSError, sqlite3.Error) as error:
            why = error.strerror or why_of(error) if isinstance(error, OSError) else why_of(error)
            raise ConfigError("data_dir", f"{place} cannot be used: {why}") from None
    require_extra("postgres", "psycopg")
    from cobali_ray.store.postgres import PostgresConnection

    return PostgresConnection(place)
