"""A store behind a URL: a database that is away, a connection that breaks, and what is said of it."""

import asyncio
import sys

import pytest
from store_killed import create, take_lock

from cobali_ray.errors import ConfigError, MissingExtraError, NotInStoreError, StoreFailedError
from cobali_ray.ports import free_port
from cobali_ray.settings import EngineSettings, read_settings
from cobali_ray.store import batches, files
from cobali_ray.store.database import Store, check_store
from cobali_ray.store.lines import OPENAI
from tests.waiting import wait_until


@pytest.fixture
def store(database):
    store = Store(database)
    yield store
    store.close()


def test_who_loses_the_connection_has_lost_the_lock_and_nothing_else(store, postgres, database):
    other = Store(database)
    batch_id = create(store)
    assert store.now(take_lock)
    assert asyncio.run(store.alone(batches.find, "", batch_id, OPENAI)).id == batch_id
    postgres.cut(database)
    wait_until(lambda: other.now(take_lock))  # the database ends a session a moment later
    with pytest.raises(StoreFailedError, match="another process runs batches now"):
        asyncio.run(store.alone(batches.find, "", batch_id, OPENAI))
    assert store.now(batches.find, "", batch_id, OPENAI).id == batch_id, "it connects again"
    assert not store.now(take_lock)
    other.close()
    wait_until(lambda: store.now(take_lock))  # and hears of an end


def test_a_transaction_that_breaks_off_is_undone(store, postgres, database):
    def breaks(db):
        files.begin(db, "", files.INPUT, "", 0)
        postgres.cut(database)
        files.begin(db, "", files.INPUT, "", 0)

    with pytest.raises(StoreFailedError):
        store.now(breaks)
    assert store.now(lambda db: db.execute("SELECT count(*) FROM files").fetchone()[0]) == 0


def test_while_the_database_is_away_it_is_said_so_and_afterwards_all_is_there(store, postgres):
    batch_id = create(store)
    assert store.now(take_lock)
    postgres.stop()
    try:
        for _ in range(2):
            with pytest.raises(StoreFailedError) as failed:
                store.now(batches.find, "", batch_id, OPENAI)
            assert str(failed.value).endswith("its database cannot be reached (setting data_url)")
        assert not store.holds_lock
    finally:
        postgres.start()
    store._db._retry_s = 0.0
    assert store.now(batches.find, "", batch_id, OPENAI).id == batch_id
    assert store.now(take_lock)


def test_text_with_null_characters_is_only_not_there(store):
    with pytest.raises(NotInStoreError):
        store.now(files.find, "", "file-\0")
    file_id = store.now(files.begin, "", files.INPUT, "", 0)
    assert store.now(files.complete, file_id, "a\0b", 9).name == "a\ufffdb"


def test_what_a_start_needs_is_named(database, monkeypatch):
    assert check_store(database).startswith(f"PostgreSQL: {database.rpartition('/')[2]} at 127.0.0.1, port ")
    with pytest.raises(ConfigError, match=r"^data_url: the database cannot be used: .*refused"):
        check_store(f"postgresql://me:secret@127.0.0.1:{free_port()}/x")
    with pytest.raises(ConfigError, match=r"^data_url: .*\"nowhere\" does not exist"):
        check_store(database.rpartition("/")[0] + "/nowhere")
    store = Store(database)
    store.now(lambda db: db._set_version(99))
    store.close()
    with pytest.raises(ConfigError, match="later version of cobali"):
        check_store(database)
    with pytest.raises(ConfigError, match="data_url: must be as in") as wrong:
        check_store("postgresql://me:se%zzcret@host/x")
    assert "cret" not in str(wrong.value)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"psycopg, .*\[postgres\]'"):
        check_store(database)


def test_the_setting_is_a_secret_that_takes_the_place_of_the_folder():
    url = "postgresql://me:secret@host/x"
    settings = read_settings({"data_url": url})
    assert settings.api.store_place == url
    assert "secret" not in f"{settings!r}{settings.model_dump()}{EngineSettings(data_url=url)}"
    for values, says in (
        ({"data_url": url, "data_dir": "x"}, "data_url: takes the place of data_dir"),
        ({"data_url": "mysql://me:secret@host"}, "data_url: must be as in postgresql://"),
    ):
        with pytest.raises(ConfigError, match=says) as wrong:
            read_settings(values)
        assert "secret" not in str(wrong.value)
