"""Responses in the store: functions over a connection, called by `Store`, each in one transaction.

What is kept of one are the items that came with it, and its body, in which its own items stand. The history
before it is not copied: a response names the one that it goes on from, or a conversation and how much of that
there was. One in the background also has its request, and the events that clients have read, each with what
the model wrote for it, so that the process that computes it next continues after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from cobali_ray.errors import InvalidParameterError, NotInStoreError, StoreFullError
from cobali_ray.store import conversations
from cobali_ray.store.connection import StoreConnection
from cobali_ray.store.files import StoreQuota, used_bytes

QUEUED, IN_PROGRESS, COMPLETED, INCOMPLETE, FAILED, CANCELLED = (
    *("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
)
"""By OpenAI's words."""
_OPEN: Final = f"status IN ('{QUEUED}', '{IN_PROGRESS}')"
_OUTPUT_ID: Final = re.compile(r"[a-z]+_([0-9a-f]{32})_\d+")
"""The id of an item of an answer, with that of the response in its middle."""
_CONTINUABLE: Final = (COMPLETED, INCOMPLETE)


class ResponseOrigin(NamedTuple):
    """What a response goes on from; nothing, if both are empty."""

    previous_id: str = ""
    conversation_id: str = ""
    conversation_n: int = 0
    """The conversation's last item then."""


class NewResponse(NamedTuple):
    id: str
    owner: str
    tenant: str
    origin: ResponseOrigin
    created_s: int
    items: bytes
    """Those that came with it, each with an id: a list in JSON."""


class EventRow(NamedTuple):
    """Events of a stream, one behind the other, and what the model wrote for them."""

    response_id: str
    n: int
    """The number of the first."""
    data: bytes
    deltas: bytes
    """For `api/responses/background.py`; b"": nothing."""


class BegunResponse(NamedTuple):
    """One that a process computes in the background."""

    id: str
    owner: str
    tenant: str
    created_s: int
    origin: ResponseOrigin
    request: bytes
    """The body that asked for it."""
    body: bytes
    n_begun: int
    """How many processes have begun to compute it, this one among them."""
    rows: list[EventRow]
    """What there was of it."""


def keep(
    db: StoreConnection, new: NewResponse, body: bytes, output: Sequence[dict[str, Any]], quota: StoreQuota
) -> None:
    """Keep a response that has ended, and add its items to its conversation. Raises StoreFullError."""
    status = orjson.loads(body)["status"]
    _insert(db, new, status, body, None, quota, streams=False)
    _join(db, new.owner, new.origin, new.items, output, quota.kept_until_s)


def queue(
    db: StoreConnection, new: NewResponse, body: bytes, request: bytes, events: bytes, quota: StoreQuota
) -> None:
    """Keep one that is to be computed; `events` are the first of its stream, if it has one.

    Raises StoreFullError.
    """
    _insert(db, new, QUEUED, body, request, quota, streams=bool(events))
    if events:
        append(db, [EventRow(new.id, 0, events, b"")])


def _insert(
    db: StoreConnection,
    new: NewResponse,
    status: str,
    body: bytes,
    request: bytes | None,
    quota: StoreQuota,
    *,
    streams: bool,
) -> None:
    n_bytes = len(new.items) + len(body) + len(request or b"")
    _prolong(db, new.owner, new.origin, quota.kept_until_s)
    make_room(db, new.owner, n_bytes, quota)
    db.execute(
        "INSERT INTO responses (id, owner, tenant, status, created_s, kept_until_s, previous_id, "
        "conversation_id, conversation_n, items, body, request, streams, bytes) "
        "VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        (
            *(new.id, new.owner, new.tenant, status, new.created_s, quota.kept_until_s),
            *(*new.origin, new.items, body, request, int(streams), n_bytes),
        ),
    )


def make_room(db: StoreConnection, owner: str, n_bytes: int, quota: StoreQuota) -> None:
    """Delete the responses last continued longest ago. Raises StoreFullError where that is not enough."""
    (n,) = db.execute("SELECT count(*) FROM responses WHERE owner = ?", (owner,)).fetchone()
    used = used_bytes(db, owner)
    old = db.execute(
        f"SELECT id, bytes FROM responses WHERE owner = ? AND NOT {_OPEN} ORDER BY kept_until_s, seq",
        (owner,),
    )
    oldest: list[str] = []
    while n >= quota.max_count or used + n_bytes > quota.max_bytes:
        if (row := old.fetchone()) is None:
            if n >= quota.max_count:
                raise StoreFullError(f"{n} responses", "stored_count")
            raise StoreFullError(f"{quota.max_bytes:,} bytes, or would with this", "stored_gib")
        oldest.append(row["id"])
        n, used = n - 1, used - row["bytes"]
    old.close()
    drop(db, oldest)


def find(db: StoreConnection, owner: str, response_id: str) -> bytes:
    """Return the body of a response as it is now. Raises NotInStoreError."""
    return bytes(_row(db, owner, response_id)["body"])


def delete(db: StoreConnection, owner: str, response_id: str) -> None:
    """Delete a response; one that is being computed is not computed further. Raises NotInStoreError."""
    _row(db, owner, response_id)
    drop(db, [response_id])


def drop(db: StoreConnection, response_ids: Iterable[str]) -> None:
    """Delete responses and their events."""
    values = [(response_id,) for response_id in response_ids]
    db.executemany("DELETE FROM response_events WHERE response_id = ?", values)
    db.executemany("DELETE FROM responses WHERE id = ?", values)


# -- the history before a response


def history(db: StoreConnection, owner: str, origin: ResponseOrigin, max_bytes: int) -> list[bytes]:
    """Return lists of items in JSON, the oldest first.

    Raises NotInStoreError for what is not there, and InvalidParameterError for what cannot be continued.
    """
    newest_first: list[bytes] = []
    n_left = max_bytes

    def take(*lists: bytes) -> None:
        nonlocal n_left
        n_left -= sum(map(len, lists))
        if n_left < 0:
            field = "previous_response_id" if origin.previous_id else "conversation"
            problem = f": what it goes on from is longer than {max_bytes:,} bytes (setting max_body_bytes)"
            raise InvalidParameterError(field, problem)
        newest_first.extend(reversed(lists))

    previous_id = origin.previous_id
    while previous_id:
        row = _row(db, owner, previous_id)
        if row["status"] not in _CONTINUABLE:
            raise InvalidParameterError("previous_response_id", f"names a response that is {row['status']}")
        body = orjson.loads(row["body"])
        take(row["items"], orjson.dumps(body["output"]))
        previous_id = row["previous_id"]
        if row["conversation_id"]:
            origin = origin._replace(
                conversation_id=row["conversation_id"], conversation_n=row["conversation_n"]
            )
    if origin.conversation_id:
        take(*conversations.upto(db, owner, origin.conversation_id, origin.conversation_n))
    return newest_first[::-1]


def input_items(
    db: StoreConnection,
    owner: str,
    response_id: str,
    max_bytes: int,
    *,
    after: str | None,
    limit: int,
    newest: bool,
) -> list[dict[str, Any]]:
    """Return items that a response was made from, those behind `after`. Raises what `history` does."""
    row = _row(db, owner, response_id)
    lists = [*history(db, owner, _origin(row), max_bytes), row["items"]]
    items: list[dict[str, Any]] = [item for data in lists for item in orjson.loads(data)]
    if newest:
        items.reverse()
    first = 0
    if after is not None:
        first = next((place for place, item in enumerate(items, 1) if item["id"] == after), 0)
        if not first:
            raise NotInStoreError("item", after[:64])
    return items[first : first + limit]


def referenced(
    db: StoreConnection, owner: str, item_ids: Iterable[str], max_bytes: int
) -> dict[str, dict[str, Any]]:
    """Return items by their ids, as far as they are there: of answers, or of a conversation.

    Raises InvalidParameterError where they are more than this many bytes.
    """
    items: dict[str, dict[str, Any]] = {}
    read = set[str]()
    for item_id in item_ids:
        match = _OUTPUT_ID.fullmatch(item_id)
        if match is not None and match[1] not in read:
            read.add(match[1])
            query = "SELECT body FROM responses WHERE id = ? AND owner = ?"
            if (row := db.execute(query, (f"resp_{match[1]}", owner)).fetchone()) is not None:
                items |= {item["id"]: item for item in orjson.loads(row["body"])["output"]}
        if item_id not in items and (data := conversations.anywhere(db, owner, item_id)) is not None:
            items[item_id] = orjson.loads(data)
        max_bytes -= len(orjson.dumps(items.get(item_id)))
        if max_bytes < 0:
            raise InvalidParameterError("input", ": its items are too long together (setting max_body_bytes)")
    return items


def _prolong(db: StoreConnection, owner: str, origin: ResponseOrigin, kept_until_s: int) -> None:
    """Keep all that a response goes on from for as long as itself, the conversation where that began too."""
    chain = (
        "WITH RECURSIVE chain (id, previous_id, conversation_id) AS ("
        "SELECT id, previous_id, conversation_id FROM responses WHERE id = ? AND owner = ? UNION ALL "
        "SELECT r.id, r.previous_id, r.conversation_id "
        "FROM responses AS r JOIN chain ON r.id = chain.previous_id)"
    )
    db.execute(
        f"{chain} UPDATE responses SET kept_until_s = ? WHERE kept_until_s < ? "
        "AND id IN (SELECT id FROM chain)",
        (origin.previous_id, owner, kept_until_s, kept_until_s),
    )
    db.execute(
        f"{chain} UPDATE conversations SET kept_until_s = ? WHERE owner = ? AND kept_until_s < ? "
        "AND (id = ? OR id IN (SELECT conversation_id FROM chain))",
        (origin.previous_id, owner, kept_until_s, owner, kept_until_s, origin.conversation_id),
    )


def _join(
    db: StoreConnection,
    owner: str,
    origin: ResponseOrigin,
    items: bytes,
    output: Sequence[dict[str, Any]],
    kept_until_s: int,
) -> None:
    """Add a response's items to its conversation, if that still exists."""
    if origin.conversation_id and conversations.exists(db, owner, origin.conversation_id):
        conversations.append(db, origin.conversation_id, [*orjson.loads(items), *output], kept_until_s)


# -- in the background


def waiting(db: StoreConnection) -> list[tuple[str, str, str]]:
    """Return ids, owners and names of keys of all to be computed, the oldest first: it is looked at often."""
    rows = db.execute(f"SELECT id, owner, tenant FROM responses WHERE {_OPEN} ORDER BY seq")
    return [(row["id"], row["owner"], row["tenant"]) for row in rows]


def begin(db: StoreConnection, response_id: str) -> BegunResponse | None:
    """Note that a process computes a response, and return it; None where it is over."""
    row = db.execute(
        f"UPDATE responses SET n_begun = n_begun + 1 WHERE id = ? AND {_OPEN} RETURNING *", (response_id,)
    ).fetchone()
    if row is None:
        return None
    body = orjson.dumps(orjson.loads(row["body"]) | {"status": IN_PROGRESS})
    db.execute("UPDATE responses SET status = ?, body = ? WHERE id = ?", (IN_PROGRESS, body, response_id))
    return BegunResponse(
        id=row["id"],
        owner=row["owner"],
        tenant=row["tenant"],
        created_s=row["created_s"],
        origin=_origin(row),
        request=row["request"],
        body=row["body"],
        n_begun=row["n_begun"],
        rows=events(db, response_id, 0),
    )


def put_back(db: StoreConnection, response_id: str) -> None:
    """Note that a response that was begun was refused: that does not count as a process that began it."""
    db.execute("UPDATE responses SET n_begun = n_begun - 1 WHERE id = ?", (response_id,))


def append(db: StoreConnection, rows: Iterable[EventRow]) -> None:
    """Add events to streams, each unless its response has ended or is gone."""
    for row in rows:
        # Its row is not written: with it goes the whole request. What its events take is counted at its end.
        query = f"SELECT 1 FROM responses WHERE id = ? AND {_OPEN}"
        if db.execute(query, (row.response_id,)).fetchone() is not None:
            db.execute("INSERT INTO response_events (response_id, n, data, deltas) VALUES (?,?,?,?)", row)


def end(db: StoreConnection, response_id: str, body: dict[str, Any]) -> None:
    """End a response, unless it has ended. Its events stay if it streams."""
    row = db.execute(f"SELECT * FROM responses WHERE id = ? AND {_OPEN}", (response_id,)).fetchone()
    if row is None:
        return
    if body["status"] in _CONTINUABLE:
        _join(db, row["owner"], _origin(row), row["items"], body["output"], row["kept_until_s"])
    if not row["streams"]:
        db.execute("DELETE FROM response_events WHERE response_id = ?", (response_id,))
    data = orjson.dumps(body)
    db.execute(
        "UPDATE responses SET status = ?, body = ?, request = NULL, bytes = length(items) + ? + (SELECT "
        "coalesce(sum(length(data) + length(deltas)), 0) FROM response_events "
        "WHERE response_id = responses.id) WHERE id = ?",
        (body["status"], data, len(data), response_id),
    )


def cancel(db: StoreConnection, owner: str, response_id: str) -> bytes:
    """Stop computing a response, and return its body; one that has ended stays as it is.

    Raises NotInStoreError, and InvalidParameterError where it is not in the background.
    """
    body = orjson.loads(_row(db, owner, response_id)["body"])
    if not body["background"]:
        raise InvalidParameterError("response_id", "names a response that is not in the background")
    end(db, response_id, body | {"status": CANCELLED})
    return find(db, owner, response_id)


def events(db: StoreConnection, response_id: str, first: int) -> list[EventRow]:
    """Return the rows of a stream from the one on that has the event of this number."""
    rows = db.execute(
        "SELECT * FROM response_events WHERE response_id = ? AND n >= "
        "(SELECT coalesce(max(n), 0) FROM response_events WHERE response_id = ? AND n <= ?) ORDER BY n",
        (response_id, response_id, first),
    )
    return [EventRow(*row) for row in rows]


class StreamState(NamedTuple):
    rows: list[EventRow]
    over: bool
    body: bytes


def stream(db: StoreConnection, owner: str, response_id: str, first: int) -> StreamState:
    """Return its owner's stream from there on, and whether more comes.

    Raises NotInStoreError, and InvalidParameterError for a response without a stream.
    """
    query = "SELECT status, streams FROM responses WHERE id = ? AND owner = ?"
    row = db.execute(query, (response_id, owner)).fetchone()
    if row is None:
        raise NotInStoreError("response", response_id[:64])
    if not row["streams"]:
        raise InvalidParameterError("stream", ": only a response with background and stream has one")
    over = row["status"] not in {QUEUED, IN_PROGRESS}
    return StreamState(events(db, response_id, first), over, find(db, owner, response_id) if over else b"")


def sweep(db: StoreConnection, now_s: int) -> int:
    """Delete what is too old, and return how many responses and conversations that was."""
    old = db.execute(f"SELECT id FROM responses WHERE kept_until_s <= ? AND NOT {_OPEN}", (now_s,)).fetchall()
    drop(db, [row["id"] for row in old])
    return len(old) + conversations.sweep(db, now_s)


# -- inside


def _row(db: StoreConnection, owner: str, response_id: str) -> Any:
    row = db.execute("SELECT * FROM responses WHERE id = ? AND owner = ?", (response_id, owner)).fetchone()
    if row is None:
        raise NotInStoreError("response", response_id[:64])
    return row


def _origin(row: Any) -> ResponseOrigin:
    return ResponseOrigin(row["previous_id"], row["conversation_id"], row["conversation_n"])
