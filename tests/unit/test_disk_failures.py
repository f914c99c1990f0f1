"""A disk that is damaged, full, slow, removed or not wanted, and the engine above it."""

import errno
import shutil
import threading
from contextlib import nullcontext, suppress

import pytest
import structlog
from disks import (
    BLOCK,
    BLOCK_BYTES,
    DAMAGES,
    KIND,
    OTHERS,
    TEXT,
    Setup,
    cells,
    files_in,
    flip,
    kept,
    name,
    names_of,
    size_of,
)

from cobali_ray.backend.cells import TensorGroup
from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.core.request.request import Request
from cobali_ray.engine import disk as disk_module
from cobali_ray.engine.disk import Disk
from cobali_ray.engine.loop import EngineLoop
from cobali_ray.engine.opening import SCRIPTED, engine_on
from cobali_ray.errors import ConfigError, InternalError
from cobali_ray.settings import read_settings
from cobali_ray.testing import EventRecorder, FakeClock


@pytest.mark.parametrize("damage", ["a-bit-of-the-cells", "cut-short"])
def test_damaged_files_are_said_once_and_computed(tmp_path, damage):
    said = kept(tmp_path)
    second = Setup(tmp_path)
    second.disk.open()
    for path in tmp_path.glob("*/*.kv"):
        DAMAGES[damage](path)
    with structlog.testing.capture_logs() as logs:
        assert second.ask(TEXT) == [said]
        second.submit("again", OTHERS[0])
        second.run()
    warnings = [log for log in logs if log["log_level"] == "warning"]
    assert [log["setting"] for log in warnings] == ["disk_cache_dir"]
    assert second.cached() == 0
    second.engine.flush()
    third = Setup(tmp_path)
    assert third.ask(TEXT) == [said]
    assert third.cached() == 72, "what was damaged is written anew"


def test_the_rest_of_a_damaged_beginning_is_used_up_to_there(tmp_path):
    said = kept(tmp_path)
    tokens = list(TEXT.encode())
    flip(tmp_path / KIND / f"{names_of(tokens, 72)[4].hex()}.kv", 99)
    second = Setup(tmp_path)
    assert second.ask(TEXT) == [said]
    assert second.cached() == 4 * BLOCK


TROUBLES = {
    "full": OSError(errno.ENOSPC, "No space left on device"),
    "denied": PermissionError(errno.EACCES, "Permission denied"),
}


@pytest.mark.parametrize("error", TROUBLES.values(), ids=TROUBLES.keys())
@pytest.mark.parametrize("where", ["os.write", "os.scandir", "pathlib.Path.mkdir"])
def test_a_disk_that_cannot_be_written_is_said_once_and_served_without(tmp_path, monkeypatch, where, error):
    def fail(*_args, **_kwargs):
        raise error

    alone = Setup(tmp_path / "other", n_slots=1).ask(TEXT, *OTHERS)
    monkeypatch.setattr(where, fail)
    s = Setup(tmp_path / "mine", n_slots=1)
    with structlog.testing.capture_logs() as logs:
        assert s.ask(TEXT, *OTHERS) == alone
        s.clock.advance(1000)
        s.submit("later", OTHERS[0])
        s.run()
        s.engine.flush()
    warnings = [log for log in logs if log["log_level"] == "warning"]
    assert [log["setting"] for log in warnings] == ["disk_cache_dir"]
    assert error.strerror in warnings[0]["error"]


@pytest.mark.parametrize(
    ("where", "event"),
    [
        pytest.param("os.write", "disk_cache_not_written", id="write"),
        pytest.param("pathlib.Path.mkdir", "disk_cache_not_opened", id="open"),
    ],
)
def test_a_pause_is_told_and_ends(tmp_path, monkeypatch, where, event):
    def fail(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device", "a path")

    s = Setup(tmp_path, n_slots=1)
    with structlog.testing.capture_logs() as logs:
        monkeypatch.setattr(where, fail)
        s.ask(TEXT, *OTHERS[:1])
        monkeypatch.undo()
        s.ask(TEXT, *OTHERS[:1])
        assert size_of(tmp_path) == 0
        told = s.engine.cache_view().disk
        assert told["trouble"] == "No space left on device"
        assert 0 < told["paused_s"] <= 60
        s.clock.advance(60)
        assert s.engine.cache_view().disk["paused_s"] == 0
        s.ask(TEXT, *OTHERS[:1])
    assert size_of(tmp_path) > 0
    assert s.engine.cache_view().disk["trouble"] is None
    first, last = [log for log in logs if log["event"] != "disk_cache"]
    assert (first["event"], last["event"]) == (event, "disk_cache_goes_on")
    assert first["setting"] == "disk_cache_dir"
    assert "a path" in first["error"]


@pytest.mark.parametrize(
    ("error", "paused"),
    [
        pytest.param(OSError(errno.ENOSPC, "No space left on device"), True, id="full"),
        pytest.param(MemoryError(), False, id="unforeseen"),
    ],
)
def test_a_sequence_of_which_only_the_first_block_could_be_written(tmp_path, monkeypatch, error, paused):
    files, clock = files_in(tmp_path), FakeClock()
    disk = Disk(lambda: files, clock, block=BLOCK)
    disk.open()
    write = files.write
    monkeypatch.setattr(
        files, "write", lambda one, *rest: write(one, *rest) if one == name(0) else fail(error)
    )
    with nullcontext() if paused else pytest.raises(MemoryError):  # a thread logs it, and goes on
        disk.store([(name(i), cells(i)) for i in range(3)])
    *_, (told, _) = disk.events()
    assert (told.names, told.missing) == ([name(0)], [name(1), name(2)])
    assert bool(disk.paused_s) == paused


def fail(error):
    raise error


def test_a_request_that_comes_while_the_disk_fails_the_engine_ends(tmp_path, monkeypatch):
    s = Setup(tmp_path, n_slots=1)
    monkeypatch.setattr(s.disk, "events", lambda: fail(KeyError("no such load")))
    with pytest.raises(KeyError) as failure:
        s.submit("0", TEXT)
    s.engine.fail_all(error := InternalError(repr(failure.value)))
    assert [end.error for end in s.events.ends("0")] == [error]


@pytest.mark.parametrize("what", ["the folder", "what is in it"])
def test_a_folder_that_is_removed_is_made_again(tmp_path, what):
    s = Setup(folder := tmp_path / "prefixes", n_slots=1)
    (said, *_) = s.ask(TEXT, *OTHERS)
    shutil.rmtree(folder if what == "the folder" else folder / KIND)
    with structlog.testing.capture_logs() as logs:
        s.submit("lost", TEXT)  # its files are not found
        s.run()
        s.submit("other", OTHERS[0])  # takes its slot
        s.run()
    assert [log["event"] for log in logs] == ["disk_cache_made_again"]
    assert s.events.text("lost") == said
    assert s.engine.cache_view().disk["trouble"] is None
    again = Setup(folder)
    assert again.ask(TEXT) == [said]
    assert again.cached() == 72


def test_what_the_writer_cannot_follow_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_module, "MAX_BEHIND", 20 * BLOCK_BYTES)
    s = Setup(tmp_path, n_slots=1)
    s.disk.open()
    waiting = []
    s.disk._write = waiting.append
    s.ask(TEXT, *OTHERS, TEXT)
    assert 0 < s.disk._n_put <= 20 * BLOCK_BYTES
    for job in waiting:
        job()
    assert s.disk._n_done == s.disk._n_put


def test_the_model_file_decides_and_other_settings_do_not(tmp_path):
    def kind_of(backend=None, **settings):
        settings = read_settings(
            {"model": SCRIPTED, "disk_cache_dir": tmp_path, "host_cache_mib": 8, **settings}
        )
        engine = engine_on(backend or ScriptedBackend(), settings, EventRecorder())
        return engine._disk._find()._home

    assert kind_of() == kind_of(n_slots=3, disk_cache_gib=0.5)
    other = ScriptedBackend()
    other.cell_kind = lambda: "cells of another build"
    assert kind_of(other) != kind_of()
    assert read_settings({"model": SCRIPTED}).kept.disk_cache_dir is None
    settings = read_settings({"model": "x.gguf", "disk_cache_dir": tmp_path, "host_cache_mib": 8})
    found = []
    for content in (b"a", b"b", b"a"):
        (tmp_path / "x.gguf").write_bytes(content)
        with suppress(FileNotFoundError):
            engine = engine_on(ScriptedBackend(), settings, EventRecorder(), path=tmp_path / "x.gguf")
        found.append(engine._disk._find()._home)
    assert found[0] == found[2] != found[1]


def test_files_are_found_again_whatever_a_class_is_called():
    assert repr(TensorGroup((b"ab",), 1, 34)) == "Group(words=(b'ab',), n_rows=1, width=34)"


@pytest.mark.parametrize("changes", [{"host_cache_mib": 0}, {"min_prefix": 0}], ids=str)
def test_without_host_memory_there_is_no_disk(tmp_path, changes):
    with pytest.raises(ConfigError, match="host_cache_mib"):
        read_settings({"disk_cache_dir": tmp_path, **changes})


def test_in_threads_it_does_the_same(tmp_path):
    """The loop with its real threads: two engines, one after the other."""

    def serve():
        events, ended = EventRecorder(), threading.Event()

        def sink(batch):
            events(batch)
            if events.ends("0"):
                ended.set()

        def build(publish):
            settings = read_settings(
                {"disk_cache_dir": tmp_path, "model": "builtin:scripted:0", "host_cache_mib": 8}
            )
            backend = ScriptedBackend(n_slots=16, n_ctx_slot=4096)
            return engine_on(backend, settings, publish), None

        loop = EngineLoop(build, FakeClock(), sink)
        loop.start()
        loop.wait_open()
        opened = threading.Event()
        loop._engine._disk._write(opened.set)
        assert opened.wait(30)
        loop.look(opened.clear)  # the listing was heard before
        loop.submit(Request(request_id="0", prompt=tuple(TEXT.encode() * 4), max_tokens=5))
        assert ended.wait(30)
        loop.stop()
        return events

    first, second = serve(), serve()
    assert first.text("0") == second.text("0")
    assert [e.ends("0")[0].stats.n_cached for e in (first, second)] == [0, 256]
