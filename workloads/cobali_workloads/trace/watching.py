"""Watches a server's engines tick by tick, and writes what was seen as a trace file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import orjson

from cobali_ray.errors import ConfigError
from cobali_workloads.trace.recording import Recording, incarnation_of
from cobali_workloads.trace.timeline import timeline_of

POLL_S = 0.5
MAX_TICKS = 4096
"""Ticks that a server remembers."""


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
    from cobali_workloads.trace.perfetto import write_trace  # the protobuf schema takes a tenth of a second

    try:
        recorded_ids = recording.request_ids
        timelines = [timeline_of(story, recorded_ids) for story in recording.stories.values()]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError("trace", f"the records are of another version: {error!r}") from error
    try:
        with output.open("wb") as file:
            write_trace(file, timelines)
    except OSError as error:
        raise ConfigError("--output", f"cannot write {output}: {error.strerror}") from error


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
            feed = self._ask(last=MAX_TICKS, since=self._next)
            self.recording.add(feed)
            if incarnation_of(feed) != self._incarnation_id:  # a new engine counts from 0
                self._incarnation_id, self._next = incarnation_of(feed), 0
                feed = self._ask(last=MAX_TICKS, since=0)
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
            raise ConfigError("--key", f"{where} needs an API key, and this one is wrong or missing")
        words = f"{where}/debug/ticks answers {answer.status_code}: {answer.text[:200]}"
        if answer.is_server_error:
            raise Away(words)
        if answer.status_code != httpx2.codes.OK:
            raise ConfigError("--url", words)
        return parsed(answer.content, "--url")


class Away(Exception):  # noqa: N818 a signal inside this module
    """The engine, or the server, is away: restarted, without a model, or too busy to answer."""


def parsed(content: bytes, option: str) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ConfigError(option, f"this is not valid JSON: {error}") from error
