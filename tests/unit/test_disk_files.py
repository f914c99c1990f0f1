"""Files of prefixes on disk, their names, and whether to read them pays."""

import errno
import os
from array import array

import pytest
from disks import (
    BLOCK,
    BLOCK_BYTES,
    DAMAGES,
    KIND,
    cells,
    files_in,
    name,
    names_of,
    size_of,
)

from cobali_ray.core.cache.disk_tier import DiskTier
from cobali_ray.engine.block_files import DamagedError

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
