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

from cobali_ray.errors import ConfigError
from cobali_ray.extras import require_extra
from cobali_ray.trace.recording import Recording, incarnation_of
from cobali_ray.trace.timeline import timeline_of

POLL_S = 0.5
MOST_TICKS = 4096
"""Ticks that a server remembers."""
UI = "https://ui.perfetto.dev"


def trace(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.", dir_okay=False)] = Path(
        "out.pftrace"
    ),
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to watch the server.")] = 5.0,
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None,
        typer.Option(envvar=["COBALI_API_KEY", "COBALI_KEY"], help="Sent to the server as a bearer token."),
    ] = None,
    engine: Annotated[str | None, typer.Option(help="An engine's id. Default: all engines.")] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="A saved answer of /debug/ticks instead of a server.", exists=True, dir_okay=False
        ),
    ] = None,
) -> None:
    """Write what engines do, tick by tick, as a trace for the Perfetto UI."""
    require_extra("trace", "perfetto")
    console = Console(stderr=True)
    recording = Recording()
    check_writable(output)
    if source is not None:
        recording.add(_saved(source))
        _save(recording, output, console)
        return
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        client = httpx2.Client(base_url=url.rstrip("/"), headers=headers, timeout=10.0)
    except httpx2.InvalidURL as error:
        raise ConfigError("--url", f"'{url}' is not an address such as http://127.0.0.1:8000") from error
    with client as http:
        watchers = [Watcher(http, recording, one) for one in (_engines(http) if engine is None else [engine])]
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


def check_writable(output: Path) -> None:
    """Find out before the watching. What the file holds stays, and none is left. Raises ConfigError."""
    try:
        if output.exists():
            output.open("ab").close()
        else:
            fresh = output.resolve()  # a link may lead to what is not there yet
            fresh.open("xb").close()
            fresh.unlink()
    except OSError as error:
        raise ConfigError("--output", f"cannot write {output}: {error.strerror}") from error


def write(recording: Recording, output: Path) -> None:
    """Write a recording as a trace file. Raises ConfigError where that cannot be done."""
    from cobali_ray.trace.perfetto import write_trace  # the protobuf schema takes a tenth of a second

    try:
        known = recording.request_ids
        timelines = [timeline_of(story, known) for story in recording.stories.values()]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError("trace", f"the records are of another version: {error!r}") from error
    try:
        with output.open("wb") as file:
            write_trace(file, timelines)
    except OSError as error:
        raise ConfigError("--output", f"cannot write {output}: {error.strerror}") from error


def _engines(http: httpx2.Client) -> list[str]:
    """Return the ids of a server's engines; where it names none, that of the only one."""
    with suppress(httpx2.TransportError, orjson.JSONDecodeError, KeyError, TypeError):
        told = orjson.loads(http.get("/ready").content)["engines"]
        return [str(engine["engine_id"]) for engine in told] or [""]
    return [""]


def begin(watchers: Sequence[Watcher]) -> None:
    """Have all begin; some engines may be away, or without a model. Raises ConfigError if none is there."""
    trouble: ConfigError | None = None
    n_there = 0
    for watcher in watchers:
        try:
            watcher.begin()
            n_there += 1
        except Away as away:
            trouble = ConfigError("--url", str(away))
    if trouble is not None and not n_there:
        raise trouble


class Watcher:
    """Asks a server again and again for what is new of one engine; without a name, of the first."""

    def __init__(self, http: httpx2.Client, recording: Recording, engine_id: str = "") -> None:
        self._http, self.recording, self._engine_id = http, recording, engine_id
        self._incarnation_id: str | None = None
        self._next = 0

    def begin(self) -> None:
        """Take what runs now as the beginning. Raises Away, and ConfigError if there is nobody to ask."""
        feed = self._ask(last=1, since=2**62)
        self.recording.add(feed)
        self._incarnation_id, self._next = incarnation_of(feed), feed["next"]

    def look(self) -> bool:
        """Take what is new. False: the engine cannot be reached just now."""
        try:
            feed = self._ask(last=MOST_TICKS, since=self._next)
            self.recording.add(feed)
            if incarnation_of(feed) != self._incarnation_id:  # a new engine counts from 0
                self._incarnation_id, self._next = incarnation_of(feed), 0
                feed = self._ask(last=MOST_TICKS, since=0)
                self.recording.add(feed)
        except Away:
            return False
        self._next = feed["next"]
        return True

    def _ask(self, *, last: int, since: int) -> Any:
        where = f"{self._http.base_url}".rstrip("/")
        of_engine = {"engine": self._engine_id} if self._engine_id else {}
        try:
            answer = self._http.get("/debug/ticks", params={"last": last, "since": since, **of_engine})
        except httpx2.TransportError as error:
            raise Away(f"no server answers at {where}: {error}") from error
        if answer.status_code == httpx2.codes.UNAUTHORIZED:
            raise ConfigError("--api-key", f"{where} needs an API key, and this one is wrong or missing")
        words = f"{where}/debug/ticks answers {answer.status_code}: {answer.text[:200]}"
        if answer.is_server_error:
            raise Away(words)
        if answer.status_code != httpx2.codes.OK:
            raise ConfigError("--url", words)
        return _parsed(answer.content, "--url")


class Away(Exception):  # noqa: N818 a signal inside this module
    """The engine, or the server, is away: restarted, without a model, or too busy to answer."""


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
        return _parsed(path.read_bytes(), "--from")
    except OSError as error:
        raise ConfigError("--from", f"cannot read {path}: {error.strerror}") from error


def _parsed(content: bytes, option: str) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ConfigError(option, f"this is not valid JSON: {error}") from error
