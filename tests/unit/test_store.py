"""The store: what was acknowledged is there, once, whoever was killed and whoever else was at it."""

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from store_killed import EVENT, N_EVENTS, N_LINES, create, piece, take_lock

from cobali_ray.api.batches.files import _delete as delete_file
from cobali_ray.errors import (
    BatchStateError,
    ConfigError,
    FileInUseError,
    NotInStoreError,
    StoreFailedError,
    StoreFullError,
)
from cobali_ray.store import batches, connection, conversations, files, responses
from cobali_ray.store.batches import AnsweredLine
from cobali_ray.store.database import Store, check_store
from cobali_ray.store.files import Piece, StoreQuota
from cobali_ray.store.lines import OPENAI, Answer
from cobali_ray.store.responses import EventRow, NewResponse, ResponseOrigin
from cobali_ray.store.sqlite import FILE_NAME, LOCK_NAME
from cobali_ray.store.states import BatchChange, BatchStatus
from tests.waiting import wait_until

N_KILLS = 25
"""Of a process that uses a file; beside a server they are fewer, as each of them connects anew."""
OFTEN = pytest.mark.parametrize("times", [1, pytest.param(8, marks=pytest.mark.thorough)])


@pytest.fixture
def store(place):
    store = Store(place)
    yield store
    store.close()


def begun(store):
    """Return a batch that is in progress."""
    create(store)
    (batch,) = store.now(batches.unfinished)
    return store.now(batches.start, batch, 1)


def answered(store, batch, n, *, good=True):
    """Answer the next lines of a batch."""
    lines = store.now(batches.pending, batch, 0, n)
    answer = Answer(200 if good else 400, b"{}", "id")
    store.now(batches.answer, batch.id, [AnsweredLine(o.turn, o.custom_id, answer) for o in lines], 2)
    return store.now(batches.find, "", batch.id, OPENAI)


def lines_of(store, *file_ids):
    found = []
    for file_id in file_ids:
        after = -1
        while (block := store.now(files.block, file_id, after)) is not None:
            data, after = block
            found += map(json.loads, data.splitlines())
    return found


def finished(store):
    """Answer whatever is left, and return the batches."""
    while found := store.now(batches.unfinished):
        for batch in found:
            if batch.status is BatchStatus.VALIDATING:
                store.now(batches.start, batch, 3)
            elif batch.status is BatchStatus.FINALIZING:
                store.now(batches.finish, batch, 3)
            else:
                answered(store, batch, 1000)
    return store.now(batches.listed, "", OPENAI, limit=10_000)


def killed(place, what, n_kills):
    """Return what a program acknowledged that was killed again and again."""
    program = Path(__file__).with_name("store_killed.py")
    words = [sys.executable, program, place, str(n_kills), "1", what]
    told = subprocess.run(words, check=True, capture_output=True, text=True, timeout=200).stdout
    return [json.loads(line) for line in told.splitlines()]


@OFTEN
def test_nothing_is_lost_and_nothing_is_there_twice_whenever_a_process_is_killed(place, times):
    n_kills = times * (N_KILLS if isinstance(place, Path) else N_KILLS // 8)
    acknowledged = killed(place, "batches", n_kills)
    given = {(b, c): id_ for one in acknowledged for b, c, id_ in one.get("answers", ())}
    assert len(given) > n_kills, "hardly anything was done"

    store = Store(place)
    found = finished(store)
    assert {one["batch"] for one in acknowledged if "batch" in one} <= {batch.id for batch in found}
    for batch in found:
        lines = lines_of(store, batch.output_file_id, batch.error_file_id)
        assert Counter(one["custom_id"] for one in lines) == {f"r{n}": 1 for n in range(1, N_LINES + 1)}
        assert batch.n_total == batch.n_completed + batch.n_failed == N_LINES
        for one in lines:
            assert one["id"] == given.get((batch.id, one["custom_id"]), one["id"]) != "again"
    store.close()


@OFTEN
def test_a_response_goes_on_behind_its_last_event_and_ends_once_whenever_a_process_is_killed(place, times):
    n_kills = times * (N_KILLS // 2 if isinstance(place, Path) else N_KILLS // 8)
    acknowledged = killed(place, "responses", n_kills)
    ended = {one["ended"] for one in acknowledged if "ended" in one}
    assert len(ended) > n_kills / 8, "hardly anything was done"
    store = Store(place)
    bodies = [
        json.loads(row[0])
        for row in store.now(lambda db: db.execute("SELECT body FROM responses").fetchall())
    ]
    there = {body["id"]: body["status"] for body in bodies}
    assert {one["queued"] for one in acknowledged if "queued" in one} <= set(there)
    assert {there[response_id] for response_id in ended} == {"completed"}
    completed = {response_id for response_id, status in there.items() if status == "completed"}
    events = {id_: [row.n for row in store.now(responses.events, id_, 0)] for id_ in there}
    for response_id, n in (one["event"] for one in acknowledged if "event" in one):
        assert n in events[response_id]
    assert all(events[response_id] == list(range(N_EVENTS)) for response_id in completed)
    (chat,) = store.now(lambda db: db.execute("SELECT id FROM conversations").fetchall())
    items = store.now(conversations.upto, "", chat["id"], 1 << 30)
    outputs = [item["id"] for (item,) in map(json.loads, items) if item["id"].startswith("o")]
    assert Counter(outputs) == {f"o{response_id}": 1 for response_id in completed}, "each said once"
    assert len(items) == 2 * len(outputs), "and behind what it answers"
    store.close()


def test_a_response_that_is_over_stays_as_it_is(store):
    body = {"id": "resp_1", "status": "queued", "output": [], "background": True}
    new = NewResponse("resp_1", "", "", ResponseOrigin(), 0, b"[]")
    store.now(responses.queue, new, json.dumps(body).encode(), b"{}", EVENT, StoreQuota(1 << 20, 9, 9))
    assert store.now(responses.waiting) == [("resp_1", "", "")], "none of its bytes: it is looked at often"
    cancelled = store.now(responses.cancel, "", "resp_1")
    store.now(responses.append, [EventRow("resp_1", 1, EVENT, b"")])
    store.now(responses.end, "resp_1", body | {"status": "completed"})
    assert store.now(responses.find, "", "resp_1") == cancelled
    assert [row.n for row in store.now(responses.events, "resp_1", 0)] == [0]
    assert (store.now(responses.begin, "resp_1"), store.now(responses.waiting)) == (None, [])


def test_a_store_of_an_earlier_version_gets_what_is_new(place, monkeypatch):
    versions = connection.VERSIONS
    monkeypatch.setattr(connection, "VERSIONS", versions[:1])
    old = Store(place)
    file_id = old.now(files.begin, "", files.INPUT, "", 0)
    old.now(files.complete, file_id, "in.jsonl", 1000)
    old.close()
    monkeypatch.setattr(connection, "VERSIONS", versions)
    new = Store(place)
    assert new.now(files.find, "", file_id).name == "in.jsonl"
    assert new.now(responses.waiting) == []
    new.close()


def test_a_batch_ends_with_its_last_answer(store):
    batch = begun(store)
    assert (batch.status, batch.n_total, batch.times["in_progress"]) == (BatchStatus.IN_PROGRESS, N_LINES, 1)
    batch = answered(store, batch, N_LINES - 1)
    assert (batch.status, batch.n_left) == (BatchStatus.IN_PROGRESS, 1)
    batch = answered(store, batch, 1, good=False)
    assert (batch.status, batch.n_completed, batch.n_failed) == (BatchStatus.FINALIZING, N_LINES - 1, 1)
    with pytest.raises(NotInStoreError):
        store.now(files.find, "", batch.output_file_id)  # it is still written
    batch = store.now(batches.finish, batch, 5)
    assert (batch.status, batch.times["completed"]) == (BatchStatus.COMPLETED, 5)
    assert len(lines_of(store, batch.error_file_id)) == 1
    ids = [one["custom_id"] for one in lines_of(store, batch.output_file_id)]
    assert ids == sorted(ids, key=lambda one: int(one[1:])), "in the order of the file"
    assert store.now(files.find, "", batch.output_file_id).bytes == sum(
        len(json.dumps(one, separators=(",", ":"))) + 1 for one in lines_of(store, batch.output_file_id)
    )


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        (BatchChange.EXPIRE, BatchStatus.EXPIRED, "batch_expired"),
        (BatchChange.STOP, BatchStatus.CANCELLED, "batch_cancelled"),
    ],
)
def test_what_has_no_answer_in_the_end_is_answered_by_saying_so(store, change, status, code):
    batch = answered(store, begun(store), 10)
    if change is BatchChange.STOP:
        batch = store.now(batches.cancel, "", batch.id, OPENAI, 2)
        assert store.now(batches.cancel, "", batch.id, OPENAI, 3) == batch, "once more changes nothing"
    batch = store.now(batches.give_up, batch, change, 4)
    assert (batch.status, batch.n_left) == (status, N_LINES - 10)
    assert {one["error"]["code"] for one in lines_of(store, batch.error_file_id)} == {code}
    ids = {one["custom_id"] for one in lines_of(store, batch.output_file_id, batch.error_file_id)}
    assert len(ids) == N_LINES
    with pytest.raises(BatchStateError, match="cannot be cancelled"):
        store.now(batches.cancel, "", batch.id, OPENAI, 5)


def test_who_decides_by_what_was_changes_nothing(store):
    batch = begun(store)
    store.now(batches.cancel, "", batch.id, OPENAI, 2)
    with pytest.raises(BatchStateError):
        store.now(batches.give_up, batch, BatchChange.EXPIRE, 3)
    assert answered(store, batch, 1).n_completed == 1, "an answer that was on its way counts"
    assert store.now(batches.find, "", batch.id, OPENAI).status is BatchStatus.CANCELLING


def test_a_file_in_use_stays_and_what_is_over_can_go(store):
    batch = begun(store)
    with pytest.raises(FileInUseError):
        store.now(batches.require_unused, batch.input_file_id)
    with pytest.raises(NotInStoreError):  # what another key's file is used for is told to nobody
        store.now(delete_file, "another", batch.input_file_id)
    with pytest.raises(BatchStateError):
        store.now(batches.delete, "", batch.id, OPENAI)
    assert store.now(batches.sweep, 10_000) == 0, "however old"
    (batch,) = finished(store)
    store.now(batches.require_unused, batch.input_file_id)
    store.now(batches.delete, "", batch.id, OPENAI)
    assert [one.id for one in all_files(store)] == [batch.input_file_id]
    assert store.now(batches.sweep, 10_000) == 1
    assert all_files(store) == []


def all_files(store, owner=""):
    return store.now(files.listed, owner, purpose=None, after=None, limit=100, newest=True)


def test_what_is_old_is_deleted_and_so_is_what_an_upload_left(store):
    batch = begun(store)
    finished(store)
    store.now(files.begin, "", files.INPUT, "", 0)
    assert store.now(batches.sweep, 999) == 0
    assert store.now(batches.sweep, 1003) > 0
    assert (all_files(store), store.now(batches.listed, "", OPENAI, limit=9)) == ([], [])
    with pytest.raises(NotInStoreError):
        store.now(batches.find, "", batch.id, OPENAI)
    assert store.now(batches.sweep, 3600) == 1, "nobody goes on with it"


def test_what_is_gone_is_deleted_piece_by_piece(store, monkeypatch):
    monkeypatch.setattr(files, "CLEARED_BYTES", 1)
    batch = begun(store)
    finished(store)
    kept = store.now(batches.find, "", create(store), OPENAI)
    store.now(files.delete, "", batch.input_file_id)
    assert batch.input_file_id not in {one.id for one in all_files(store)}
    assert store.now(files.used_bytes, "") == sum(one.bytes for one in all_files(store))
    for n in range(N_LINES, -1, -1):
        assert n_rows_of(store, batch.input_file_id) == {"pieces": n, "lines": n, "files": 1}
        assert store.now(files.clear)
    assert n_rows_of(store, batch.input_file_id) == {"pieces": 0, "lines": 0, "files": 0}
    while store.now(files.clear):  # there was a file for errors, of which there were none
        pass
    assert n_rows_of(store, kept.input_file_id) == {"pieces": N_LINES, "lines": N_LINES, "files": 1}


def n_rows_of(store, file_id):
    def count(db, table, column):
        return db.execute(f"SELECT count(*) FROM {table} WHERE {column} = ?", (file_id,)).fetchone()[0]

    columns = {"pieces": "file_id", "lines": "file_id", "files": "id"}
    return {table: store.now(count, table, column) for table, column in columns.items()}


def test_answers_are_kept_as_long_as_was_asked_however_late_the_batch_ends(store):
    batch = begun(store)
    answered(store, batch, N_LINES - 1)
    batch = answered(store, batch, 1, good=False)
    batch = store.now(batches.finish, batch, 5000)
    assert store.now(batches.sweep, 5999) == 1, "the input, which nothing needs any longer"
    kept = {one.id: one.expires_s for one in all_files(store)}
    assert kept == {batch.output_file_id: 6000, batch.error_file_id: 6000}
    assert store.now(batches.sweep, 6000) > 0
    assert (all_files(store), store.now(batches.listed, "", OPENAI, limit=9)) == ([], [])


def test_a_key_keeps_no_more_than_it_may(store):
    file_id = store.now(files.begin, "a", files.INPUT, "", 0, StoreQuota(1 << 20, 1, 9))
    with pytest.raises(StoreFullError, match="1 files already"):
        store.now(files.begin, "a", files.INPUT, "", 0, StoreQuota(1 << 20, 1, 9))
    store.now(files.begin, "b", files.INTERNAL, "", 0, StoreQuota(1 << 20, 1, 9))
    store.now(files.begin, "b", files.INPUT, "", 0, StoreQuota(1 << 20, 1, 9))
    one = piece(1)
    store.now(files.append, file_id, [one], 0, StoreQuota(len(one.data), 1, 9))
    with pytest.raises(StoreFullError, match="stored_gib"):
        store.now(files.append, file_id, [piece(2)], 0, StoreQuota(len(one.data), 1, 9))
    assert store.now(files.used_bytes, "a") == len(one.data), "and nothing of it is there"
    assert store.now(files.used_bytes, "b") == 0


def test_two_processes_use_one_store_and_one_of_them_runs_batches(store, place):
    with pytest.raises(StoreFailedError):
        store.now(lambda db: db.execute("SELECT nonsense"))
    other = Store(place)
    batch = begun(other)
    assert store.now(batches.find, "", batch.id, OPENAI) == batch
    assert [one.now(take_lock) for one in (store, other, store)] == [True, False, True]
    assert (store.holds_lock, other.holds_lock) == (True, False)
    store.close()
    wait_until(lambda: other.now(take_lock))  # PostgreSQL notices a moment later that a client has left
    other.close()
    other.close()


def test_what_two_processes_write_at_once_is_as_if_one_came_after_the_other(store, place):
    """Each reads the last number of a conversation and writes the next ones."""
    other, quota = Store(place), StoreQuota(1 << 20, 9, 9)
    chat = store.now(conversations.create, "", {}, [], 0, quota).id

    def write(one, who):
        for n in range(20):
            one.now(conversations.add, "", chat, [{"id": f"{who}{n}"}], quota)

    with ThreadPoolExecutor() as pool:
        done = [pool.submit(write, one, who) for one, who in ((store, "a"), (other, "b"))]
        assert [one.result() for one in done] == [None, None]
    assert store.now(conversations.last_n, chat) == 40
    other.close()


def test_a_lock_that_cannot_be_opened_can_be_tried_again(tmp_path):
    store = Store(tmp_path)
    (tmp_path / LOCK_NAME).mkdir()
    with pytest.raises(StoreFailedError):
        store.now(take_lock)
    (tmp_path / LOCK_NAME).rmdir()
    assert store.now(take_lock)
    store.close()


def test_the_disk_gets_back_what_was_deleted(tmp_path):
    store, quota = Store(tmp_path), StoreQuota(1 << 30, 9, 9)
    file_id = store.now(files.begin, "", files.INPUT, "", 0, quota)
    lines = [Piece(n, b"x" * 4000, piece(n).request) for n in range(2000)]
    store.now(files.append, file_id, lines, 0, quota)
    store.now(files.drop, [file_id])
    while store.now(files.clear):
        pass
    n_free, n_pages = (
        store.now(lambda db, what=what: db.execute(f"PRAGMA {what}").fetchone()[0])
        for what in ("freelist_count", "page_count")
    )
    assert n_free == 0
    assert n_pages < 100
    store.close()


def test_only_this_user_can_read_it(tmp_path):
    check_store(tmp_path / "new" / "folder")
    for path in (tmp_path / "new" / "folder", tmp_path / "new" / "folder" / FILE_NAME):
        assert path.stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    check_store(None)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"data_dir: .* cannot be used: "):
        check_store(tmp_path / "file" / "below")
    with pytest.raises(ConfigError, match=r"data_dir: .* cannot be used: File exists"):
        check_store(tmp_path / "file")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / FILE_NAME).write_text("this is no database " * 100)
    with pytest.raises(ConfigError, match=r"data_dir: .* cannot be used: file is not a database"):
        check_store(tmp_path / "bad")
    later = Store(tmp_path / "later")
    later.now(lambda db: db.execute("PRAGMA user_version = 99"))
    later.close()
    with pytest.raises(ConfigError, match="later version of cobali"):
        check_store(tmp_path / "later")


def test_a_batch_that_never_began_answers_each_line_too(store):
    create(store)
    (batch,) = store.now(batches.unfinished)
    batch = store.now(batches.give_up, batch, BatchChange.EXPIRE, 9)
    assert (batch.status, batch.n_left) == (BatchStatus.EXPIRED, N_LINES)
    assert len(lines_of(store, batch.error_file_id)) == N_LINES
