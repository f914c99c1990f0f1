"""Conversations in the store: functions over a connection, called by `Store`, each in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from cobali_ray.errors import NotInStoreError
from cobali_ray.store.connection import StoreConnection
from cobali_ray.store.files import StoreQuota


class ConversationRecord(NamedTuple):
    id: str
    created_s: int
    metadata: Mapping[str, str]


def create(
    db: StoreConnection,
    owner: str,
    metadata: Mapping[str, str],
    items: Sequence[dict[str, Any]],
    now_s: int,
    quota: StoreQuota,
) -> ConversationRecord:
    """Begin a conversation with these items. Raises StoreFullError."""
    quota.check_count(db, owner, "conversations")
    conversation_id = f"conv_{uuid.uuid4().hex}"
    db.execute(
        "INSERT INTO conversations (id, owner, created_s, kept_until_s, metadata) VALUES (?,?,?,?,?)",
        (conversation_id, owner, now_s, quota.kept_until_s, orjson.dumps(metadata).decode()),
    )
    add(db, owner, conversation_id, items, quota)
    return find(db, owner, conversation_id)


def find(db: StoreConnection, owner: str, conversation_id: str) -> ConversationRecord:
    """Return a conversation. Raises NotInStoreError."""
    query = "SELECT id, created_s, metadata FROM conversations WHERE id = ? AND owner = ?"
    row = db.execute(query, (conversation_id, owner)).fetchone()
    if row is None:
        raise NotInStoreError("conversation", conversation_id[:64])
    return ConversationRecord(row["id"], row["created_s"], orjson.loads(row["metadata"]))


def exists(db: StoreConnection, owner: str, conversation_id: str) -> bool:
    query = "SELECT 1 FROM conversations WHERE id = ? AND owner = ?"
    return db.execute(query, (conversation_id, owner)).fetchone() is not None


def update(
    db: StoreConnection, owner: str, conversation_id: str, metadata: Mapping[str, str]
) -> ConversationRecord:
    """Put other metadata in the place of what there is. Raises NotInStoreError."""
    find(db, owner, conversation_id)
    query = "UPDATE conversations SET metadata = ? WHERE id = ?"
    db.execute(query, (orjson.dumps(metadata).decode(), conversation_id))
    return find(db, owner, conversation_id)


def delete(db: StoreConnection, owner: str, conversation_id: str) -> None:
    """Delete a conversation with its items. Raises NotInStoreError."""
    find(db, owner, conversation_id)
    drop(db, [conversation_id])


def drop(db: StoreConnection, conversation_ids: Iterable[str]) -> None:
    """Delete conversations and their items."""
    values = [(conversation_id,) for conversation_id in conversation_ids]
    db.executemany("DELETE FROM items WHERE conversation_id = ?", values)
    db.executemany("DELETE FROM conversations WHERE id = ?", values)


def sweep(db: StoreConnection, now_s: int) -> int:
    """Delete what is too old, and return how many that was."""
    old = db.execute("SELECT id FROM conversations WHERE kept_until_s <= ?", (now_s,)).fetchall()
    drop(db, [row["id"] for row in old])
    return len(old)


# -- items


def add(
    db: StoreConnection, owner: str, conversation_id: str, items: Sequence[dict[str, Any]], quota: StoreQuota
) -> None:
    """Add items that a client sends, each with an id. Raises NotInStoreError and StoreFullError."""
    find(db, owner, conversation_id)
    append(db, conversation_id, items, quota.kept_until_s)
    quota.check_bytes(db, owner)


def append(
    db: StoreConnection, conversation_id: str, items: Sequence[dict[str, Any]], kept_until_s: int
) -> None:
    """Add items, and keep the conversation for longer."""
    n = last_n(db, conversation_id)
    lines = [orjson.dumps(item) for item in items]
    db.executemany(
        "INSERT INTO items (conversation_id, n, id, data) VALUES (?,?,?,?)",
        [(conversation_id, n + i, items[i - 1]["id"], line) for i, line in enumerate(lines, 1)],
    )
    db.execute(
        "UPDATE conversations SET bytes = bytes + ?, "
        "kept_until_s = CASE WHEN kept_until_s < ? THEN ? ELSE kept_until_s END WHERE id = ?",
        (sum(map(len, lines)), kept_until_s, kept_until_s, conversation_id),
    )


def last_n(db: StoreConnection, conversation_id: str) -> int:
    """Return the number of the last item; 0 where there is none."""
    query = "SELECT coalesce(max(n), 0) FROM items WHERE conversation_id = ?"
    (n,) = db.execute(query, (conversation_id,)).fetchone()
    return int(n)


def position(db: StoreConnection, owner: str, conversation_id: str) -> int:
    """Return the same for its owner. Raises NotInStoreError."""
    find(db, owner, conversation_id)
    return last_n(db, conversation_id)


def upto(db: StoreConnection, owner: str, conversation_id: str, n: int) -> list[bytes]:
    """Return the items as far as this one, each as a list in JSON. Raises NotInStoreError."""
    find(db, owner, conversation_id)
    query = "SELECT data FROM items WHERE conversation_id = ? AND n <= ? ORDER BY n"
    return [b"[%b]" % row["data"] for row in db.execute(query, (conversation_id, n))]


def listed(
    db: StoreConnection, owner: str, conversation_id: str, *, after: str | None, limit: int, newest: bool
) -> list[bytes]:
    """Return the items behind `after` in JSON. Raises NotInStoreError."""
    find(db, owner, conversation_id)
    sign, order = ("<", "DESC") if newest else (">", "ASC")
    query, values = "SELECT data FROM items WHERE conversation_id = ?", [conversation_id]
    if after is not None:
        item(db, owner, conversation_id, after)
        query = f"{query} AND n {sign} (SELECT n FROM items WHERE conversation_id = ? AND id = ?)"
        values = [*values, conversation_id, after]
    rows = db.execute(f"{query} ORDER BY n {order} LIMIT ?", [*values, limit])
    return [row["data"] for row in rows]


def item(db: StoreConnection, owner: str, conversation_id: str, item_id: str) -> bytes:
    """Return an item in JSON. Raises NotInStoreError."""
    find(db, owner, conversation_id)
    query = "SELECT data FROM items WHERE conversation_id = ? AND id = ?"
    row = db.execute(query, (conversation_id, item_id)).fetchone()
    if row is None:
        raise NotInStoreError("item", item_id[:64])
    return bytes(row["data"])


def anywhere(db: StoreConnection, owner: str, item_id: str) -> bytes | None:
    """Return an item of any conversation in JSON, if it is there."""
    query = "SELECT data FROM items JOIN conversations AS one ON one.id = conversation_id WHERE items.id = ?"
    row = db.execute(f"{query} AND owner = ?", (item_id, owner)).fetchone()
    return None if row is None else bytes(row["data"])


def delete_item(db: StoreConnection, owner: str, conversation_id: str, item_id: str) -> ConversationRecord:
    """Delete an item, and return its conversation. Raises NotInStoreError."""
    n_bytes = len(item(db, owner, conversation_id, item_id))
    db.execute("DELETE FROM items WHERE conversation_id = ? AND id = ?", (conversation_id, item_id))
    db.execute("UPDATE conversations SET bytes = bytes - ? WHERE id = ?", (n_bytes, conversation_id))
    # The next item gets the number of the last one: no response may count it among those that it continues.
    last = last_n(db, conversation_id)
    query = "UPDATE responses SET conversation_n = ? WHERE conversation_id = ? AND conversation_n > ?"
    db.execute(query, (last, conversation_id, last))
    return find(db, owner, conversation_id)
