"""The page's chats in the store: functions over a connection, called by `Store`, each in one transaction.

What a chat is, the page knows; here it is a text, with a short one for lists. Each change has a number of its
own, larger than all before: clients send the one that they have, and ask for the changes after it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from cobali_ray.errors import ChatChangedError, NotInStoreError, StoreFullError
from cobali_ray.store.connection import StoreConnection
from cobali_ray.store.files import StoreQuota

MAX_DELETED: Final = 10_000
"""The latest deleted chats of a key that are known to have been there."""


class ChatRow(NamedTuple):
    id: str
    version: int
    summary: str | None
    """None: it was deleted."""


def write(
    db: StoreConnection, owner: str, chat_id: str, expected: int, texts: tuple[str, str], quota: StoreQuota
) -> int:
    """Write a chat, its summary and its text, in the place of the version `expected`; 0: there is none.

    Returns the new version. Raises ChatChangedError where the chat is at another, and StoreFullError.
    """
    row = _row(db, owner, chat_id)
    version = 0 if row is None else row["version"]
    if version != expected:
        raise ChatChangedError(chat_id, version)
    if row is None:
        query = "SELECT count(*) FROM chats WHERE owner = ? AND data IS NOT NULL"
        (n,) = db.execute(query, (owner,)).fetchone()
        if n >= quota.max_count:
            raise StoreFullError(f"{n} chats", "stored_count")
    version = _put(db, owner, chat_id, quota.kept_until_s, *texts)
    quota.check_bytes(db, owner)
    return version


def find(db: StoreConnection, owner: str, chat_id: str, kept_until_s: int) -> tuple[int, str]:
    """Return the version of a chat and its text, and keep it for longer. Raises NotInStoreError."""
    if (row := _row(db, owner, chat_id)) is None:
        raise NotInStoreError("chat", chat_id[:64])
    db.execute(
        "UPDATE chats SET kept_until_s = ? WHERE version = ? AND kept_until_s < ?",
        (kept_until_s, row["version"], kept_until_s),
    )
    return row["version"], row["data"]


def listed(db: StoreConnection, owner: str, after: int, limit: int) -> list[ChatRow]:
    """Return what changed behind this version, the oldest change first, chats that were deleted among it."""
    rows = db.execute(
        "SELECT id, version, CASE WHEN data IS NULL THEN NULL ELSE summary END FROM chats "
        "WHERE owner = ? AND version > ? ORDER BY version LIMIT ?",
        (owner, after, limit),
    )
    return [ChatRow(*row) for row in rows]


def delete(db: StoreConnection, owner: str, chat_id: str, kept_until_s: int) -> None:
    """Delete a chat; that it was there is known for as long as one is kept. Raises NotInStoreError."""
    if _row(db, owner, chat_id) is None:
        raise NotInStoreError("chat", chat_id[:64])
    _put(db, owner, chat_id, kept_until_s, "", None)
    db.execute(
        "DELETE FROM chats WHERE version IN (SELECT version FROM chats WHERE owner = ? AND data IS NULL "
        f"ORDER BY version DESC LIMIT 1 OFFSET {MAX_DELETED})",
        (owner,),
    )


def sweep(db: StoreConnection, now_s: int) -> int:
    """Delete what is too old, and return how many rows that was."""
    return int(db.execute("DELETE FROM chats WHERE kept_until_s <= ?", (now_s,)).rowcount)


def _row(db: StoreConnection, owner: str, chat_id: str) -> Any:
    query = "SELECT version, data FROM chats WHERE owner = ? AND id = ? AND data IS NOT NULL"
    return db.execute(query, (owner, chat_id)).fetchone()


def _put(
    db: StoreConnection, owner: str, chat_id: str, kept_until_s: int, summary: str, data: str | None
) -> int:
    db.execute("DELETE FROM chats WHERE owner = ? AND id = ?", (owner, chat_id))
    n_bytes = 0 if data is None else len(data.encode()) + len(summary.encode())
    row = db.execute(
        "INSERT INTO chats (owner, id, kept_until_s, summary, data, bytes) VALUES (?,?,?,?,?,?) "
        "RETURNING version",
        (owner, chat_id, kept_until_s, summary, data, n_bytes),
    ).fetchone()
    return int(row["version"])
