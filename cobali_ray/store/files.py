"""Files in the store: functions over a connection, called by `Store`, each in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from cobali_ray.errors import NotInStoreError, StoreFullError
from cobali_ray.store.connection import StoreConnection
from cobali_ray.store.lines import LineRequest
from cobali_ray.store.order import order_key

INPUT, OUTPUT, INTERNAL = "batch", "batch_output", "internal"
"""Purposes: what a client uploads, what batches write, and what clients never see as a file."""
UPLOAD_S: Final = 3600
"""How long an upload may pause before what arrived of it is deleted."""
_COUNTED: Final = ("files", "responses", "conversations", "chats", "streams")
BLOCK_BYTES, BLOCK_PIECES = 1 << 20, 10_000
"""About how much of a file is read at once, and in how many pieces at most."""
CLEARED_BYTES: Final = 8 << 20
"""About how much is deleted at once: others wait for it, and a full disk has no room for a log of more."""
GONE: Final = "gone"
"""Owner of files that nobody can see any longer: no key's salt."""


class StoreQuota(NamedTuple):
    """What one key may keep, and until when."""

    max_bytes: int
    max_count: int
    """Files, batches, responses, conversations and chats, each."""
    kept_until_s: int

    def check_count(self, db: StoreConnection, owner: str, table: str) -> None:
        """Raise StoreFullError where a key has as many rows of a table as it may."""
        seen = f" AND purpose <> '{INTERNAL}'" if table == "files" else ""
        (n,) = db.execute(f"SELECT count(*) FROM {table} WHERE owner = ?{seen}", (owner,)).fetchone()
        if n >= self.max_count:
            raise StoreFullError(f"{n} {table}", "stored_count")

    def check_bytes(self, db: StoreConnection, owner: str) -> None:
        """Raise StoreFullError where a key keeps more than it may."""
        if used_bytes(db, owner) > self.max_bytes:
            raise StoreFullError(f"{self.max_bytes:,} bytes, or would with this", "stored_gib")


class FileRecord(NamedTuple):
    id: str
    purpose: str
    name: str
    bytes: int
    created_s: int
    expires_s: int


class Piece(NamedTuple):
    """A line of a file, and its request."""

    n: int
    data: bytes
    request: LineRequest


_FIELDS: Final = "id, purpose, name, bytes, created_s, expires_s"


def begin(
    db: StoreConnection, owner: str, purpose: str, name: str, now_s: int, quota: StoreQuota | None = None
) -> str:
    """Make a file that is not complete, and return its id. Raises StoreFullError."""
    if quota is not None:
        quota.check_count(db, owner, "files")
    file_id = f"file-{uuid.uuid4().hex}"
    db.execute(
        "INSERT INTO files (id, owner, purpose, name, created_s, expires_s) VALUES (?, ?, ?, ?, ?, ?)",
        (file_id, owner, purpose, name, now_s, now_s + UPLOAD_S),
    )
    return file_id


def append(db: StoreConnection, file_id: str, pieces: Sequence[Piece], now_s: int, quota: StoreQuota) -> None:
    """Add lines to a file that is not complete. Raises StoreFullError where that is too much."""
    db.executemany(
        "INSERT INTO pieces (file_id, n, data) VALUES (?, ?, ?)",
        ((file_id, piece.n, piece.data) for piece in pieces),
    )
    db.executemany(
        "INSERT INTO lines (file_id, n, custom_id, endpoint, model, order_key) VALUES (?, ?, ?, ?, ?, ?)",
        (
            (file_id, n, line.custom_id, line.endpoint, line.model, order_key(line.model, line.body))
            for n, _, line in pieces
        ),
    )
    (owner,) = db.execute(
        "UPDATE files SET bytes = bytes + ?, expires_s = ? WHERE id = ? RETURNING owner",
        (sum(len(piece.data) for piece in pieces), now_s + UPLOAD_S, file_id),
    ).fetchone()
    quota.check_bytes(db, owner)


def used_bytes(db: StoreConnection, owner: str) -> int:
    """Return how much a key keeps."""
    kept = " UNION ALL ".join(f"SELECT bytes FROM {table} WHERE owner = ?" for table in _COUNTED)
    (n,) = db.execute(
        f"SELECT coalesce(sum(bytes), 0) FROM ({kept}) AS kept", [owner] * len(_COUNTED)
    ).fetchone()
    return int(n)


def complete(db: StoreConnection, file_id: str, name: str, expires_s: int) -> FileRecord:
    """Mark a file as complete, so that clients see it, and return it."""
    row = db.execute(
        f"UPDATE files SET complete = 1, name = ?, expires_s = ? WHERE id = ? RETURNING {_FIELDS}",
        (name, expires_s, file_id),
    ).fetchone()
    return FileRecord(*row)


def find(db: StoreConnection, owner: str, file_id: str) -> FileRecord:
    """Return a file that clients may see. Raises NotInStoreError."""
    row = db.execute(
        f"SELECT {_FIELDS} FROM files WHERE id = ? AND owner = ? AND complete = 1 AND purpose <> ?",
        (file_id, owner, INTERNAL),
    ).fetchone()
    if row is None:
        raise NotInStoreError("file", file_id[:64])
    return FileRecord(*row)


def find_own(db: StoreConnection, file_id: str) -> FileRecord | None:
    """Return a file whoever may see it, if it is complete."""
    row = db.execute(f"SELECT {_FIELDS} FROM files WHERE id = ? AND complete = 1", (file_id,)).fetchone()
    return None if row is None else FileRecord(*row)


def listed(
    db: StoreConnection, owner: str, *, purpose: str | None, after: str | None, limit: int, newest: bool
) -> list[FileRecord]:
    """Return the files behind `after`, by the time they were made."""
    sign, order = ("<", "DESC") if newest else (">", "ASC")
    query = f"SELECT {_FIELDS} FROM files WHERE owner = ? AND complete = 1 AND purpose <> ?"
    values: list[str | int] = [owner, INTERNAL]
    if purpose is not None:
        query, values = f"{query} AND purpose = ?", [*values, purpose]
    if after is not None:
        find(db, owner, after)
        query = f"{query} AND seq {sign} (SELECT seq FROM files WHERE id = ?)"
        values = [*values, after]
    rows = db.execute(f"{query} ORDER BY seq {order} LIMIT ?", [*values, limit])
    return [FileRecord(*row) for row in rows]


def block(db: StoreConnection, file_id: str, after_n: int) -> tuple[bytes, int] | None:
    """Return about a megabyte of a file behind a piece, and its last piece; None at the end."""
    pieces = "FROM pieces WHERE file_id = ? AND n > ?"
    sizes = db.execute(
        f"SELECT n, length(data) {pieces} ORDER BY n LIMIT ?", (file_id, after_n, BLOCK_PIECES)
    ).fetchall()
    last_n = end_of_block(sizes, after_n)
    rows = db.execute(f"SELECT data {pieces} AND n <= ? ORDER BY n", (file_id, after_n, last_n))
    return (b"".join(row["data"] for row in rows), last_n) if sizes else None


def end_of_block(sizes: Iterable[tuple[int, int]], last: int, enough: int = BLOCK_BYTES) -> int:
    """Return the number of the piece with which there are enough bytes, or of the last one.

    `sizes` are numbers and bytes of pieces; without any, `last` is returned.
    """
    n_bytes = 0
    for number, size in sizes:
        last, n_bytes = number, n_bytes + size
        if n_bytes >= enough:
            break
    return last


def delete(db: StoreConnection, owner: str, file_id: str) -> None:
    """Hide a file from everybody. Raises NotInStoreError."""
    find(db, owner, file_id)
    drop(db, [file_id])


def drop(db: StoreConnection, file_ids: Iterable[str]) -> None:
    """Hide files from everybody; `clear` deletes what was in them."""
    values = [(GONE, file_id) for file_id in file_ids]
    db.executemany("UPDATE files SET owner = ?, complete = 0 WHERE id = ?", values)


def clear(db: StoreConnection) -> bool:
    """Delete some megabytes of files that are gone, and say whether there may be more."""
    row = db.execute("SELECT id FROM files WHERE owner = ? ORDER BY seq LIMIT 1", (GONE,)).fetchone()
    if row is None:
        return False
    sizes = db.execute(
        "SELECT n, length(data) FROM pieces WHERE file_id = ? ORDER BY n LIMIT ?", (row["id"], BLOCK_PIECES)
    ).fetchall()
    last_n = end_of_block(sizes, 0, CLEARED_BYTES)
    for table in ("pieces", "lines"):
        db.execute(f"DELETE FROM {table} WHERE file_id = ? AND n <= ?", (row["id"], last_n))
    if not sizes:
        db.execute("DELETE FROM files WHERE id = ?", (row["id"],))
    db.give_back()
    return True
