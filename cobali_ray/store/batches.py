"""Batches in the store: functions over a connection, called by `Store`, each in one transaction.

A line that waits is a row of `pending`. The transaction that deletes the row writes the answer, so each line
has exactly one answer, whichever process is killed or answers it again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from cobali_ray.errors import BatchStateError, FileInUseError, NotInStoreError
from cobali_ray.store import files
from cobali_ray.store.connection import StoreConnection
from cobali_ray.store.files import StoreQuota
from cobali_ray.store.lines import ANTHROPIC, FORMATS, LINE_ID, OPENAI, Answer
from cobali_ray.store.states import OVER, BatchChange, BatchStatus, advance, may

WINDOW_S: Final = 24 * 3600
"""How long a batch has to be answered; OpenAI knows no other."""
PREFIXES: Final = {OPENAI: "batch_", ANTHROPIC: "msgbatch_"}
_OVER: Final = ", ".join(f"'{status}'" for status in sorted(OVER))
_LEFT: Final = {BatchChange.EXPIRE: "batch_expired", BatchChange.STOP: "batch_cancelled"}


class BatchRecord(NamedTuple):
    """What is known of a batch."""

    seq: int
    id: str
    owner: str
    tenant: str
    format: str
    endpoint: str
    status: BatchStatus
    input_file_id: str
    output_file_id: str
    error_file_id: str
    created_s: int
    expires_s: int
    kept_until_s: int
    times: Mapping[str, int]
    """When it came into each state, by the state's name."""
    metadata: Mapping[str, str]
    errors: list[dict[str, Any]]
    n_total: int
    n_completed: int
    n_failed: int

    @property
    def over(self) -> bool:
        """Whether nothing happens to it any more."""
        return self.status in OVER

    @property
    def n_left(self) -> int:
        """Lines without an answer from a model."""
        return self.n_total - self.n_completed - self.n_failed


class NewBatch(NamedTuple):
    """What its owner asks of a batch."""

    owner: str
    tenant: str
    format: str
    endpoint: str
    input_file_id: str
    metadata: Mapping[str, str] = {}


class PendingLine(NamedTuple):
    """A line without an answer."""

    turn: int
    custom_id: str
    model: str
    data: bytes


class AnsweredLine(NamedTuple):
    turn: int
    custom_id: str
    answer: Answer


def create(db: StoreConnection, new: NewBatch, now_s: int, quota: StoreQuota) -> BatchRecord:
    """Make a batch of a file that is there. Raises StoreFullError."""
    quota.check_count(db, new.owner, "batches")
    quota.check_bytes(db, new.owner)
    batch_id = f"{PREFIXES[new.format]}{uuid.uuid4().hex}"
    names = ("output", "error") if new.format == OPENAI else ("results",)
    purpose = files.OUTPUT if new.format == OPENAI else files.INTERNAL
    outputs = [files.begin(db, new.owner, purpose, f"{batch_id}_{name}.jsonl", now_s) for name in names]
    for file_id in outputs:  # it is no upload that may have been left
        db.execute("UPDATE files SET expires_s = ? WHERE id = ?", (quota.kept_until_s, file_id))
    db.execute(
        "INSERT INTO batches (id, owner, tenant, format, endpoint, status, input_file_id, output_file_id, "
        "error_file_id, created_s, expires_s, kept_until_s, metadata, n_total) "
        "VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?, (SELECT count(*) FROM lines WHERE file_id = ?))",
        (
            *(batch_id, new.owner, new.tenant, new.format, new.endpoint, BatchStatus.VALIDATING),
            *(new.input_file_id, outputs[0], outputs[-1]),
            *(now_s, now_s + WINDOW_S, quota.kept_until_s, json.dumps(dict(new.metadata))),
            new.input_file_id,
        ),
    )
    return find(db, new.owner, batch_id, new.format)


def find(db: StoreConnection, owner: str, batch_id: str, format_: str) -> BatchRecord:
    """Return a batch. Raises NotInStoreError."""
    row = db.execute(
        "SELECT * FROM batches WHERE id = ? AND owner = ? AND format = ?", (batch_id, owner, format_)
    ).fetchone()
    if row is None:
        raise NotInStoreError("batch", batch_id[:64])
    return _record(row)


def listed(
    db: StoreConnection,
    owner: str,
    format_: str,
    *,
    limit: int,
    after: str | None = None,
    before: str | None = None,
) -> list[BatchRecord]:
    """Return batches, the newest first: those behind `after`, or the last ones before `before`."""
    query = "SELECT * FROM batches WHERE owner = ? AND format = ?"
    values: list[str | int] = [owner, format_]
    edge, sign, order = (after, "<", "DESC") if before is None else (before, ">", "ASC")
    if edge is not None:
        query, values = f"{query} AND seq {sign} ?", [*values, find(db, owner, edge, format_).seq]
    rows = db.execute(f"{query} ORDER BY seq {order} LIMIT ?", [*values, limit]).fetchall()
    return sorted((_record(row) for row in rows), key=lambda batch: -batch.seq)


def unfinished(db: StoreConnection) -> list[BatchRecord]:
    """Return all batches that are not over, the oldest first."""
    rows = db.execute(f"SELECT * FROM batches WHERE status NOT IN ({_OVER}) ORDER BY seq")
    return [_record(row) for row in rows]


def cancel(db: StoreConnection, owner: str, batch_id: str, format_: str, now_s: int) -> BatchRecord:
    """Have no more lines answered. Raises BatchStateError where that is too late."""
    batch = find(db, owner, batch_id, format_)
    if batch.status is BatchStatus.CANCELLING:
        return batch
    if not may(batch.status, BatchChange.CANCEL):
        raise BatchStateError(batch_id, batch.status, "cancelled")
    return _change(db, batch, BatchChange.CANCEL, now_s)


def delete(db: StoreConnection, owner: str, batch_id: str, format_: str) -> None:
    """Delete a batch that is over, with its files. Raises BatchStateError."""
    batch = find(db, owner, batch_id, format_)
    if not batch.over:
        raise BatchStateError(batch_id, batch.status, "deleted before it has ended")
    _drop(db, batch)


def require_unused(db: StoreConnection, file_id: str) -> None:
    """Raise FileInUseError where a batch that is not over is made of a file."""
    row = db.execute(
        f"SELECT id FROM batches WHERE input_file_id = ? AND status NOT IN ({_OVER})",
        (file_id,),
    ).fetchone()
    if row is not None:
        raise FileInUseError(file_id, row["id"])


# -- what is done for a batch


def start(db: StoreConnection, batch: BatchRecord, now_s: int) -> BatchRecord:
    """Put the lines in order, so that those with a common beginning are neighbours; or refuse them."""
    values = (batch.input_file_id, batch.endpoint)
    wrong = db.execute(
        "SELECT n, endpoint FROM lines WHERE file_id = ? AND endpoint <> ? ORDER BY n LIMIT 100", values
    ).fetchall()
    errors = [
        {
            "code": "mismatched_endpoint",
            "line": row["n"],
            "message": f"The url of this line is {row['endpoint']}, that of the batch {batch.endpoint}.",
            "param": "url",
        }
        for row in wrong
    ]
    if not batch.n_total:
        errors.append(
            {"code": "empty_file", "line": None, "message": "The file has no lines.", "param": None}
        )
    if errors:
        db.execute("UPDATE batches SET errors = ? WHERE id = ?", (json.dumps(errors), batch.id))
        return _end(db, batch, BatchChange.REFUSE, now_s)
    _queue(db, batch)
    return _change(db, batch, BatchChange.START, now_s)


def pending(db: StoreConnection, batch: BatchRecord, after_turn: int, limit: int) -> list[PendingLine]:
    """Return the next lines that have no answer, from behind a turn: fewer if they are long."""
    lines = "FROM pending JOIN pieces ON file_id = ? AND pieces.n = pending.n WHERE batch_id = ? AND turn > ?"
    values = (batch.input_file_id, batch.id, after_turn)
    sizes = db.execute(
        f"SELECT turn, length(data) {lines} ORDER BY turn LIMIT ?", (*values, limit)
    ).fetchall()
    last_turn = files.end_of_block(sizes, after_turn)
    query = f"SELECT turn, custom_id, model, data {lines} AND turn <= ? ORDER BY turn"
    return [PendingLine(*row) for row in db.execute(query, (*values, last_turn))]


def answer(db: StoreConnection, batch_id: str, answered: Iterable[AnsweredLine], now_s: int) -> None:
    """Write answers, each unless its line has one, and note it when no line is left."""
    row = db.execute("SELECT * FROM batches WHERE id = ?", (batch_id,)).fetchone()
    if row is None or (batch := _record(row)).over:
        return
    write, n_good, n_bad = FORMATS[batch.format].answered, 0, 0
    for turn, custom_id, result in answered:
        file_id = batch.output_file_id if result.good else batch.error_file_id
        if _write(db, batch_id, turn, file_id, write(custom_id, result)):
            n_good, n_bad = n_good + result.good, n_bad + (not result.good)
    db.execute(
        "UPDATE batches SET n_completed = n_completed + ?, n_failed = n_failed + ? WHERE id = ?",
        (n_good, n_bad, batch_id),
    )
    left = batch.n_left - n_good - n_bad
    if not left and may(batch.status, BatchChange.ANSWER_ALL):
        _change(db, batch, BatchChange.ANSWER_ALL, now_s)


def finish(db: StoreConnection, batch: BatchRecord, now_s: int) -> BatchRecord:
    """Close the files of a batch whose lines all have answers."""
    return _end(db, batch, BatchChange.FINISH, now_s)


def give_up(db: StoreConnection, batch: BatchRecord, change: BatchChange, now_s: int) -> BatchRecord:
    """End a batch that expired or was cancelled: lines without an answer get one that says so."""
    code, write = _LEFT[change], FORMATS[batch.format].left
    if BatchStatus.IN_PROGRESS not in batch.times:
        _queue(db, batch)
    file_id = batch.error_file_id
    rows = db.execute("SELECT n, custom_id FROM pending WHERE batch_id = ?", (batch.id,)).fetchall()
    db.executemany(
        "INSERT INTO pieces (file_id, n, data) VALUES (?, ?, ?)",
        ((file_id, n, write(f"{LINE_ID}{uuid.uuid4().hex}", custom_id, code)) for n, custom_id in rows),
    )
    db.execute("DELETE FROM pending WHERE batch_id = ?", (batch.id,))
    db.execute(
        "UPDATE files SET bytes = (SELECT coalesce(sum(length(data)), 0) FROM pieces WHERE file_id = ?) "
        "WHERE id = ?",
        (file_id, file_id),
    )
    return _end(db, batch, change, now_s)


def sweep(db: StoreConnection, now_s: int) -> int:
    """Delete what is too old, and return how many files and batches that was."""
    old = db.execute(
        "SELECT id FROM files WHERE expires_s <= ? AND owner <> ? AND NOT EXISTS (SELECT 1 FROM batches "
        f"WHERE files.id IN (input_file_id, output_file_id, error_file_id) AND status NOT IN ({_OVER}))",
        (now_s, files.GONE),
    ).fetchall()
    files.drop(db, [row["id"] for row in old])
    rows = db.execute(
        f"SELECT * FROM batches WHERE kept_until_s <= ? AND status IN ({_OVER})", (now_s,)
    ).fetchall()
    for row in rows:
        _drop(db, _record(row))
    db.give_back()
    return len(rows) + len(old)


# -- inside


def _queue(db: StoreConnection, batch: BatchRecord) -> None:
    db.execute(
        "INSERT INTO pending SELECT ?, row_number() OVER (ORDER BY order_key, n), n, custom_id, model "
        "FROM lines WHERE file_id = ?",
        (batch.id, batch.input_file_id),
    )


def _write(db: StoreConnection, batch_id: str, turn: int, file_id: str, line: bytes) -> bool:
    row = db.execute(
        "DELETE FROM pending WHERE batch_id = ? AND turn = ? RETURNING n", (batch_id, turn)
    ).fetchone()
    if row is None:
        return False
    db.execute("INSERT INTO pieces (file_id, n, data) VALUES (?, ?, ?)", (file_id, row["n"], line))
    db.execute("UPDATE files SET bytes = bytes + ? WHERE id = ?", (len(line), file_id))
    return True


def _end(db: StoreConnection, batch: BatchRecord, change: BatchChange, now_s: int) -> BatchRecord:
    """Show the files that have lines, for as long as they are kept, and drop the others."""
    kept_until_s = now_s + batch.kept_until_s - batch.created_s
    for file_id in {batch.output_file_id, batch.error_file_id}:
        (n,) = db.execute("SELECT bytes FROM files WHERE id = ?", (file_id,)).fetchone()
        if n:
            query = "UPDATE files SET complete = 1, expires_s = ? WHERE id = ?"
            db.execute(query, (kept_until_s, file_id))
        else:
            files.drop(db, [file_id])
    db.execute("UPDATE batches SET kept_until_s = ? WHERE id = ?", (kept_until_s, batch.id))
    return _change(db, batch, change, now_s)


def _change(db: StoreConnection, batch: BatchRecord, change: BatchChange, now_s: int) -> BatchRecord:
    status = advance(batch.status, change)
    times = dict(batch.times) | {status: now_s}
    row = db.execute(
        "UPDATE batches SET status = ?, times = ? WHERE id = ? AND status = ? RETURNING *",
        (status, json.dumps(times), batch.id, batch.status),
    ).fetchone()
    if row is None:  # another one has changed it meanwhile
        raise BatchStateError(batch.id, "another one now", change)
    return _record(row)


def _drop(db: StoreConnection, batch: BatchRecord) -> None:
    own = {batch.output_file_id, batch.error_file_id}
    if batch.format == ANTHROPIC:
        own.add(batch.input_file_id)
    files.drop(db, own)
    db.execute("DELETE FROM pending WHERE batch_id = ?", (batch.id,))
    db.execute("DELETE FROM batches WHERE id = ?", (batch.id,))


def _record(row: Any) -> BatchRecord:
    values = dict(row)
    for name in ("times", "metadata", "errors"):
        values[name] = json.loads(values[name])
    return BatchRecord(**values | {"status": BatchStatus(values["status"])})


def output_ids(db: StoreConnection, batches: Iterable[BatchRecord]) -> Iterator[tuple[BatchRecord, set[str]]]:
    """Yield batches, each with the ids of its output files that can be read."""
    for batch in batches:
        rows = db.execute(
            "SELECT id FROM files WHERE complete = 1 AND id IN (?, ?)",
            (batch.output_file_id, batch.error_file_id),
        )
        yield batch, {row["id"] for row in rows}
