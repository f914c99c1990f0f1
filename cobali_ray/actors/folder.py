"""A server's own folder, of its sockets and of HAProxy's files, and what servers that have ended left behind.

A server holds a lock on a file in its folder. Linux lets go of it when the server ends, however it ends: a
lock that can be had proves that nobody is there any more. A process belongs to the server if the environment
it was started with names the folder, which only the server's own processes inherit.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from stat import S_ISDIR
from typing import Final

from cobali_ray.actors.fork_worker import SOCKET
from cobali_ray.actors.processes import end_all, started_with
from cobali_ray.errors import StartError
from cobali_ray.ports import FOLDER, socket_dir

LOCK: Final = "lock"
SESSION_LOCK: Final = "cobali-serve.lock"
"""In a session of Ray: it is a server's, and not of a `ray start` or of another program."""
KEPT_SESSIONS: Final = 5
"""Sessions of servers that have ended whose logs stay, beside those that run."""


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Make a private folder, and have it for this process alone while inside. Raises StartError."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=socket_dir()))
    except OSError as error:
        why = f"{socket_dir()}, where its sockets lie, cannot be written ({error.strerror})"
        raise StartError("The server", why) from None
    new = folder / f"{LOCK}.new"
    with new.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(folder / LOCK)  # so it is locked from the moment it can be seen
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def fork_socket(folder: Path) -> Path:
    """Where the fork server of a folder's server listens: the value of `SOCKET` in all of its processes."""
    return folder / "forks"


def processes_of(folder: Path) -> set[int]:
    """Return the processes of the server that has this folder, but for the server itself."""
    return started_with(f"{SOCKET}={fork_socket(folder)}")


def clear(folder: Path) -> set[int]:
    """End the processes of a folder's server, remove the folder, and return which these were."""
    ended = end_all(partial(processes_of, folder))
    shutil.rmtree(folder, ignore_errors=True)
    return ended


def take_over() -> set[int]:
    """Clear the folders of this user's servers that were killed; return the processes that were left."""
    ended = set[int]()
    for folder in Path(socket_dir()).glob(f"{FOLDER}*"):
        with contextlib.suppress(OSError), _lock_of_the_dead(folder):
            ended |= clear(folder)
    return ended


@contextlib.contextmanager
def held_session(session: Path) -> Iterator[None]:
    """Mark a session of Ray as this server's while inside; remove old ones of servers that have ended."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # a full disk: then it stays when it is old
            lock = held.enter_context((session / SESSION_LOCK).open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        _prune_sessions(session.parent)
        yield


def _prune_sessions(sessions: Path) -> None:
    """Remove this user's sessions of servers that have ended, all but the latest; names tell the time."""
    ended = []
    for session in sorted(sessions.glob("session_*")):
        with contextlib.suppress(OSError), _lock_of_the_dead(session, SESSION_LOCK):
            ended.append(session)
    for session in ended[:-KEPT_SESSIONS]:
        shutil.rmtree(session, ignore_errors=True)


@contextlib.contextmanager
def _lock_of_the_dead(folder: Path, name: str = LOCK) -> Iterator[None]:
    """Have the lock of a server of this user that has ended; raises OSError if it runs, or is not ours."""
    stat = folder.lstat()
    if not S_ISDIR(stat.st_mode) or stat.st_uid != os.getuid():
        raise PermissionError(folder)
    with (folder / name).open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
