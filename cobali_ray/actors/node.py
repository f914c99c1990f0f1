"""Ray's node for `cobali serve`: what it needs of Ray, and as long to start as a busy machine takes.

Ray has no settings for most of that, so its functions are wrapped while it starts (`altered` in
ray_private.py). What is left out: the dashboard's server, the autoscaler, and two agents, of metrics that
nobody scrapes and of runtime environments that we have none of. Its log monitor runs as a thread of this
process.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from cobali_ray.actors.output import EventOutput
from cobali_ray.actors.processes import descendants, end
from cobali_ray.actors.ray_private import (
    RAY_START_S,
    altered,
    keep_sessions_private,
    pass_logs_on,
    process_of,
)
from cobali_ray.errors import StartError
from cobali_ray.ports import LOOPBACK, free_port, socket_dir

MAX_TEMP_CHARS = 40
"""Bytes of a path below which Ray's sockets, which may have 107, can still be named."""

RAY_FLAGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",  # else it prints, at the very end, what it held back
    "RAY_AUTH_MODE": "token",  # what Ray would choose, without a warning
    "RAY_worker_niceness": "0",  # Ray's own is 15: any other process would go first
    # Not only for the systems it names: otherwise Ray replaces 127.0.0.1 by an address that others reach.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_gcs_server_port_wait_time_s": str(RAY_START_S),
    "RAY_gcs_rpc_server_connect_timeout_s": str(RAY_START_S),
    "RAY_raylet_start_wait_time_s": str(RAY_START_S),
    "RAY_agent_register_timeout_ms": str(RAY_START_S * 1000),
    "RAY_worker_register_timeout_seconds": str(RAY_START_S),
    "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": str(RAY_START_S),
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(RAY_START_S),
    # Where its driver waits for the first workers, nothing reaches it, not even Ctrl-C.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",  # an agent's input ends with its node
}

ROOM_BYTES = 64 << 20
"""What must be free for Ray's logs and sockets."""
FULL_BYTES = 1 << 20
"""A disk with less free than this counts as full."""
N_FILES = 10_300
"""Files that HAProxy wants to be able to open for its 4,096 connections; it refuses to start with fewer."""

PARTS = ("gcs_server", "raylet")
"""Of Ray's processes on a node, those that it starts only once and without which nothing works for long."""
STOPPING_S = 0.5


def guard_token(output: EventOutput) -> None:
    """Make the file of Ray's token private: whoever reads it may run code in the cluster.

    Raises StartError where there is none and none can be written: Ray would not start.
    """
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if "RAY_AUTH_TOKEN" in os.environ or os.environ.get("RAY_AUTH_MODE") != "token":
        return
    there = os.path.exists(path)  # noqa: PTH110 raises nothing where its folder may not be searched
    try:
        if not there:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
        elif path.stat().st_mode & 0o077:
            path.chmod(0o600)
            output.say("notice", detail=f"{path} could be read by other users; now it is yours alone.")
    except OSError as error:
        if not there:
            raise StartError(
                "Ray",
                f"its token cannot be written to {path} ({error.strerror}); set RAY_AUTH_TOKEN_PATH to a "
                "file that you may write",
            ) from error
        detail = f"Make sure that only you can read {path}: {error.strerror}."
        output.say("notice", level="warning", detail=detail)


def start_ray(output: EventOutput, *, meanwhile: Callable[[], None], spare: int) -> None:
    """Start Ray; a start that fails is tried once more, when all but `spare` that we started has ended.

    `meanwhile` is called in a thread once Ray's processes have their environment, and has ended on return.
    """
    try:
        _init_ray(meanwhile)
    except Exception as error:
        detail = f"Ray did not start ({one_line(error)}); trying once more."
        output.say("notice", level="warning", detail=detail)
        end(descendants(os.getpid()) - {spare})
        try:
            _init_ray(meanwhile)
        except Exception as again:
            raise StartError(
                "Ray",
                f"{one_line(again)} Is the machine very busy, or out of memory? "
                "What Ray logged is in /tmp/ray/session_latest/logs.",
            ) from again


def temp_folder() -> Path:
    """Return the folder in which Ray has its own: sockets, logs, and objects that memory has no room for."""
    if len(tempfile.gettempdir()) > MAX_TEMP_CHARS:
        return Path(socket_dir())
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")  # noqa: S108


def require_room(folder: Path) -> None:
    """Check that Ray can write there. Raises StartError."""
    try:
        free = shutil.disk_usage(folder).free
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StartError(
            "Ray", f"{folder} cannot be written ({error.strerror}); set TMPDIR to a folder of yours"
        ) from error
    if free < ROOM_BYTES:
        raise StartError(
            "Ray",
            f"{folder} has {free >> 20} MiB free, and logs and sockets need {ROOM_BYTES >> 20}; "
            "make room, or set TMPDIR to a folder on another disk",
        )


def is_full(folder: Path) -> bool:
    """Whether there is hardly room for a log line."""
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free < FULL_BYTES
    return False


def require_files() -> None:
    """Check that HAProxy may open a file for both ends of every connection. Raises StartError."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < N_FILES:
        raise StartError(
            "HAProxy",
            f"a process may open {most:,} files here, and the server needs {N_FILES:,}; raise the hard limit "
            "(`ulimit -Hn`, LimitNOFILE= in a systemd unit, `docker run --ulimit nofile=65536`)",
        )


@contextlib.contextmanager
def watching_node(act: Callable[[str, int], None]) -> Iterator[None]:
    """Call `act` in a thread with the name and the exit status of a part of Ray's node that ends meanwhile.

    A signal may reach it and this process alike: that this one is stopping has `STOPPING_S` to show.
    """
    stopping = threading.Event()

    def watch(name: str, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if not stopping.wait(STOPPING_S):
            act(name, status)

    for name in PARTS:
        words = name, process_of(name)
        threading.Thread(target=watch, args=words, name=f"watch {name}", daemon=True).start()
    try:
        yield
    finally:
        stopping.set()


def one_line(error: Exception) -> str:
    """Say an error in one line; Ray's have many."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _init_ray(meanwhile: Callable[[], None]) -> None:
    import ray

    keep_sessions_private()
    thread = threading.Thread(target=meanwhile, name="meanwhile", daemon=True)
    with altered(meanwhile=thread):
        ray.init(
            address="local",
            include_dashboard=False,
            _node_ip_address=LOOPBACK,
            _metrics_export_port=free_port(),
            log_to_driver=True,
            logging_level="warning",
            # Else Ray's own choice, which may have the better disk.
            _temp_dir=f"{temp_folder()}/ray" if len(tempfile.gettempdir()) > MAX_TEMP_CHARS else None,
        )
    threading.Thread(target=pass_logs_on, args=(LOOPBACK,), name="logs", daemon=True).start()
    thread.join()
