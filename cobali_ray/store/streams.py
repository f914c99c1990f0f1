"""Streams that ended: functions over a connection, called by `Store`, each in one transaction."""

from __future__ import annotations

import zlib

from cobali_ray.store.connection import StoreConnection
from cobali_ray.store.files import StoreQuota

LEVEL = 1
"""Of zlib: events are alike, and become a tenth."""


def keep(db: StoreConnection, owner: str, stream_id: str, events: bytes, quota: StoreQuota) -> None:
    """Keep all events of a stream. Raises StoreFullError."""
    data = zlib.compress(events, LEVEL)
    db.execute(
        "INSERT INTO streams (owner, id, kept_until_s, data, bytes) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (owner, id) DO UPDATE "
        "SET kept_until_s = excluded.kept_until_s, data = excluded.data, bytes = excluded.bytes",
        (owner, stream_id, quota.kept_until_s, data, len(data)),
    )
    quota.check_bytes(db, owner)


def find(db: StoreConnection, owner: str, stream_id: str) -> bytes | None:
    """Return the events of a stream, if it is there."""
    query = "SELECT data FROM streams WHERE owner = ? AND id = ?"
    row = db.execute(query, (owner, stream_id)).fetchone()
    return None if row is None else zlib.decompress(row["data"])


def delete(db: StoreConnection, owner: str, stream_id: str) -> bool:
    """Delete a stream, and say whether it was there."""
    query = "DELETE FROM streams WHERE owner = ? AND id = ?"
    return bool(db.execute(query, (owner, stream_id)).rowcount)


def sweep(db: StoreConnection, now_s: int) -> int:
    """Delete what is too old, and return how many that was."""
    return int(db.execute("DELETE FROM streams WHERE kept_until_s <= ?", (now_s,)).rowcount)
