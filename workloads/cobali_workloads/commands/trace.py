"""`cobali trace`: watch a server for some seconds, or read a saved answer, and write a trace file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import httpx2
import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cobali_ray.command_line import DEFAULT_URL, Key, Url, address_of, bearer
from cobali_ray.errors import ConfigError
from cobali_workloads.trace.recording import Recording
from cobali_workloads.trace.watching import POLL_S, Watcher, begin, check_writable, parsed, write

UI = "https://ui.perfetto.dev"


def trace(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.", dir_okay=False)] = Path(
        "out.pftrace"
    ),
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to watch the server.")] = 5.0,
    url: Url = DEFAULT_URL,
    key: Key = None,
    engine: Annotated[str | None, typer.Option(help="An engine's id. Default: all engines.")] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="A saved answer of /debug/ticks instead of a server.", exists=True, dir_okay=False
        ),
    ] = None,
) -> None:
    """Write what engines do, tick by tick, as a trace for the Perfetto UI."""
    console = Console(stderr=True)
    recording = Recording()
    check_writable(output)
    if source is not None:
        recording.add(_saved(source))
        _save(recording, output, console)
        return
    with httpx2.Client(base_url=address_of(url), headers=bearer(key), timeout=10.0) as http:
        watchers = [
            Watcher(http, recording, engine_id)
            for engine_id in (_engines(http) if engine is None else [engine])
        ]
        begin(watchers)
        try:
            with suppress(KeyboardInterrupt):  # enough was seen
                _watch(watchers, seconds, console)
        finally:
            _save(recording, output, console)


def _save(recording: Recording, output: Path, console: Console) -> None:
    """Write the file and say what is in it."""
    write(recording, output)
    console.print(
        f"{_some(recording.n_ticks, 'tick')} and {_some(recording.n_requests, 'request')} in {output}; "
        f"open it at {UI} (it stays in the browser).",
        highlight=False,
        soft_wrap=True,
    )
    if not recording.n_ticks:
        console.print("There was no tick: the engine had nothing to compute.", highlight=False)


def _some(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _engines(http: httpx2.Client) -> list[str]:
    """Return the ids of a server's engines; where it names none, that of the only one."""
    with suppress(httpx2.TransportError, orjson.JSONDecodeError, KeyError, TypeError):
        listed = orjson.loads(http.get("/ready").content)["engines"]
        return [str(engine["engine_id"]) for engine in listed] or [""]
    return [""]


def _watch(
    watchers: Sequence[Watcher],
    seconds: float,
    console: Console,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    started = now()
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("recording", total=seconds)
        while (left := started + seconds - now()) > 0:
            sleep(min(left, POLL_S))
            there = [watcher.look() for watcher in watchers]
            words = f"recording: {watchers[0].recording.n_ticks} ticks"
            if not any(there):
                words = "the engine is not there"
            bars.update(task, completed=min(now() - started, seconds), description=words)


def _saved(path: Path) -> Any:
    try:
        return parsed(path.read_bytes(), "--from")
    except OSError as error:
        raise ConfigError("--from", f"cannot read {path}: {error.strerror}") from error
