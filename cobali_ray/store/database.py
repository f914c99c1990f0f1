"""Store: the SQLite file below `data_dir`, the thread that it is used in, and what its tables are.

Every ingress opens the same file; SQLite's write-ahead log lets each read while another writes. What a
transaction returned from is on the disk (`synchronous=FULL`), so a process may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

from cobali_ray.errors import ConfigError, StoreFailedError, why_of

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

FILE_NAME: Final = "cobali.sqlite"
LOCK_NAME: Final = "batches.lock"
BUSY_S: Final = 30.0
"""How long a transaction waits for that of another process."""
_FILES_AND_BATCHES: Final = """
CREATE TABLE files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,          -- the salt of a key; who has another key does not see it
    purpose TEXT NOT NULL,
    name TEXT NOT NULL,
    bytes INTEGER NOT NULL DEFAULT 0,
    created_s INTEGER NOT NULL,
    expires_s INTEGER NOT NULL,
    complete INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX files_of ON files (owner, seq);
CREATE TABLE pieces (             -- a file is its pieces, in order: of a batch one for each line
    file_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (file_id, n)
) STRICT;
CREATE TABLE lines (              -- what is known of the lines of a file that a batch may be made of
    file_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    model TEXT NOT NULL,
    order_key BLOB NOT NULL,
    PRIMARY KEY (file_id, n)
) STRICT, WITHOUT ROWID;
CREATE TABLE batches (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    tenant TEXT NOT NULL,         -- the name of the key, by which its terms are known
    format TEXT NOT NULL,         -- openai, anthropic
    endpoint TEXT NOT NULL,
    status TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    output_file_id TEXT NOT NULL,
    error_file_id TEXT NOT NULL,  -- the same where answers and errors are in one file
    created_s INTEGER NOT NULL,
    expires_s INTEGER NOT NULL,   -- until then it is to be answered
    kept_until_s INTEGER NOT NULL,
    times TEXT NOT NULL DEFAULT '{}',
    metadata TEXT NOT NULL,
    errors TEXT NOT NULL DEFAULT '[]',
    n_total INTEGER NOT NULL DEFAULT 0,
    n_completed INTEGER NOT NULL DEFAULT 0,
    n_failed INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX batches_of ON batches (owner, seq);
CREATE INDEX batches_open ON batches (status);
CREATE TABLE pending (            -- lines that have no answer yet, by their turn
    batch_id TEXT NOT NULL,
    turn INTEGER NOT NULL,
    n INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    model TEXT NOT NULL,
    PRIMARY KEY (batch_id, turn)
) STRICT, WITHOUT ROWID;
"""
_RESPONSES: Final = """
CREATE TABLE responses (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    tenant TEXT NOT NULL,
    status TEXT NOT NULL,
    created_s INTEGER NOT NULL,
    kept_until_s INTEGER NOT NULL,
    previous_id TEXT NOT NULL,    -- what it goes on from: "" or a response, or
    conversation_id TEXT NOT NULL,
    conversation_n INTEGER NOT NULL,
    items BLOB NOT NULL,
    body BLOB NOT NULL,
    request BLOB,                 -- what is yet to be computed
    streams INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    n_begun INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX responses_of ON responses (owner, kept_until_s);
CREATE INDEX responses_open ON responses (status) WHERE status IN ('queued', 'in_progress');
CREATE TABLE response_events (
    response_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    data BLOB NOT NULL,
    deltas BLOB NOT NULL,
    PRIMARY KEY (response_id, n)
) STRICT, WITHOUT ROWID;
CREATE TABLE conversations (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    created_s INTEGER NOT NULL,
    kept_until_s INTEGER NOT NULL,
    metadata TEXT NOT NULL,
    bytes INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX conversations_of ON conversations (owner, seq);
CREATE TABLE items (
    conversation_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    id TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (conversation_id, n),
    UNIQUE (id, conversation_id)
) STRICT;
"""
_CHATS: Final = """
CREATE TABLE chats (
    version INTEGER PRIMARY KEY AUTOINCREMENT,  -- another one with each change
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    kept_until_s INTEGER NOT NULL,
    summary TEXT NOT NULL,
    data TEXT,                    -- NULL: it was deleted
    bytes INTEGER NOT NULL,
    UNIQUE (owner, id)
) STRICT;
CREATE INDEX chats_of ON chats (owner, version);
CREATE TABLE streams (
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    kept_until_s INTEGER NOT NULL,
    data BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (owner, id)
) STRICT;
"""
_SCHEMAS: Final = (_FILES_AND_BATCHES, _RESPONSES, _CHATS)
"""What each version of the tables adds; a file of more versions is refused."""


def check_folder(folder: Path | None) -> None:
    """Make the folder of the store, and look whether it can be used. Raises ConfigError."""
    if folder is None:
        return
    Store(folder).close()


class Store:
    """Opened by each process that needs it. Call it on an event loop; `now`, without one.

    await store(files.find, owner, file_id)
    """

    def __init__(self, folder: Path) -> None:
        """Open the file, or make it. Raises ConfigError that says what is wrong with `data_dir`."""
        self.folder = folder.expanduser()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._lock: int | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(self.folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o600))
            self._db = self._thread.submit(_connect, self.folder / FILE_NAME).result()
        except (OSError, sqlite3.Error) as error:
            self._thread.shutdown()
            why = error.strerror or why_of(error) if isinstance(error, OSError) else why_of(error)
            raise ConfigError("data_dir", f"{folder} cannot be used: {why}") from None

    async def __call__(
        self, work: Callable[Concatenate[sqlite3.Connection, P], ResultT], *args: P.args, **kwargs: P.kwargs
    ) -> ResultT:
        """Do work in one transaction, which is undone if it raises. Raises StoreFailedError."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: self._do(work, *args, **kwargs))

    def now(
        self, work: Callable[Concatenate[sqlite3.Connection, P], ResultT], *args: P.args, **kwargs: P.kwargs
    ) -> ResultT:
        """Do the same and wait for it."""
        return self._thread.submit(lambda: self._do(work, *args, **kwargs)).result()

    def _do(
        self, work: Callable[Concatenate[sqlite3.Connection, P], ResultT], *args: P.args, **kwargs: P.kwargs
    ) -> ResultT:
        try:
            with _transaction(self._db) as db:
                return work(db, *args, **kwargs)
        except sqlite3.Error as error:
            raise StoreFailedError(why_of(error)) from error

    def take_lock(self) -> bool:
        """Try to become the one process that runs batches; the lock ends with the process."""
        if self._lock is None:
            lock = os.open(self.folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                return False
            self._lock = lock
        return True

    def close(self) -> None:
        """Finish what was begun, and let go of the file and of the lock."""
        with suppress(RuntimeError):  # closed before
            self._thread.submit(self._db.close).result()
        self._thread.shutdown()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        _prepare(db)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection) -> None:
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before there is a table, or never
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
    with _transaction(db):
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > len(_SCHEMAS):
            raise sqlite3.DatabaseError("it was written by a later version of cobali")
        for number, schema in enumerate(_SCHEMAS[version:], version + 1):
            for statement in schema.split(";\n"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {number}")


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
    except BaseException:
        with suppress(sqlite3.Error):  # a full disk has undone it already
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
