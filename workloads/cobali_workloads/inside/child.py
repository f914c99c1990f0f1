"""The engine in a process of its own that runs on orders: `python -m cobali_workloads.inside.child`.

How OpenMP's threads wait is fixed when the library loads, so every policy needs its own process. Orders and
answers are JSON lines on standard input and output, the settings first; logs go to standard error.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from cobali_ray.backend.port import Backend
from cobali_ray.core.request.events import EngineEvent
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.opening import engine_on, model_path, open_backend
from cobali_ray.errors import InternalError
from cobali_ray.settings import EngineSettings, read_settings
from cobali_workloads.inside.runs import greedy_requests
from cobali_workloads.offline import run_offline

N_PROMPT = 8
MIN_TICKS = 2


class Child:
    """The process, for as long as the `with` block lasts."""

    def __init__(self, settings: Mapping[str, Any], *, environ: Mapping[str, str], log: Path) -> None:
        self._settings, self._environ, self._log = dict(settings), dict(environ), log

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, this module
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environ,
            )
        self._send(self._settings)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def answer(self) -> dict[str, Any]:
        """Wait for its next line, the first of which says that it is ready. InternalError if it ended."""
        line = self._process.stdout.readline() if self._process.stdout else b""
        if not line:
            end = self._log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise InternalError(f"the engine's process ended with {self._process.wait()}:\n{end}")
        answer: dict[str, Any] = orjson.loads(line)
        return answer

    def order(self, **what: Any) -> dict[str, Any]:
        """Send one order (`texts` and `n_output`, or `n_ticks` and `seconds`) and return the answer."""
        self._send(what)
        return self.answer()

    def _send(self, content: Mapping[str, Any]) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(orjson.dumps(content) + b"\n")
            self._process.stdin.flush()


class Treadmill:
    """An engine that generates on every slot for as long as it is ordered to."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names = (str(i) for i in count())

    def run(self, n_ticks: int, seconds: float) -> dict[str, Any]:
        """Generate for `n_ticks` or until `seconds` are over, at least two ticks; prefill is not counted.

        Returns the ticks' times and the processor time of this process in the same span.
        """
        prompt = tuple(range(5, 5 + N_PROMPT))
        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        names = [next(self._names) for _ in range(self._engine.limits.n_slots)]
        for name in names:
            self._engine.submit(
                Request(request_id=name, prompt=prompt, max_tokens=n_ticks + MIN_TICKS + 2, sampling=sampling)
            )
        while len(self._engine.scheduler.queue) or not self._engine.slots.running:
            self._engine.tick()
        self._engine.tick()
        ticks: list[float] = []
        used = os.times()
        began = last = self._engine.now()
        while len(ticks) < n_ticks and (last - began < seconds or len(ticks) < MIN_TICKS):
            self._engine.tick()
            now = self._engine.now()
            ticks.append(now - last)
            last = now
        after = os.times()
        for name in names:
            self._engine.cancel(name)
        self._engine.tick()
        return {"ticks_s": ticks, "cpu_s": after.user + after.system - used.user - used.system}


def _discard(_: list[tuple[str, EngineEvent]]) -> None:
    """Drop the events."""


def obey(lines: Iterator[bytes], answer: Callable[[bytes], object]) -> None:
    """Open the engine that the first line names, then answer every further line."""
    settings = read_settings(orjson.loads(next(lines)))
    backend = open_backend(settings, model_path(settings))
    treadmill = Treadmill(engine_on(backend, settings, _discard))
    try:
        answer(b'{"ready":true}\n')
        for line in lines:
            order = orjson.loads(line)
            result = _texts(backend, settings, **order) if "texts" in order else treadmill.run(**order)
            answer(orjson.dumps(result) + b"\n")
    finally:
        backend.close()


def _texts(backend: Backend, settings: EngineSettings, texts: list[str], n_output: int) -> dict[str, float]:
    prompts = [backend.words.tokenize(text) for text in texts]
    requests = greedy_requests(prompts, max_tokens=n_output, ignore_eos=True)
    report = run_offline(partial(engine_on, backend, settings), requests)
    if report.failed:
        raise InternalError(f"the engine failed requests: {report.failed}")
    return {"wall_s": report.wall_s, "n_prompt": report.n_prompt, "n_output": report.n_output}


def main() -> None:
    """Answer on the real stdout; whatever logs goes to stderr."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    obey(iter(sys.stdin.buffer), out.write)


if __name__ == "__main__":
    main()
