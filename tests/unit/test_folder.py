"""A server's folder, and what the next server does with one whose server was killed."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from cobali_ray.actors import folder as folders
from cobali_ray.actors.folder import (
    KEPT_SESSIONS,
    SESSION_LOCK,
    fork_socket,
    held_session,
    own_folder,
    processes_of,
    take_over,
)
from cobali_ray.actors.fork_worker import SOCKET
from cobali_ray.errors import StartError

WAIT_S = 60
SERVER = """
import sys
from pathlib import Path
from cobali_ray.actors import folder as folders
folders.socket_dir = lambda: sys.argv[1]
with folders.own_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.setattr(folders, "socket_dir", lambda: str(tmp_path))
    return tmp_path


@pytest.fixture
def started():
    """Start processes that wait, in the environment of a server; they end with the test."""
    running = []

    def start(*words, **environ):
        words = words or (shutil.which("cat"),)
        running.append(subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return running[-1]

    yield start
    for one in running:
        with one:
            one.kill()


@pytest.fixture
def server(place, started):
    """Return the process of a server that has a folder and does nothing, and that folder."""
    process = started(sys.executable, "-c", SERVER, str(place), PYTHONPATH=os.pathsep.join(sys.path))
    return process, place / process.stdout.readline().decode().strip()


def mark(folder):
    return {SOCKET: str(fork_socket(folder))}


def test_where_no_folder_can_be_made_the_start_says_so(place, monkeypatch):
    monkeypatch.setattr(folders, "socket_dir", lambda: str(place / "gone"))
    with pytest.raises(StartError, match="gone, where its sockets lie, cannot be written"), own_folder():
        pass


def test_what_a_killed_server_left_is_ended_and_its_folder_is_gone(server, started):
    process, folder = server
    left = started(**mark(folder))
    other = started(shutil.which("cat"), "-", str(folder))  # whose command only names it
    assert take_over() == set(), "it runs"
    assert processes_of(folder) == {left.pid}
    process.kill()
    process.wait(WAIT_S)
    assert take_over() == {left.pid}
    assert left.wait(WAIT_S) == -signal.SIGKILL
    assert other.poll() is None
    assert not folder.exists()


def test_a_server_that_ends_in_order_leaves_no_folder(place):
    with own_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert list(place.iterdir()) == [folder]
    assert list(place.iterdir()) == []


def test_a_folder_without_the_lock_of_a_server_is_nobody_s_to_clear(place, started):
    folder = place / "cobali-serve-mine"
    folder.mkdir()
    waits = started(**mark(folder))
    assert take_over() == set()
    assert waits.poll() is None
    assert folder.exists()


def test_a_link_to_another_folder_is_not_followed(place, server):
    process, folder = server
    elsewhere = place / "elsewhere"
    folder.rename(elsewhere)
    (place / folder.name).symlink_to(elsewhere)
    process.kill()
    process.wait(WAIT_S)
    take_over()
    assert (elsewhere / "lock").exists()


def test_of_sessions_of_servers_that_have_ended_the_latest_stay(tmp_path):
    def session(number, *, marked=True):
        made = tmp_path / f"session_2026-01-01_00-00-{number:02}_1_1"
        (made / "logs").mkdir(parents=True)
        if marked:
            (made / SESSION_LOCK).touch()
        return made

    others = session(0, marked=False)  # a `ray start`, which may run
    ended = [session(number) for number in range(2, KEPT_SESSIONS + 4)]
    (tmp_path / "session_latest").symlink_to(ended[-1])
    elsewhere = tmp_path / "elsewhere"
    ended[0].rename(elsewhere)
    ended.pop(0).symlink_to(elsewhere)
    with held_session(session(1)) as _, held_session(session(60)):
        assert not ended[0].exists()
        there = {path.name for path in tmp_path.glob("session_*_1_1") if not path.is_symlink()}
        kept = [session.name for session in ended[-KEPT_SESSIONS:]]
        running = [f"session_2026-01-01_00-00-{number}_1_1" for number in ("01", "60")]
        assert there == {others.name, *kept, *running}
        assert (elsewhere / "logs").exists(), "a link is not followed"


def test_a_session_that_cannot_be_marked_is_served_all_the_same(tmp_path):
    with held_session(tmp_path / "gone" / "session"):
        pass
