"""Every private name of Ray's that we replace or call, each looked for before it is.

Ray has no settings for what is done here. A version that lacks one of the names ends the start with an error
that says which; others have the names and may use them otherwise, which is why the package asks for the minor
version that was tested.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import Any

from cobali_ray.actors import fork_worker
from cobali_ray.errors import StartError
from cobali_ray.ports import free_port

TESTED = "2.60"
SESSION = "/session_"
"""In the path of everything that belongs to one cluster of Ray's."""
RAY_START_S = 120
"""How long one part of Ray may take to start. A busy machine makes it slow; what hangs hangs for longer."""
POLL_S = 0.05
LOG_POLL_S = 0.4
"""How long a line that a worker has written may wait for the terminal."""
BODY_PIECES = 64
"""Pieces of a body that wait for the application, of 64 kB each."""

NO_AGENT = "/bin/sh -c 'exec cat'"
"""Stands in for an agent, which a node must have: whatever words follow, it waits until the node ends."""
AGENTS = ("dashboard_agent", "runtime_env_agent")


def _having(module: str, *names: str) -> Any:
    """Return a module of Ray's that has these names, which may be dotted.

    Raises StartError where this version lacks one.
    """
    imported, name = None, ""
    try:
        imported = import_module(module)
        for name in names:
            attrgetter(name)(imported)
    except (ImportError, AttributeError):
        what = f"{module}.{name}".rstrip(".")
        raise StartError(
            "Ray",
            f"version {version('ray')} has no {what}, which this server needs; "
            f"install the version it was tested with: pip install 'ray[serve]=={TESTED}.*'",
        ) from None
    return imported


# -- in every process -------------------------------------------------------------------------------------


def keep_sessions_private() -> None:
    """Have Ray leave a session's folders as they are.

    Every process that joins would let everybody write there, whatever the umask. The folder of all sessions,
    which the users of a machine have in common, stays open.
    """
    utils = _having("ray._common.utils", "try_make_directory_shared")
    share = utils.try_make_directory_shared

    def share_common(path: str) -> None:
        if SESSION not in path:
            share(path)

    utils.try_make_directory_shared = share_common


@contextlib.contextmanager
def no_random_ids() -> Iterator[None]:
    """Keep Ray from drawing ids: forks of a generator that has begun all go on with the same ones.

    Serve's modules name their actor classes when they are imported.
    """
    actor = _having("ray.actor", "ActorClassID")

    class FromSystem:
        @staticmethod
        def from_random() -> Any:
            return real(os.urandom(real.size()))

    real = actor.ActorClassID
    actor.ActorClassID = FromSystem
    try:
        yield
    finally:
        actor.ActorClassID = real


def draws_alike() -> bool:
    """Say whether two forks would draw the same ids, so that there must be none."""
    drawn = set()
    for _ in range(2):
        ours, theirs = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                ids = _having("ray._raylet", "JobID", "PlacementGroupID")
                os.write(theirs, ids.PlacementGroupID.of(ids.JobID.from_int(1)).binary())
            finally:
                os._exit(0)  # whatever failed: the parent reads an end of file
        os.close(theirs)
        drawn.add(os.read(ours, 100))
        os.waitpid(pid, 0)
        os.close(ours)
    return len(drawn) < 2


# -- in replicas ------------------------------------------------------------------------------------------


def listen_on(host: str) -> None:
    """Have Serve's gRPC server of this replica, which starts later, listen on this address alone."""
    replica = _having("ray.serve._private.replica", "add_port_to_grpc_server")
    listen, place = replica.add_port_to_grpc_server, f"[{host}]" if ":" in host else host

    def listen_there(server: Any, address: str) -> Any:
        return listen(server, address.replace("[::]", place))

    replica.add_port_to_grpc_server = listen_there


def read_bodies_as_taken() -> None:
    """Have Serve read little more of a body than the application took; else a whole upload is in memory.

    Only where both share an event loop, as our flags have it: from another thread it cannot wait.
    """
    constants = _having("ray.serve._private.constants", "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD")
    http = _having("ray.serve._private.direct_ingress_http_util", "ASGIDIReceiveProxy.queue")
    if constants.RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD:
        return

    def queue(proxy: Any) -> Any:
        if proxy._queue is None:  # noqa: SLF001
            proxy._queue = asyncio.Queue(BODY_PIECES)  # noqa: SLF001
        return proxy._queue  # noqa: SLF001

    http.ASGIDIReceiveProxy.queue = property(queue)


# -- in the process that starts Ray -----------------------------------------------------------------------


def this_node() -> Any:
    return _having("ray._private.worker", "_global_node")._global_node  # noqa: SLF001


def logs_folder() -> Path:
    return Path(this_node().get_logs_dir_path())


def process_of(part: str) -> subprocess.Popen[bytes]:
    process: subprocess.Popen[bytes] = this_node().all_processes[part][0].process
    return process


def read_workers(take: Callable[[dict[str, Any]], None]) -> None:
    """Have `take` called with what other processes write, which Ray would print."""
    dispatcher = _having(
        "ray._private.ray_logging", "global_worker_stdstream_dispatcher"
    ).global_worker_stdstream_dispatcher
    dispatcher.remove_handler("ray_print_logs")
    dispatcher.add_handler("cobali", take)


def wait_for_no_proxy() -> None:
    """Have `serve.start` return while the front end still starts."""
    for module in ("api", "client"):
        vars(_having(f"ray.serve._private.{module}", "HTTP_PROXY_TIMEOUT"))["HTTP_PROXY_TIMEOUT"] = 0


@contextlib.contextmanager
def altered(*, meanwhile: threading.Thread) -> Iterator[None]:
    """Have Ray start the first node as we want it.

    Two limits that a busy machine breaks are written in Ray's code: it gives the node 30 s to report, and the
    node gives its agents 15 s each to write down which ports they have chosen, and aborts if they do not. So
    the ports are chosen, and written down, before it starts.
    """
    parameter = _having("ray._private.parameter", "RayParams")
    constants = _having("ray._private.ray_constants", "RAY_DISABLE_FAILURE_SIGNAL_HANDLER")
    services = _having(
        "ray._private.services", "get_node", "start_raylet", "start_ray_process", "start_api_server"
    )
    utils = _having("ray._private.utils", "set_sigterm_handler")
    raylet = _having("ray._raylet", "DASHBOARD_AGENT_LISTEN_PORT_NAME", "persist_port")
    params, get_node = parameter.RayParams, services.get_node
    start_raylet, start_ray_process = services.start_raylet, services.start_ray_process

    def get_node_in_time(gcs_address: str, node_id: str) -> Any:
        until = time.monotonic() + RAY_START_S
        while True:
            try:
                return get_node(gcs_address, node_id)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(POLL_S)

    def start_raylet_with_port(*args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(start_raylet).bind(*args, **kwargs).arguments
        port = arguments["dashboard_agent_listen_port"]  # the one that the node itself does not get
        raylet.persist_port(
            arguments["session_dir"], arguments["node_id"], raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME, port
        )
        info = start_raylet(*args, **kwargs)
        meanwhile.start()
        return info

    def start_without_agents(command: list[str], *args: Any, **kwargs: Any) -> Any:
        return start_ray_process([_without_agent(word) for word in command], *args, **kwargs)

    ports = ("metrics_agent_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    defaults: dict[str, Any] = {name: free_port() for name in ports}
    defaults |= {"include_log_monitor": False, "no_monitor": True}
    if fork_worker.SOCKET in os.environ:
        defaults["setup_worker_path"] = fork_worker.__file__
    new: dict[str, Any] = {
        "get_node": get_node_in_time, "start_raylet": start_raylet_with_port,
        "start_api_server": lambda *_, **__: ("", None), "start_ray_process": start_without_agents,
    }  # fmt: skip
    old = {name: getattr(services, name) for name in new}
    set_sigterm_handler = utils.set_sigterm_handler
    # Signals are ours, in this process.
    constants.RAY_DISABLE_FAILURE_SIGNAL_HANDLER = True
    utils.set_sigterm_handler = lambda _: None
    parameter.RayParams = functools.partial(params, **defaults)
    vars(services).update(new)
    try:
        yield
    finally:
        parameter.RayParams = params
        vars(services).update(old)
        utils.set_sigterm_handler = set_sigterm_handler


def _without_agent(word: str) -> str:
    """Return a word of the node's command; one that gives an agent's command gives another one."""
    names = [f"--{agent}_command" for agent in AGENTS]
    name, _, _ = word.partition("=")
    return f"{name}={NO_AGENT}" if name in names else word


def pass_logs_on(host: str) -> None:
    """Do what Ray has a process for: hand on what workers write, for the terminal."""
    log_monitor = _having(
        "ray._private.log_monitor",
        "is_proc_alive",
        "LogMonitor.should_update_filenames",
        "LogMonitor.update_log_filenames",
        "LogMonitor.open_closed_files",
        "LogMonitor.check_log_files_and_publish_updates",
    )
    node = this_node()
    folder = node.get_logs_dir_path()
    # Whatever ends it ends with the cluster; the lines are in Ray's files all the same.
    with contextlib.suppress(Exception):
        monitor = log_monitor.LogMonitor(host, folder, node.get_gcs_client(), log_monitor.is_proc_alive)
        # It counts them as known, and so leaves them out: they complain of the agents that are not there.
        monitor.log_filenames |= {f"{folder}/{name}.err" for name in ("gcs_server", "raylet")}
        listed_s = time.time()
        while True:  # LogMonitor.run does the same ten times a second, and each time takes 0.7 ms
            if monitor.should_update_filenames(listed_s):
                monitor.update_log_filenames()
                listed_s = time.time()
            monitor.open_closed_files()
            if not monitor.check_log_files_and_publish_updates():
                time.sleep(LOG_POLL_S)
