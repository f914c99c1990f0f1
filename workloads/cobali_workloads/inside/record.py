"""Keeps what a server's engine does while a load runs, tick by tick, for the simulator and for traces."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

import httpx2
import orjson

from cobali_ray.errors import ConfigError
from cobali_workloads.trace.recording import Recording
from cobali_workloads.trace.watching import POLL_S, Watcher, check_writable


class RunRecord:
    """Asks for new ticks in a thread of its own: `with RunRecord(path, url, key): ...`. Written at the end.

    The file is an answer of /debug/ticks as long as the run.
    """

    def __init__(self, path: Path, url: str, api_key: str | None) -> None:
        check_writable(path)
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._path, self._http = path, httpx2.Client(base_url=url, headers=headers, timeout=10.0)
        self._recording = Recording()
        self._watcher = Watcher(self._http, self._recording)
        self._over = Event()
        self._thread = Thread(target=self._watch, name="record", daemon=True)

    def __enter__(self) -> Self:
        self._watcher.begin()
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            self._watcher.look()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        with suppress(ConfigError):  # what was recorded until now is written
            self._watcher.look()
        self._http.close()
        story = max(self._recording.stories.values(), key=lambda story: len(story.ticks))
        content = {
            "engine": story.engine, "now_s": story.now_s, "unix_s": story.unix_s,
            "ticks": list(story.ticks.values()), "requests": list(story.requests.values()),
        }  # fmt: skip
        try:
            self._path.write_bytes(orjson.dumps(content))
        except OSError as problem:
            raise ConfigError("--record", f"cannot write {self._path}: {problem.strerror}") from problem
