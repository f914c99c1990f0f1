"""The processes of servers on this machine, and every TCP port on which they listen."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from cobali_ray.ports import FIRST, LAST
from cobali_ray.telemetry.usage import ProcessUsage, usage_of

ROOTS: Final = re.compile(r"cobali serve|/raylet/raylet |/gcs/gcs_server |/ray start ")
"""Commands below which everything belongs to a server, or to Ray's node that it runs on."""
SERVE: Final = re.compile(r"cobali(?:_ray)? serve")
NODE: Final = re.compile(r"cobali(?:_ray)? serve |/raylet/raylet ")
"""Commands of processes that have one server or Ray node below them."""
PARTS: Final = (
    (re.compile(r"haproxy .*-f (\S+)"), "front end"),
    (re.compile(r"ray::ServeReplica:(\S+)"), "replica"),
    (re.compile(r"ray::(ProxyActor)"), "proxy"),
    (re.compile(r"ray::(\w+)|/(raylet|gcs_server) |/dashboard/(agent|dashboard)\.py"), "Ray"),
    (re.compile(r"/(log_monitor|monitor)\.py|util\.client\.(server)"), "Ray"),
    (re.compile(r"cobali_ray\.backend\.(worker)"), "worker"),
    (re.compile(r"(cobali serve|ray start|fork_server)"), "other"),
)
"""By a process's command: its name, and what kind of process it is."""
OWNERS: Final = "those who have Ray's token"
KEYS: Final = "those who have an API key, or all if there are none"
ADMITTED: Final = "engines that the ingress knows, by their keys; encrypted"
LOCAL: Final = "one engine; every account here, before it connects"
ALL: Final = "all, but it only shows numbers"


class ProcessKind(NamedTuple):
    """What a process is, its name, and HAProxy's configuration."""

    kind: str
    name: str
    config: str = ""


class Listener(NamedTuple):
    """A port, its process, and who may use it among those who can reach its address."""

    host: str
    port: int
    pid: int
    process: str
    what: str
    who: str

    @property
    def reach(self) -> str:
        address = ip_address(self.host)
        if (getattr(address, "ipv4_mapped", None) or address).is_loopback:
            return "this machine"
        return "all networks" if address.is_unspecified else "the network of this address"


def server_processes() -> list[psutil.Process]:
    """Return the processes of all servers here and of Ray's nodes, as far as this account may see them."""
    by_pid: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = _command(process)
            if ROOTS.search(command) or command.startswith("ray::"):
                by_pid |= {child.pid: child for child in (process, *process.children(recursive=True))}
    return [by_pid[pid] for pid in sorted(by_pid)]


def listeners(processes: list[psutil.Process]) -> Iterator[Listener]:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            part = _part(process)
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    host, port = connection.laddr
                    what, who = _purpose(process, part, host, port)
                    yield Listener(host, port, process.pid, part.name, what, who)


def beside() -> list[ProcessUsage]:
    """Ask what all ingresses and front ends of this process's own server take, on this machine.

    All of them, because each scrape may be answered by another ingress. It reads a file per process of the
    machine, so a thread should call it.
    """
    root = own = psutil.Process()
    for parent in reversed(own.parents()):
        with contextlib.suppress(psutil.Error):
            root = parent if NODE.search(_command(parent)) else root
    usages = []
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            part = _part(process)
            if part.kind == "front end":
                usages.append(usage_of(process, "front_end"))
            elif part.kind == "replica" and part.name.endswith(":ingress"):
                usages.append(usage_of(process, "ingress"))
    return usages


def name_of(process: psutil.Process) -> str:
    """Return what a process of a server is called; of a replica, its application and deployment."""
    return _part(process).name


def _command(process: psutil.Process) -> str:
    return " ".join(process.cmdline()) + " "


def _part(process: psutil.Process) -> ProcessKind:
    command = _command(process)
    for pattern, kind in PARTS:
        if match := pattern.search(command):
            name = next((group for group in match.groups() if group), kind)
            return ProcessKind(kind, "HAProxy", name) if kind == "front end" else ProcessKind(kind, name)
    return ProcessKind("other", process.name())


def _purpose(process: psutil.Process, part: ProcessKind, host: str, port: int) -> tuple[str, str]:
    environ = process.environ()
    match part.kind:
        case "front end":
            section = _section(Path(part.config), port)
            return ("HTTP", KEYS) if section == "http_frontend" else (f"HAProxy's {section}", ALL)
        case "proxy" if str(port) == environ.get("RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"):
            return "HTTP, behind the front end", KEYS
        case "replica" if port in _replica_ports(environ):
            return "HTTP, behind the front end", KEYS
        case "replica" if part.name.endswith(":ingress") and FIRST <= port < LAST:
            return "tokens from engines of other machines", ADMITTED
        case "worker":
            return "a device for an engine", LOCAL
        case _ if part.name in {"dashboard", "monitor", "DashboardAgent"} and host == "0.0.0.0":  # noqa: S104
            return "metrics of Ray", ALL
    return "gRPC or HTTP of Ray", OWNERS


def _replica_ports(environ: dict[str, str]) -> range:
    first, last = (environ.get(f"RAY_SERVE_DIRECT_INGRESS_{end}_HTTP_PORT", "0") for end in ("MIN", "MAX"))
    return range(int(first), int(last) + 1)


def _section(path: Path, port: int) -> str:
    """Return the section of HAProxy's configuration that listens on a port."""
    section = ""
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line[:1].strip():
                section = line.split()[-1]
            elif re.search(rf"^\s+bind \S*:{port}\b", line):
                return section
    return "statistics"
