"""What Ray starts for a worker process: it has the fork server make the process, and ends.

Run on a bare Python with the words that Ray's own `setup_worker.py` would get. Where there is no fork server
that one takes over, so that a worker then takes seconds and nothing else changes.
"""

import contextlib
import json
import os
import resource
import socket
import sys
from pathlib import Path

SOCKET = "COBALI_RAY_FORK_SERVER"
"""The variable that says where the fork server listens."""
_FOR_SETUP = ("--serialized-runtime-env-context", "--language")


def ask(path: str, words: list[str]) -> bool:
    """Have a worker forked that runs `words` as this process would; say whether there will be one."""
    argv = [word for word in words if not word.startswith(_FOR_SETUP)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    request = {"argv": argv, "environ": dict(os.environ), "folder": str(Path.cwd()), "n_files": limits}
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [b"\0"], [0, 1, 2])
        server.sendall(json.dumps(request).encode())
        server.shutdown(socket.SHUT_WR)
        return bool(server.recv(1))
    return False


if __name__ == "__main__" and not ask(os.environ.get(SOCKET, ""), sys.argv[1:]):
    setup = Path(sys.argv[1]).with_name("setup_worker.py")
    os.execv(sys.executable, [sys.executable, str(setup), *sys.argv[1:]])  # noqa: S606 no shell
