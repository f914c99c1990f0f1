"""SqliteConnection: one file in a folder, for the processes of one machine.

Its write-ahead log lets each process read while another writes. What a transaction returned from is on the
disk (`synchronous=FULL`), so a process may be killed at any moment.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from cobali_ray.store.connection import StoreConnection

FILE_NAME: Final = "cobali.sqlite"
LOCK_NAME: Final = "batches.lock"
BUSY_S: Final = 30.0
"""How long a transaction waits for that of another process."""
GIVE_BACK_PAGES: Final = 10_000
"""At once, of 4 KiB: for a fraction of a second others wait."""
LOG_BYTES: Final = 16 << 20
"""What of the write-ahead log stays once it is in the file; a transaction may take as much as it needs."""


class SqliteConnection(StoreConnection):
    errors = sqlite3.Error

    def __init__(self, folder: Path) -> None:
        """Open the file, or make it, for this user alone. Raises OSError and sqlite3.Error."""
        self._folder = folder
        self._lock: int | None = None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o600))
        self._db = sqlite3.connect(folder / FILE_NAME, timeout=BUSY_S, isolation_level=None)
        try:
            self._db.row_factory = sqlite3.Row
            self.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before there is a table, or never
            self.execute("PRAGMA journal_mode = WAL")
            self.execute("PRAGMA synchronous = FULL")
            self.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            self.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
            with self.transaction():
                self._prepare()
        except sqlite3.Error:
            self._db.close()
            raise

    @property
    def name(self) -> str:
        return str(self._folder)

    @property
    def holds_lock(self) -> bool:
        return self._lock is not None

    def execute(self, query: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._db.execute(query, values)

    def executemany(self, query: str, values: Iterable[Sequence[Any]]) -> None:
        self._db.executemany(query, values)

    def take_lock(self) -> bool:
        if self._lock is None:
            lock = os.open(self._folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                return False
            self._lock = lock
        return True

    def give_back(self) -> None:
        (n_free,) = self.execute("PRAGMA freelist_count").fetchone()
        for _ in range(min(n_free, GIVE_BACK_PAGES)):  # one page each: Python takes one step of the statement
            self.execute("PRAGMA incremental_vacuum")

    def close(self) -> None:
        self._db.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _begin(self) -> None:
        self.execute("BEGIN IMMEDIATE")

    def _version(self) -> int:
        return int(self.execute("PRAGMA user_version").fetchone()[0])

    def _set_version(self, version: int) -> None:
        self.execute(f"PRAGMA user_version = {version}")
