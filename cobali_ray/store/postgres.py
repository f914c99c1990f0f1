"""PostgresConnection: a database behind a URL, for ingresses on several machines.

All that must not happen twice hangs on the session: the lock to run batches is the session's, and a process
that loses the connection has lost the lock before another session writes anything. Transactions follow each
other behind an advisory lock, as SQLite's do: what one reads stays true until it ends, and none has to be
repeated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from cobali_ray.errors import ConfigError
from cobali_ray.store.connection import StoreConnection

RUNNER_LOCK: Final = int.from_bytes(b"cobali\x00")
TURN_LOCK: Final = RUNNER_LOCK + 1
"""Advisory locks: of the process that runs batches, and of the transaction under way."""
WAIT_S: Final = 30
"""How long a transaction waits for another, and how long an idle one may hold the others up."""
RETRY_S: Final = 1.0
"""How long after a failed connection every transaction is refused at once."""
KEEPALIVES: Final = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""By which either side finds out within half a minute that the other's machine is gone."""
CONNECTING: Final[dict[str, Any]] = {
    "application_name": "cobali",
    "connect_timeout": 5,
    "tcp_user_timeout": WAIT_S * 1000,
    **KEEPALIVES,
}
_BEGIN: Final = b"BEGIN; SELECT pg_advisory_xact_lock(%d)" % TURN_LOCK
_WORDS: Final = (
    ("INTEGER PRIMARY KEY AUTOINCREMENT", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"),
    ("INTEGER", "BIGINT"),
    ("BLOB", "BYTEA"),
    (" STRICT, WITHOUT ROWID", ""),
    (" STRICT", ""),
)


class PostgresConnection(StoreConnection):
    """Made anew when it is lost; any process may take the lock then."""

    errors = psycopg.Error

    def __init__(self, url: str, now: Callable[[], float] = time.monotonic) -> None:
        """Connect with the first transaction. Raises ConfigError for what is no URL of a database."""
        try:
            conninfo_to_dict(url)
        except psycopg.ProgrammingError:  # whose message may hold the password
            problem = "must be as in postgresql://user@host:5432/database"
            raise ConfigError("data_url", problem) from None
        self._url, self._now = url, now
        self._db: psycopg.Connection[_Row] | None = None
        self._has_lock = False
        self._failed: psycopg.Error | None = None
        self._retry_s = 0.0

    @property
    def name(self) -> str:
        info = self._there().info
        return f"PostgreSQL: {info.dbname} at {info.host}, port {info.port}"

    @property
    def _connected(self) -> bool:
        return self._db is not None and not self._db.closed

    @property
    def holds_lock(self) -> bool:
        return self._has_lock and self._connected

    def execute(self, query: str, values: Sequence[Any] = ()) -> Any:
        return self._there().execute(_marked(query), list(map(_storable, values)) or None)

    def executemany(self, query: str, values: Iterable[Sequence[Any]]) -> None:
        with self._there().cursor() as cursor:
            cursor.executemany(_marked(query), (list(map(_storable, row)) for row in values))

    def take_lock(self) -> bool:
        if not self._has_lock:  # a session that takes it twice would have to let go twice
            (self._has_lock,) = self.execute("SELECT pg_try_advisory_lock(?)", (RUNNER_LOCK,)).fetchone()
        return self._has_lock

    def give_back(self) -> None:
        """Autovacuum does."""

    def why(self, error: Exception) -> str:
        """Names of hosts and users are for the log alone."""
        return super().why(error) if self._connected else "its database cannot be reached (setting data_url)"

    def close(self) -> None:
        """For good."""
        if self._db is not None:
            self._db.close()
        self._failed, self._retry_s = psycopg.InterfaceError("it was closed"), math.inf

    def _there(self) -> psycopg.Connection[_Row]:
        if self._db is None:
            raise psycopg.OperationalError("there is no connection")
        return self._db

    def _begin(self) -> None:
        if self._connected:
            try:
                self._there().execute(_BEGIN, prepare=False)
            except psycopg.OperationalError:
                if self._connected:
                    raise  # another one's transaction takes too long
            else:
                return
        self._connect()
        self._there().execute(_BEGIN, prepare=False)

    def _connect(self) -> None:
        """Open a session, with the tables. Raises psycopg.Error, the last one where that was just now."""
        self._has_lock = False
        if self._failed is not None and self._now() < self._retry_s:
            raise self._failed.with_traceback(None)
        try:
            self._db = psycopg.connect(self._url, autocommit=True, row_factory=_rows, **CONNECTING)
            self._failed = None
            for name, value in _limits(self._db).items():
                self._db.execute("SELECT set_config(%s, %s, false)", (name, value))
            self._db.execute(_BEGIN, prepare=False)
            self._prepare()
            self._db.execute("COMMIT")
        except psycopg.Error as error:
            if self._db is not None:
                self._db.close()
            self._failed, self._retry_s = error, self._now() + RETRY_S
            raise

    def _version(self) -> int:
        self.execute("CREATE TABLE IF NOT EXISTS cobali_version (n BIGINT NOT NULL)")
        return int(self.execute("SELECT coalesce(max(n), 0) FROM cobali_version").fetchone()[0])

    def _set_version(self, version: int) -> None:
        self.execute("INSERT INTO cobali_version (n) VALUES (?)", (version,))

    def _own_words(self, statement: str) -> str:
        for theirs, ours in _WORDS:
            statement = statement.replace(theirs, ours)
        return statement


class _Row:
    """Fields by place and by name, as in a row of SQLite."""

    __slots__ = ("_places", "_values")

    def __init__(self, places: dict[str, int], values: Sequence[Any]) -> None:
        self._places, self._values = places, values

    def keys(self) -> Iterable[str]:
        return self._places

    def __getitem__(self, field: int | str) -> Any:
        return self._values[self._places[field] if isinstance(field, str) else field]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)


def _limits(db: psycopg.Connection[Any]) -> dict[str, str]:
    """Return what the server is to do for a session, and by when."""
    limits = dict.fromkeys(("lock_timeout", "idle_in_transaction_session_timeout"), f"{WAIT_S}s")
    if db.info.host.startswith("/"):
        return limits
    return limits | {f"tcp_{name}": str(value) for name, value in KEEPALIVES.items()}


def _rows(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], _Row]:
    places = {column.name: place for place, column in enumerate(cursor.description or ())}
    return lambda values: _Row(places, values)


def _marked(query: str) -> bytes:
    return query.replace("?", "%s").encode()


def _storable(value: Any) -> Any:
    """Replace null characters, which no text of PostgreSQL has: what is looked for with one is not there."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value
