"""Prefixes on disk: what is written, read again and waited for."""

import errno

import pytest
from disks import BLOCK, BLOCK_BYTES, KIND, OTHERS, TEXT, Setup, kept, size_of

from cobali_ray.core.cache.disk_tier import WAIT_S
from cobali_ray.core.messages import BackUp, LoadBlocks
from cobali_ray.core.request.lifecycle import Status
from cobali_ray.core.request.request import Request
from cobali_ray.engine.block_files import BlockFiles
from cobali_ray.errors import BackendError, ConfigError, InternalError


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
