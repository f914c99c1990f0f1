"""`cobali ps`: the servers on this machine, what their engines do, and where they listen."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final

import httpx2
import orjson
import psutil
import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from cobali_ray.actors.listening import SERVE, Listener, listeners, name_of, server_processes
from cobali_ray.command_line import Key, address_of, bearer, is_ready
from cobali_ray.errors import StartError
from cobali_ray.models.commands import list_console
from cobali_ray.ports import authority, reached_at

POLL_S: Final = 0.2
_now = time.monotonic
WATCH_S: Final = 0.5
"""How long tokens are counted for a rate."""
TIMEOUT_S: Final = 5.0
NARROW_COLUMNS: Final = 78
"""With fewer columns, a table whose cells have to be folded cannot be read."""
PROXY: Final = "ProxyActor"
"""Where there is no HAProxy, one of the ports of Serve's own proxy takes requests."""
_Counts = dict[str, float]


@dataclass(slots=True)
class RunningEngine:
    """An engine of a server, as far as the server tells."""

    engine_id: str
    model: str
    status: str
    node: str
    n_running: int
    n_slots: int
    n_queued: int
    tokens_per_second: float | None
    memory_bytes: int | None
    """Of its process, where that runs on this machine."""


@dataclass(slots=True)
class RunningServer:
    url: str
    pid: int | None = None
    """None, as the next two, of a server at the address of `--url`."""
    up_s: float | None = None
    memory_bytes: int | None = None
    """Of all its processes here; what they share counts for each."""
    engines: list[RunningEngine] = field(default_factory=list)
    trouble: str = ""
    """Why not everything is known."""


def ps(
    ports: Annotated[
        bool, typer.Option("--ports", help="Show every port that the servers listen on.")
    ] = False,
    url: Annotated[
        str | None, typer.Option(help="Show only the server at this address, on any machine.")
    ] = None,
    key: Key = None,
    wait: Annotated[bool, typer.Option("--wait", help="First wait until servers accept requests.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0, help="Give up waiting after this many seconds, with status 1.")
    ] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show the servers on this machine and what their engines are doing.

    Examples:
      cobali ps
      cobali ps --wait && cobali complete "Once upon a time"
      cobali ps --url http://10.0.0.5:8000 --json
      cobali ps --ports
    """
    url = address_of(url) if url else None
    if wait:
        wait_ready(lambda: [url] if url else _awaited(_fronts(server_processes())), timeout)
    processes = [] if url else server_processes()
    console = list_console()
    if ports:
        ports_in_use = sorted(
            listeners(processes), key=lambda listener: (listener.reach != "this machine", listener.port)
        )
        if as_json:
            rows = [listener._asdict() | {"reach": listener.reach} for listener in ports_in_use]
            typer.echo(orjson.dumps(rows).decode())
        else:
            console.print(_fitted(_ports(ports_in_use), console.width) if ports_in_use else _none(processes))
        return
    servers = [server_at(url, key)] if url else list(running(processes, key))
    if as_json:
        typer.echo(orjson.dumps([asdict(server) for server in servers], option=orjson.OPT_INDENT_2).decode())
        return
    for server in servers:
        about = []
        if server.pid is not None and server.up_s is not None and server.memory_bytes is not None:
            about = [f"pid {server.pid}, up {_span(server.up_s)}, {_mib(server.memory_bytes)} MiB in all"]
        summary = "; ".join([*about, *([server.trouble] if server.trouble else [])])
        console.print(Text.assemble((server.url, "bold"), "  ", summary), soft_wrap=True)
        console.print(Padding.indent(_fitted(_engines(server.engines), console.width - 2), 2))
    if not servers:
        console.print(_none(processes))


def running(processes: list[psutil.Process], key: str | None) -> Iterator[RunningServer]:
    """Yield every server whose HTTP port one of these processes has."""
    for front in _fronts(processes):
        with contextlib.suppress(psutil.Error):
            server = _server(front, key)
            if front.process != PROXY or server.engines:
                yield server


def _fronts(processes: list[psutil.Process]) -> list[Listener]:
    """Return the ports on which these processes may take a server's requests."""
    by_port = list({(listener.pid, listener.port): listener for listener in listeners(processes)}.values())
    fronts = [listener for listener in by_port if listener.what == "HTTP"]
    return fronts or [listener for listener in by_port if listener.process == PROXY]


def _url(front: Listener) -> str:
    return f"http://{authority(reached_at(front.host), front.port)}"


def _awaited(fronts: list[Listener]) -> list[str]:
    """Return the addresses that are to take requests: of a proxy of Serve's, one of its ports."""
    urls = [_url(front) for front in fronts]
    if any(front.process == PROXY for front in fronts):
        return [url for url in urls if _is_ready(url)] or urls
    return urls


def wait_ready(
    look: Callable[[], list[str]],
    limit_s: float,
    *,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Return when `look` returns addresses of servers, and all of them take requests for all of their models.

    Raises StartError after `limit_s`.
    """
    until_s = now() + limit_s
    while not ((urls := look()) and all(map(_is_ready, urls))):
        if now() >= until_s:
            what = ", ".join(urls) or "The server"
            raise StartError(what, f"still takes no requests after {limit_s:.0f} s; see `cobali ps`")
        pause(POLL_S)


def _is_ready(url: str) -> bool:
    with httpx2.Client(base_url=url) as http:
        return is_ready(http)


def server_at(url: str, key: str | None) -> RunningServer:
    """Return what the server at an address tells of itself."""
    server = RunningServer(url=url)
    _ask(server, key, {})
    return server


def _server(front: Listener, key: str | None) -> RunningServer:
    process = psutil.Process(front.pid)
    owners = (parent for parent in process.parents() if SERVE.search(" ".join(parent.cmdline())))
    owner = next(owners, process)
    parts = [owner, *owner.children(recursive=True)]
    memory: dict[str, int] = {}
    for part in parts:
        with contextlib.suppress(psutil.Error):
            memory[name_of(part)] = memory.get(name_of(part), 0) + part.memory_info().rss
    server = RunningServer(
        url=_url(front),
        pid=owner.pid,
        up_s=time.time() - owner.create_time(),
        memory_bytes=sum(memory.values()),
    )
    _ask(server, key, memory)
    return server


def _ask(server: RunningServer, key: str | None, memory: dict[str, int]) -> None:
    """Ask a server about its engines; `memory` has the bytes of its processes here, by their names."""
    try:
        with httpx2.Client(base_url=server.url, headers=bearer(key), timeout=TIMEOUT_S) as http:
            server.engines, server.trouble = _engines_of(http, memory)
    except (httpx2.TransportError, ValueError, LookupError, TypeError):
        server.trouble = "it does not answer"


def _engines_of(http: httpx2.Client, memory: dict[str, int]) -> tuple[list[RunningEngine], str]:
    """Return what a server tells of its engines, and what it does not without a key."""
    states = orjson.loads(http.get("/ready").content)["engines"]
    about, before = _counted(http)
    before_s = _now()
    trouble = ""
    rates: _Counts = {}
    if about is None:
        trouble = "it needs a key to show more: --key, or COBALI_API_KEY"
    else:
        time.sleep(WATCH_S)
        after = _counted(http)[1]
        seconds = _now() - before_s
        rates = {engine: (n - before.get(engine, n)) / seconds for engine, n in after.items()}
    return [_engine(state, about or {}, rates, memory) for state in states], trouble


def _counted(http: httpx2.Client) -> tuple[dict[str, dict[str, str]] | None, _Counts]:
    """Return the labels of each engine, and how many tokens it has written; None where a key is missing."""
    answer = http.get("/metrics")
    if answer.status_code != httpx2.codes.OK:
        return None, {}
    about: dict[str, dict[str, str]] = {}
    written: _Counts = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if sample.name == "cobali_info":
                about[sample.labels["engine"]] = sample.labels
            elif sample.name == "cobali_output_tokens_total":
                written[sample.labels["engine"]] = sample.value
    return about, written


def _engine(
    state: dict[str, Any], about: dict[str, dict[str, str]], rates: _Counts, memory: dict[str, int]
) -> RunningEngine:
    engine_id = state["engine_id"]
    labels = about.get(engine_id, {})
    names = (f"engine-{engine_id}", "engine")
    own = [size for name, size in memory.items() if name.rpartition(":")[2] in names and ":" in name]
    return RunningEngine(
        engine_id=engine_id,
        model=labels.get("model", ""),
        status=state["status"],
        node=labels.get("node", ""),
        n_running=state["n_running"],
        n_slots=state["n_slots"],
        n_queued=state["n_queued"],
        tokens_per_second=rates.get(engine_id),
        memory_bytes=own[0] if own else None,
    )


def _engines(engines: list[RunningEngine]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("engine", "model", "state", "node", "slots", "queue", "tok/s", "MiB"):
        table.add_column(name, overflow="fold")
    for engine in engines:
        rate = "" if engine.tokens_per_second is None else f"{engine.tokens_per_second:.1f}"
        size = "" if engine.memory_bytes is None else _mib(engine.memory_bytes)
        slots = f"{engine.n_running}/{engine.n_slots}"
        queue = str(engine.n_queued)
        table.add_row(engine.engine_id, engine.model, engine.status, engine.node, slots, queue, rate, size)
    return table


def _ports(ports: list[Listener]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("address", "process", "what", "reached from", "used by"):
        table.add_column(name, overflow="fold")
    for listener in ports:
        address = authority(listener.host, listener.port)
        process = f"{listener.process} ({listener.pid})"
        table.add_row(address, process, listener.what, listener.reach, listener.who)
    return table


def _fitted(table: Table, width: int) -> Table:
    """Return the table, or where that is too wide a block of lines for each row."""
    if width >= NARROW_COLUMNS or Console(width=NARROW_COLUMNS, markup=False).measure(table).maximum <= width:
        return table
    blocks = Table.grid(padding=(0, 2, 0, 0))
    for i in range(table.row_count):
        for column in table.columns:
            blocks.add_row(column.header, list(column.cells)[i])
        blocks.add_row()
    return blocks


def _none(processes: list[psutil.Process]) -> str:
    if processes:
        return f"No server takes requests here; there are processes of one, or of Ray: {len(processes)}."
    return "No server runs here, as far as this account may see; `cobali serve` starts one."


def _mib(n_bytes: int) -> str:
    return f"{n_bytes >> 20:,}"


def _span(seconds: float) -> str:
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    parts: list[str] = []
    for name, size in units:
        n, seconds = divmod(int(seconds), size)
        if n or (name == "s" and not parts):
            parts.append(f"{n} {name}")
    return " ".join(parts[:2])
