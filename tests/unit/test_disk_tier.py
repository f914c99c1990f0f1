"""Prefixes on disk: what is asked of it, what comes of it, and files that are not what they should be."""

import errno
import os
import shutil
import threading
from array import array
from contextlib import nullcontext, suppress

import numpy as np
import pytest
import structlog
from answers import OnEngine

from cobali_ray.backend.cells import TensorGroup
from cobali_ray.backend.scripted import CELL_BYTES, ScriptedBackend
from cobali_ray.core.cache.disk_tier import WAIT_S, DiskTier
from cobali_ray.core.cache.host_tier import name_behind
from cobali_ray.core.messages import BackUp, LoadBlocks
from cobali_ray.core.request.lifecycle import Status
from cobali_ray.core.request.request import Request
from cobali_ray.engine import disk as disk_module
from cobali_ray.engine.block_files import BlockFiles, DamagedError
from cobali_ray.engine.disk import Disk
from cobali_ray.engine.loop import EngineLoop
from cobali_ray.engine.opening import SCRIPTED, engine_on
from cobali_ray.errors import BackendError, ConfigError, InternalError
from cobali_ray.settings import read_settings
from cobali_ray.testing import EventRecorder, FakeClock

BLOCK = 8
BLOCK_BYTES = BLOCK * CELL_BYTES
KIND = "0" * 32


def files_in(folder, most_bytes=1 << 20, kind=KIND, **changes):
    return BlockFiles(folder, kind, cell_bytes=CELL_BYTES, block=BLOCK, most_bytes=most_bytes, **changes)


def name(i):
    return bytes([i]) * 20


def cells(i):
    return np.full(BLOCK_BYTES, i, np.uint8)


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# -- files -------------------------------------------------------------------------------------


def test_what_was_written_is_read_by_the_next_engine(tmp_path):
    files = files_in(tmp_path)
    assert files.open() == set()
    assert files.write(name(1), cells(1), 0)
    again = files_in(tmp_path)
    assert again.open() == {name(1)}
    assert (again.read(name(1), 0) == cells(1)).all()
    assert again.n_bytes == files.n_bytes == size_of(tmp_path)
    assert files_in(tmp_path, kind="f" * 32).open() == set(), "another model, build or layout"
    (folder,) = tmp_path.glob("0*")
    assert (folder.stat().st_mode & 0o777, next(folder.iterdir()).stat().st_mode & 0o777) == (0o700, 0o600)


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "a-bit-of-the-cells": lambda path: flip(path, 1000),
    "the-last-bit": lambda path: flip(path, -1),
    "the-magic": lambda path: flip(path, 0),
    "the-name": lambda path: flip(path, 10),
    "the-checksum": lambda path: flip(path, 38),
    "cut-short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "foreign": lambda path: path.write_bytes(b"something else" * 1000),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_what_is_damaged_is_not_read(tmp_path, damage):
    files = files_in(tmp_path)
    files.open()
    files.write(name(1), cells(1), 0)
    damage(next(tmp_path.glob("*/*.kv")))
    with pytest.raises(DamagedError):
        files.read(name(1), 0)
    other = next(tmp_path.glob("*/*.kv"))
    if other.stat().st_size != 40 + BLOCK_BYTES:
        assert files_in(tmp_path).open() == set(), "nor named"
        assert not files.use(name(1), 0), "so that it is written anew"


def test_the_folder_stays_within_its_bound_and_what_was_used_last_stays(tmp_path):
    now = [10**18]
    room = 20 * (40 + BLOCK_BYTES) + 100
    files = files_in(tmp_path, room, now_ns=lambda: now[0])
    files.open()
    for i in range(60):
        now[0] += 10**9
        if i > 3:
            assert files.use(name(3), 0)
        if files.full(BLOCK_BYTES):
            files.tidy()
        assert files.write(name(i), cells(i), 0)
        assert size_of(tmp_path) <= room
    left = files_in(tmp_path, room).open()
    assert name(3) in left
    assert left - {name(3)} == {name(i) for i in range(60 - len(left) + 1, 60)}


def test_a_sequence_goes_from_its_end(tmp_path):
    files = files_in(tmp_path, 4 * (40 + BLOCK_BYTES), now_ns=lambda: 10**18)
    files.open()
    for depth in range(4):
        files.write(name(depth), cells(depth), depth)
    assert files.tidy() == {name(0), name(1), name(2)}


def test_two_engines_and_old_kinds_share_the_bound(tmp_path):
    old, one, other = (files_in(tmp_path, 10 * (40 + BLOCK_BYTES), kind=k * 32) for k in "abc")
    for files in (old, one, other):
        files.open()
    for i in range(9):
        old.write(name(i), cells(i), 0)
    for i in range(20):
        for files in (one, other):
            if files.full(BLOCK_BYTES):
                files.tidy()
            files.write(name(i), cells(i), 0)
        assert size_of(tmp_path) <= 11 * (40 + BLOCK_BYTES)
    assert not old.tidy(), "what nobody uses goes first"


def test_others_files_are_left_alone_and_stale_parts_go(tmp_path):
    files = files_in(tmp_path, 1, now_ns=lambda: 10**18)
    files.open()
    keep = [tmp_path / "notes.kv", tmp_path / KIND / "notes.kv", tmp_path / "photos" / f"{'0' * 40}.kv"]
    part = tmp_path / KIND / f"{'0' * 40}.{'0' * 32}.part"
    for path in (*keep, part):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
        os.utime(path, ns=(1, 1))
    files.tidy()
    assert all(path.exists() for path in keep)
    assert not part.exists()


@pytest.mark.parametrize("fails", ["write", "replace"])
def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch, fails):
    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    files = files_in(tmp_path)
    files.open()
    monkeypatch.setattr("os.write" if fails == "write" else "pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space"):
        files.write(name(1), cells(1), 0)
    monkeypatch.undo()
    assert size_of(tmp_path) == 0
    assert not list((tmp_path / KIND).iterdir())


# -- the books ---------------------------------------------------------------------------------


def names_of(tokens, n, block=BLOCK):
    found, before = [], b""
    for start in range(0, n, block):
        before = name_behind(before, array("i", tokens[start : start + block]).tobytes())
        found.append(before)
    return found


def test_a_name_stands_for_the_whole_beginning():
    one, other = names_of(range(24), 24), names_of([99, *range(1, 24)], 24)
    assert not set(one) & set(other)
    tier = DiskTier(BLOCK)
    tier.listed(one, 0)
    assert tier.behind(b"", array("i", range(30)), 0, 30) == one
    assert tier.behind(b"", array("i", range(23)), 0, 30) == one[:2], "whole blocks only"
    assert tier.behind(b"", array("i", range(30)), 0, 16) == one[:2], "no more than is asked"
    assert tier.behind(one[0], array("i", range(30)), BLOCK, 30) == one[1:]
    assert tier.behind(b"", array("i", [99, *range(1, 30)]), 0, 30) == []


@pytest.mark.parametrize(
    ("reads", "n_bytes", "compute_s", "pays"),
    [
        pytest.param([], 1000, 0.001, True, id="nothing-is-known-of-reading"),
        pytest.param([(1000, 1.0)], 1000, 0.0, True, id="nothing-is-known-of-computing"),
        pytest.param([(1000, 1.0)], 1000, 1.1, True, id="reading-is-faster"),
        pytest.param([(1000, 1.0)], 1000, 0.9, False, id="computing-is-faster"),
        pytest.param([(1000, 1.0), (1000, 0.5)], 1000, 0.95, True, id="the-disk-became-faster"),
        pytest.param([(1000, 1.0)], 500, 0.9, True, id="half-is-read-in-half-the-time"),
    ],
)
def test_reading_pays_where_it_takes_less_time_than_computing(reads, n_bytes, compute_s, pays):
    tier = DiskTier(BLOCK)
    for read in reads:
        tier.learn(*read)
    assert tier.pays(n_bytes, compute_s) == pays
    if not pays:
        assert any(tier.pays(n_bytes, compute_s) for _ in range(20)), "it is tried again some time"


# -- the engine --------------------------------------------------------------------------------


class Setup(OnEngine):
    """An engine with a disk; `held` keeps jobs until `work`."""

    def __init__(self, folder, *, n_slots=2, held=False, n_host_cells=4000):
        clock, self.jobs = FakeClock(step_s=0.001), []
        self.disk = Disk(lambda: files_in(folder, 1 << 22), clock, block=BLOCK)
        if held:
            self.disk.open()
            self.disk._read = self.jobs.append
        super().__init__(
            ScriptedBackend(n_slots=n_slots, n_ctx_slot=256, n_batch=16), clock=clock,
            how={"disk": self.disk}, token_budget=16, prefill_chunk=8, min_prefix=8,
            n_host_cells=n_host_cells, host_block=BLOCK, cell_bytes=CELL_BYTES,
        )  # fmt: skip

    def submit(self, request_id, prompt, max_tokens=5, salt=""):
        return self.engine.submit(
            Request(
                request_id=request_id, prompt=tuple(prompt.encode()), max_tokens=max_tokens, cache_salt=salt
            )
        )

    def ask(self, *prompts):
        for i, prompt in enumerate(prompts):
            self.submit(str(i), prompt)
        self.ticks = self.run()
        return [self.events.text(str(i)) for i in range(len(prompts))]


TEXT = "The quick brown fox jumps over the lazy dog, and then it jumps back again."
OTHERS = [f"{i} " * 40 for i in range(3)]


def kept(folder):
    """Have an engine answer and leave what it computed on the disk; return what it said."""
    engine = Setup(folder)
    (said,) = engine.ask(TEXT)
    engine.engine.flush()
    return said


def test_a_prefix_outlives_the_engine(tmp_path):
    said = kept(tmp_path)
    second = Setup(tmp_path)
    (again,) = second.ask(TEXT)
    whole = (len(TEXT) - 2) // BLOCK * BLOCK
    assert (again, second.cached()) == (said, whole)
    told = [(tick.n_disk_hits, tick.n_loaded, tick.n_restored) for tick in second.ticks]
    assert told[0] == (1, whole, whole)
    assert sum(n for _, n, _ in told) == whole
    assert "BlocksListed(names=9, n_bytes=" in (story := second.engine.scheduler.story.text())
    assert "LoadBlocks(load_id=1, start=0, names=9)" in story
    assert second.ticks[0].n_disk_bytes == size_of(tmp_path) > 0


@pytest.mark.parametrize("salt", ["", "alice", None])
def test_a_prefix_is_read_under_its_own_salt_alone(tmp_path, salt):
    first = Setup(tmp_path, n_slots=1)
    for name, text in (
        ("0", TEXT),
        ("1", OTHERS[0]),
    ):  # one that the slot loses, one that it holds at the end
        first.submit(name, text, salt=salt)
    first.run()
    first.engine.flush()
    if salt is None:
        assert not list(tmp_path.glob("*/*.kv")), "nothing is left of what may not be kept"
    for other in ("", "alice", "bob", None):
        second = Setup(tmp_path, n_slots=1)
        for name, text in (("0", TEXT), ("1", OTHERS[0])):
            second.submit(name, text, salt=other)
            second.run()
            stats = second.events.ends(name)[0].stats
            found = salt is not None and other == salt
            assert (stats.n_cached > 0, stats.cached_from) == (found, "disk" if found else "none")
            assert second.events.text(name) == first.events.text(name)
            assert (second.engine.scheduler.tiers.disk.n_loaded > 0) == found, (
                "others' files are not even read"
            )


def test_what_a_slot_holds_for_another_salt_does_not_keep_the_disk_from_being_read(tmp_path):
    first = Setup(tmp_path, n_slots=1)
    first.submit("0", TEXT, salt="alice")
    first.run()
    first.engine.flush()
    second = Setup(tmp_path, n_slots=1)
    for name, salt in (("0", "bob"), ("1", "alice")):
        second.submit(name, TEXT, salt=salt)
        second.run()
    assert [second.events.ends(name)[0].stats.cached_from for name in "01"] == ["none", "disk"]


def test_what_slots_lose_is_written_at_once_and_a_killed_engine_leaves_it(tmp_path):
    first = Setup(tmp_path, n_slots=1)
    said = first.ask(TEXT, *OTHERS)[0]
    ticks = first.ticks
    second = Setup(tmp_path)
    assert second.ask(TEXT) == [said]
    assert second.cached() == (len(TEXT) - 2) // BLOCK * BLOCK
    n_files = len(list(tmp_path.glob("*/*.kv")))
    first.submit("more", "x")
    assert sum(tick.n_written for tick in [*ticks, *first.run()]) == n_files * BLOCK


def idle(s, seconds=1.0, n_ticks=10):
    """Let time pass in which nobody comes; return what was backed up, by tick."""
    asked, carry_out = [], s.engine._host.carry_out

    def watch(instructions):
        asked.extend(one for one in instructions if isinstance(one, BackUp))
        carry_out(instructions)

    s.engine._host.carry_out = watch
    for _ in range(n_ticks):
        s.clock.advance(seconds / n_ticks)
        assert s.engine.tick() is None
        s.engine.take_disk_events()
    s.engine._host.carry_out = carry_out
    assert (s.engine.patience_s, s.engine.scheduler.tiers.disk.writing) == (None, set())
    return [[part.name for _, run in one.runs for part in run if part.cells] for one in asked]


def test_what_was_answered_is_written_while_nobody_comes_and_a_killed_engine_leaves_it(tmp_path):
    first = Setup(tmp_path, n_host_cells=256)
    said, _ = first.ask(TEXT, OTHERS[0])
    assert 0 < first.engine.patience_s <= 0.25, "the loop wakes for it"
    assert [len(names) for names in idle(first)] == [9, 10]
    assert first.engine.scheduler.tiers.host.n_used == 0, "nothing there makes room for it"
    second = Setup(tmp_path)
    assert second.ask(TEXT) == [said]
    assert (second.cached(), second.events.ends("0")[0].stats.cached_from) == (72, "disk")
    longer = TEXT + said + " And why?"
    first.ask(longer)
    ((*new,),) = idle(first)
    assert 0 < len(new) <= 3, "only what is new of the conversation"
    assert idle(first) == []


def test_what_another_engine_has_removed_is_written_with_the_next_answer(tmp_path):
    s = Setup(tmp_path)
    (said,) = s.ask(TEXT)
    ((first, *_),) = idle(s)
    (tmp_path / KIND / f"{first.hex()}.kv").unlink()
    s.ask(TEXT + said)
    assert idle(s)
    assert not (tmp_path / KIND / f"{first.hex()}.kv").exists(), "it was taken to be there"
    s.ask(TEXT + said + " And why?")
    assert idle(s)[0][0] == first
    again = Setup(tmp_path)
    again.ask(TEXT)
    assert again.cached() == (len(TEXT) - 2) // BLOCK * BLOCK


def test_a_long_slot_is_backed_up_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("cobali_ray.core.tiers.PART_BYTES", 4 * BLOCK_BYTES)
    s = Setup(tmp_path)
    s.ask(TEXT)
    assert [len(names) for names in idle(s)] == [4, 4, 1]
    assert len(list(tmp_path.glob("*/*.kv"))) == 9


def test_a_busy_engine_backs_up_what_nobody_came_back_to(tmp_path):
    s = Setup(tmp_path)
    s.ask(TEXT)
    s.submit("busy", "b" * 20, max_tokens=100)
    s.engine.tick()
    assert not list(tmp_path.glob("*/*.kv"))
    s.clock.advance(2.0)
    s.run()
    assert len(list(tmp_path.glob("*/*.kv"))) == 9


@pytest.mark.parametrize("fails", ["the disk", "the copy"])
def test_a_backup_that_fails_is_left_out_until_the_next_answer(tmp_path, monkeypatch, fails):
    s = Setup(tmp_path)
    s.ask(TEXT)

    def failing(*_):
        raise BackendError("no memory") if fails == "the copy" else OSError(errno.ENOSPC, "No space left")

    monkeypatch.setattr(*((s.backend, "save") if fails == "the copy" else (BlockFiles, "write")), failing)
    assert len(idle(s)) == 1
    assert not list(tmp_path.glob("*/*.kv"))
    monkeypatch.undo()
    s.clock.advance(60)
    s.ask(TEXT)
    assert [len(names) for names in idle(s)] == [9]
    assert len(list(tmp_path.glob("*/*.kv"))) == 9


def test_a_backup_that_a_failing_tick_dropped_keeps_no_later_one_waiting(tmp_path, monkeypatch):
    s = Setup(tmp_path)
    s.ask(TEXT)
    s.clock.advance(1.0)

    def failing(instructions):
        assert any(isinstance(one, BackUp) for one in instructions)
        raise BackendError("broken")

    monkeypatch.setattr(s.engine._host, "carry_out", failing)
    with pytest.raises(BackendError, match="broken"):
        s.engine.tick()
    monkeypatch.undo()
    s.engine.fail_all(InternalError("broken"))
    s.ask(TEXT)
    assert [len(names) for names in idle(s)] == [9]


def test_a_longer_conversation_goes_on_where_the_disk_ends(tmp_path):
    said = kept(tmp_path)
    longer = TEXT + said + " And why?"
    second, alone = Setup(tmp_path), Setup(tmp_path / "none")
    assert second.ask(longer) == alone.ask(longer)
    assert second.cached() == (len(TEXT) + 4) // BLOCK * BLOCK, "the answer too, whole blocks"


def test_others_go_on_while_a_file_is_read_and_a_slow_disk_is_waited_for_only_so_long(tmp_path):
    said = kept(tmp_path)
    s = Setup(tmp_path, held=True)
    s.submit("waits", TEXT)
    s.submit("other", OTHERS[0])
    s.run()
    assert s.events.ends("other")
    assert not s.events.ends("waits")
    assert not s.engine.has_work
    assert 0 < s.engine.patience_s <= WAIT_S
    s.clock.advance(WAIT_S)
    assert s.engine.patience_s == 0
    s.engine.tick()
    s.run()
    assert s.events.ends("waits")[0].stats.n_cached == 0
    assert s.events.text("waits") == said
    (job,) = s.jobs
    job()
    s.engine.take_disk_events()
    s.engine.scheduler.check()
    assert s.engine.scheduler.tiers.host.n_used == 72, "what comes late is there for the next"


def test_what_is_read_too_late_is_not_said_to_have_been_of_use(tmp_path):
    kept(tmp_path)
    s = Setup(tmp_path, held=True)
    s.submit("waits", TEXT)
    s.run()
    s.clock.advance(WAIT_S)
    s.engine.tick()
    (job,) = s.jobs
    job()
    s.engine.take_disk_events()
    assert s.engine.scheduler.tiers.host.n_used == 72
    assert not s.events.ends("waits")
    s.run()
    stats = s.events.ends("waits")[0].stats
    assert (stats.n_cached, stats.cached_from) == (0, "none")


@pytest.mark.parametrize("slow", [True, False])
def test_a_slow_disk_is_left_alone_once_both_times_are_known(tmp_path, slow):
    said = kept(tmp_path)
    s = Setup(tmp_path)
    tiers = s.engine.scheduler.tiers
    tiers._compute_s = lambda start, end: (end - start) * 1e-3
    tiers.disk.learn(1000, 1.0 if slow else 1e-9)
    assert s.ask(TEXT) == [said]
    assert (s.cached(), tiers.disk.n_loaded) == ((0, 0) if slow else (72, 72))


def test_nobody_waits_for_the_disk_longer_than_computing_takes(tmp_path):
    kept(tmp_path)
    s = Setup(tmp_path, held=True)
    s.engine.scheduler.tiers._compute_s = lambda start, end: (end - start) * 1e-3
    s.submit("waits", TEXT)
    assert 0 < s.engine.patience_s <= 0.072


def test_who_asks_for_the_same_waits_for_the_same_read(tmp_path):
    kept(tmp_path)
    s = Setup(tmp_path, held=True)
    loads = []
    s.disk.load = loads.append
    s.submit("a", TEXT)
    s.submit("b", TEXT + TEXT)
    s.submit("c", OTHERS[0])
    assert [(one.start, len(one.names)) for one in loads] == [(0, 9), (72, 0)]
    assert all(isinstance(one, LoadBlocks) for one in loads)


def test_what_slots_or_host_memory_hold_is_not_read(tmp_path):
    kept(tmp_path)
    s = Setup(tmp_path)
    s.ask(TEXT)
    n_loaded = s.engine.scheduler.tiers.disk.n_loaded
    s.submit("slot", TEXT)
    s.run()
    for i, text in enumerate(OTHERS):
        s.submit(f"o{i}", text)
    s.run()
    s.submit("host", TEXT)
    s.run()
    assert s.cached("slot") >= 70 <= s.cached("host")
    assert s.engine.scheduler.tiers.disk.n_loaded == n_loaded


def test_who_waits_for_a_grammar_too_waits_for_both(tmp_path):
    kept(tmp_path)
    for late in (False, True):
        s = Setup(tmp_path, held=True)
        prompt = Request(request_id="x", prompt=tuple(TEXT.encode()), max_tokens=5)
        sequence = s.engine.submit(prompt, ready=False)
        if late:
            s.clock.advance(WAIT_S)
            s.engine.tick()
        s.jobs[0]()
        s.engine.take_disk_events()
        assert sequence.status is Status.NOT_READY
        s.engine.ready(sequence, None)
        assert sequence.status is Status.QUEUED
        s.run()
        assert s.cached("x") == 72


def test_after_a_failure_of_all_what_was_being_read_is_nobodys(tmp_path):
    first = Setup(tmp_path)
    (said,) = first.ask(TEXT)
    first.engine.flush()
    s = Setup(tmp_path, held=True)
    s.submit("gone", TEXT)
    s.engine.fail_all(ConfigError("x", "broken"))
    s.submit("next", TEXT)
    for job in s.jobs:
        job()
    s.engine.take_disk_events()
    s.run()
    assert s.events.text("next") == said
    assert s.cached("next") == 72


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
