"""A worker that is a fork: it is what the process that asked would have been."""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cobali_ray.actors import fork_server, fork_worker
from cobali_ray.actors.folder import fork_socket
from cobali_ray.actors.fork_server import NO_JOB, ForkServer

WAIT_S = 60
BARE = "from cobali_ray.actors import fork_server as f; f.MODULES = (); f.main()"
WORKER = """
import json, os, resource, signal, sys
print(json.dumps({
    "argv": sys.argv[1:], "folder": os.getcwd(), "said": os.environ["SAID"], "job": os.environ["RAY_JOB_ID"],
    "name": __name__, "n_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "pid": os.getpid(),
    "parent": os.getppid(),
    "leads": os.getpgrp() == os.getpid(), "reaps": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
}))
print("trouble", file=sys.stderr)
"""


@pytest.fixture
def server(tmp_path):
    """Return the address of a fork server that has imported nothing, and its process."""
    path = str(tmp_path / "forks")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        command = [sys.executable, "-c", BARE, str(listener.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    with process:
        yield path, process
        process.kill()


def start_worker(path, folder, *words):
    """Do what Ray does for a worker."""
    script = folder / "default_worker.py"
    script.write_text(WORKER)
    (folder / "setup_worker.py").write_text("import sys; print('set up', sys.argv[1:])")
    return subprocess.run(
        [sys.executable, fork_worker.__file__, str(script), *words],
        cwd=folder,
        env=os.environ | {fork_worker.SOCKET: path, "SAID": "hello", "RAY_JOB_ID": "01000000"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (999, 999)),
        capture_output=True,
        text=True,
        check=True,
    )


def test_a_fork_is_what_was_asked_for_also_after_nonsense(server, tmp_path):
    path, process = server
    for nonsense in (b"", b"\0", b"\0{"):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(path)
            asking.sendall(nonsense)
    worker = start_worker(
        path, tmp_path, "--language=PYTHON", "--worker-id=7", "--serialized-runtime-env-context={}"
    )
    found = json.loads(worker.stdout)
    assert found.pop("pid") != process.pid
    assert found.pop("parent") == process.pid
    assert found == {
        "argv": ["--worker-id=7"], "folder": str(tmp_path), "said": "hello", "job": NO_JOB,
        "name": "__main__", "n_files": 999, "leads": True, "reaps": True,
    }  # fmt: skip
    assert worker.stderr == "trouble\n"


def test_without_it_ray_s_own_script_makes_the_worker(tmp_path):
    worker = start_worker(str(tmp_path / "nobody"), tmp_path, "--language=PYTHON")
    assert worker.stdout == f"set up {[str(tmp_path / 'default_worker.py'), '--language=PYTHON']}\n"


def test_a_fork_that_fails_leaves_the_worker_to_ray_and_the_next_is_tried(tmp_path, monkeypatch):
    def fail():
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(fork_server.os, "fork", fail)
    monkeypatch.setattr(fork_server.signal, "signal", lambda *_: None)
    path, answers = str(tmp_path / "forks"), []
    parent, end = os.pipe()

    def ask():
        answers.extend(fork_worker.ask(path, []) for _ in range(2))
        os.close(end)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        asking = threading.Thread(target=ask)
        asking.start()
        assert fork_server.fork_for_all(listener, parent) is None
        asking.join()
    os.close(parent)
    assert answers == [False, False]


def test_workers_are_forks_of_the_one_that_was_started_last(tmp_path, monkeypatch):
    """So new code gets into workers, and the processes of the code before keep their parent."""
    popen = subprocess.Popen
    monkeypatch.setattr(
        fork_server.subprocess,
        "Popen",
        lambda command, **options: popen([sys.executable, "-c", BARE, command[-1]], **options),
    )
    environ = dict(os.environ)
    servers = [ForkServer(environ, tmp_path) for _ in range(2)]
    monkeypatch.undo()
    try:
        worker = start_worker(str(fork_socket(tmp_path)), tmp_path)
        assert json.loads(worker.stdout)["parent"] == servers[1].pid
        assert servers[0]._process.poll() is None
    finally:
        for server in servers:
            server.close()


def test_it_ends_with_its_parent_and_all_that_belongs_to_that_and_its_folder_is_gone(server):
    path, process = server
    cat = shutil.which("cat")
    with (
        subprocess.Popen([cat], stdin=subprocess.PIPE, env={fork_worker.SOCKET: path}) as theirs,
        subprocess.Popen([cat, "-", path], stdin=subprocess.PIPE) as other,  # it only names the folder
    ):
        process.stdin.close()
        assert theirs.wait(WAIT_S) == -signal.SIGKILL
        assert process.wait(WAIT_S) == 0
        assert other.poll() is None
        other.kill()
    assert not Path(path).parent.exists()
    assert not fork_worker.ask(path, ["script"]), "no worker waits for it"


def test_who_forks_is_one_thread_that_has_loaded_nothing_with_threads_of_its_own():
    """And forks draw ids of their own, or two workers name an object alike, and one of them dies."""
    look = (
        "from cobali_ray.actors import fork_server as f; import sys, threading; f.preload();"
        "print(threading.active_count(), sorted({'llama_cpp', 'cupy', 'torch'} & set(sys.modules)),"
        "'libgomp' in open('/proc/self/maps').read(), [m for m in f.MODULES if m not in sys.modules]);"
        "print(f.draws_alike());"
        "from ray._raylet import JobID, PlacementGroupID; PlacementGroupID.of(JobID.from_int(1));"
        "print(f.draws_alike())"
    )
    run = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    loaded, *alike = run.stdout.splitlines()
    assert loaded == "1 [] False []", "all of them imported, none with threads"
    assert alike == ["False", "True"], "and it is noticed where a generator had begun"
