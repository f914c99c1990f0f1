"""The engine without HTTP against llama-server without streaming: the schedulers alone.

The engine runs in a child process, `python -m cobali_ray.bench.peer_engine`: libgomp reads its wait policy
when it loads, so both sides can only get the same one through the environment they start with.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import orjson

from cobali_ray.bench.prompts import PromptMaker
from cobali_ray.bench.reply import Exchange, timeline_of
from cobali_ray.bench.rounds import Figures
from cobali_ray.bench.sender import LoopTimer, Sender, closed_loop
from cobali_ray.bench.target import Job, Target
from cobali_ray.core.request import Request, SamplingParams
from cobali_ray.engine.offline import run_offline
from cobali_ray.engine.opening import MonotonicClock, model_path, open_backend
from cobali_ray.errors import InternalError
from cobali_ray.settings import read_settings

TextsOf: TypeAlias = Callable[[int], Sequence[str]]
"""The prompts of one round: the same for all contenders, new ones each round."""


def texts_of(maker: PromptMaker, n_requests: int, n_prompt: int) -> TextsOf:
    """Return what makes the prompts of each round."""
    return lambda number: [maker.text(f"{number} {i}", n_prompt) for i in range(n_requests)]


class EngineProcess:
    """The engine in a child process, for as long as the `with` block lasts; each call is its next round."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        texts: TextsOf,
        n_output: int,
        *,
        environ: Mapping[str, str],
        log: Path,
    ) -> None:
        self._settings, self._texts, self._n_output, self._n_rounds = dict(settings), texts, n_output, 0
        self._environ, self._log = dict(environ), log

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "cobali_ray.bench.peer_engine"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environ,
            )
        self._say(self._settings)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.terminate()
        self._child.communicate()

    def __call__(self) -> Figures:
        self._say({"texts": self._texts(self._n_rounds), "n_output": self._n_output})
        self._n_rounds += 1
        line = self._child.stdout.readline() if self._child.stdout else b""
        if not line:
            end = self._log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise InternalError(f"the engine ended:\n{end}")
        found: dict[str, float] = orjson.loads(line)
        return found

    def _say(self, content: Mapping[str, Any]) -> None:
        if self._child.stdin is not None:
            self._child.stdin.write(orjson.dumps(content) + b"\n")
            self._child.stdin.flush()


class WholeAnswers:
    """Sends all prompts of a round to a server at once and waits for whole answers."""

    def __init__(self, target: Target, texts: TextsOf, n_output: int, *, timeout_s: float) -> None:
        self._target, self._texts, self._n_output, self._n_rounds = target, texts, n_output, 0
        self._timeout_s = timeout_s

    def __call__(self) -> Figures:
        clients = [[Job(prompt=text, n_output=self._n_output)] for text in self._texts(self._n_rounds)]
        self._n_rounds += 1
        answers = [timeline_of(exchange) for exchange in asyncio.run(self._send(clients))]
        if wrong := [a for a in answers if a.status != "ok"]:
            raise InternalError(f"{self._target.name} {wrong[0].status} a request: {wrong[0].error}")
        wall_s = max(a.ended_s for a in answers) - min(a.sent_s for a in answers)
        return _figures(wall_s, sum(a.n_prompt or 0 for a in answers), sum(a.n_output for a in answers))

    async def _send(self, clients: Sequence[Sequence[Job]]) -> list[Exchange]:
        timer = LoopTimer()
        send = Sender(self._target, timer, ignore_eos=True, timeout_s=self._timeout_s, stream=False)
        return await closed_loop(send, clients, timer)


def _figures(wall_s: float, n_prompt: int, n_output: int) -> dict[str, float]:
    rate = n_output / wall_s
    return {"wall_s": wall_s, "n_prompt": n_prompt, "n_output": n_output, "output_tokens_per_s": rate}


def serve_rounds(lines: Iterator[bytes], answer: Callable[[bytes], object]) -> None:
    """Read settings from the first line, then run one round per line and answer with its figures."""
    settings = read_settings(orjson.loads(next(lines)))
    backend, limits = open_backend(settings, model_path(settings))
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    try:
        for line in lines:
            asked = orjson.loads(line)
            requests = [
                Request(
                    request_id=str(i),
                    prompt=tuple(backend.words.tokenize(text)),
                    max_tokens=asked["n_output"],
                    sampling=sampling,
                )
                for i, text in enumerate(asked["texts"])
            ]
            report = run_offline(backend, limits, MonotonicClock(), requests)
            if report.failed:
                raise InternalError(f"the engine failed requests: {report.failed}")
            answer(orjson.dumps(_figures(report.wall_s, report.n_prompt, report.n_output)) + b"\n")
    finally:
        backend.close()


def main() -> None:
    """Answer on the real stdout; whatever logs goes to stderr."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    serve_rounds(iter(sys.stdin.buffer), out.write)


if __name__ == "__main__":
    main()
