"""The fork server: one process imports Ray, Serve and ours, and every worker is a fork of it.

A Ray worker is a new Python that imports Ray twice and Serve once: some three seconds of a core and 100 MB,
five times at the start of a server and once for every engine that takes a dead one's place. A fork takes a
tenth of a second, and shares what was imported. Ray starts `fork_worker.py` in the place of its own script.

Forking is safe because the process that forks is one thread that imported modules and did nothing else: no
llama.cpp, no OpenMP, no CUDA, no gRPC channel.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Final

from cobali_ray.actors import fork_worker
from cobali_ray.actors.folder import clear, fork_socket
from cobali_ray.actors.ray_private import draws_alike, keep_sessions_private, no_random_ids

MODULES: Final = (
    "ray._private.workers.default_worker",
    "ray.serve._private.controller",
    "ray.serve._private.proxy",
    "ray.serve._private.haproxy",
    "ray.serve._private.haproxy_metrics",
    "ray.serve._private.replica",
    "cobali_ray.actors.app",
)
"""What is imported before the first fork. One that Ray no longer has is left out."""
NO_JOB: Final = "ffffffff"
"""The job of a worker that has none yet. Ray reads it when imported, so it is alike in all forks."""
ASK_S: Final = 10.0


class ForkServer:
    """The fork server as its parent sees it; it ends with `close`, or with its parent.

    Of a parent that was killed it ends everything, and removes the folder: nothing of a server outlives it.
    """

    def __init__(self, environ: MutableMapping[str, str], folder: Path) -> None:
        """Start it, and name its socket, which lies in `folder`, in `environ`.

        Another one may have had the socket: from now on workers are forks of this one.
        """
        path = fork_socket(folder)
        environ[fork_worker.SOCKET] = str(path)
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(64)
            self._process = subprocess.Popen(  # noqa: S603 our own command
                [sys.executable, "-P", "-m", "cobali_ray.actors.fork_server", str(listener.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                # Its forks end when their raylet does. Ray has them look for this process, too.
                env={**environ, "RAY_JOB_ID": NO_JOB, "RAY_RAYLET_PID": str(os.getpid())},
                # Ctrl-C is for its parent. No session of its own: Linux shares time among those, and
                # all workers together would get no more of it than any other session.
                process_group=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End it at once, whatever it does; workers that it made live on."""
        with self._process:  # closes its input, too
            self._process.kill()


def preload() -> None:
    """Import what workers need, and keep the garbage collector's hands off it: pages stay shared."""
    gc.disable()
    with warnings.catch_warnings(), no_random_ids():
        warnings.simplefilter("ignore")
        for name in MODULES:
            try:
                importlib.import_module(name)
            except ImportError:
                traceback.print_exc()
        keep_sessions_private()
    gc.enable()
    gc.collect()
    gc.freeze()


def fork_for_all(listener: socket.socket, parent: int) -> dict[str, Any] | None:
    """Fork for each request. Returns the request in each fork; None once `parent` is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who ended
    while True:
        ready, _, _ = select.select([listener.fileno(), parent], [], [])
        if parent in ready:
            return None
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(ASK_S)
            try:
                request, files = _read(connection)
            except (OSError, ValueError):
                traceback.print_exc()
                continue
            try:
                pid = os.fork()
            except OSError:  # no memory, or too many processes: the one that asks becomes a worker itself
                traceback.print_exc()
            else:
                if pid == 0:
                    listener.close()
                    _become(request, files)
                    return request
                with contextlib.suppress(OSError):
                    connection.sendall(b"\0")
            for file in files:
                os.close(file)


def _read(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    try:
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
        return json.loads(b"".join(parts)), files
    except (OSError, ValueError):
        for file in files:
            os.close(file)
        raise


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Take the place of the process that sent the request."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgrp()  # Ray kills the whole group of a worker that died
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.environ["RAY_JOB_ID"] = NO_JOB  # Ray's Python must say what its C++ has read
    os.chdir(request["folder"])
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["n_files"]))


def main() -> None:
    """Import, then fork, until the parent is gone; a fork runs Ray's worker script as Python would."""
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        folder = Path(listener.getsockname()).parent
        preload()
        if MODULES and draws_alike():
            sys.exit("Ray draws ids while it is imported: its workers are not forked, and start slowly.")
        request = fork_for_all(listener, sys.stdin.fileno())
    if request is None:
        clear(folder)
        return
    sys.argv = request["argv"]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
