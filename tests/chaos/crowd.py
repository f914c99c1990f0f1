"""Clients that know what they will be told: streams beside an engine that dies, and some that leave."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

COMPLETIONS = "/v1/completions"
LOOK_S = 0.1
HUNG_S = 90.0
"""A stream that says nothing for so long is hung."""
BACK_S = 60.0

Pid = Callable[[], Awaitable[int]]
"""Asks for the engine's process."""


@dataclass
class Report:
    """What clients saw."""

    n_answers: int = 0
    n_tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    """Answers that failed, or differ from those of an engine that nobody killed."""
    pauses_s: list[float] = field(default_factory=list)
    """The longest pause of each answer."""
    restarts_s: list[float] = field(default_factory=list)
    """From each fault until `/ready` says 200 again."""
    n_continued: float = 0.0
    """Requests that an engine went on with, where that was asked for."""

    def lines(self) -> list[str]:
        """Return it in words."""
        longest_s, restart_s = max(self.pauses_s, default=0.0), max(self.restarts_s, default=0.0)
        return [
            f"{self.n_answers} answers, {self.n_tokens} tokens, {len(self.wrong)} of them wrong",
            f"{len(self.restarts_s)} faults, back after {restart_s:.2f} s at most",
            f"longest pause {longest_s:.2f} s",
            *self.wrong[:10],
        ]


KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.9, "seed": 7},
    {"temperature": 0.9, "seed": 7, "n": 2, "logprobs": 1},
    {"temperature": 0.9, "seed": 7, "stream": False},
)


def asked(number: int, n_tokens: int) -> dict[str, Any]:
    """Return the body of one of many requests: one answer or two, in pieces or in one, drawn or greedy."""
    body = {"prompt": f"stream {number}", "max_tokens": n_tokens, "ignore_eos": True, "stream": True}
    body |= KINDS[number % len(KINDS)]
    return body | ({"stream_options": {"include_usage": True}} if body["stream"] else {})


class Told(NamedTuple):
    """What came of one request, without its times."""

    texts: dict[int, str]
    n_tokens: int | None
    """As `usage` says."""
    n_logprobs: int


class Answer:
    """The same as it comes."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.n_logprobs = 0
        self.usage: dict[str, Any] | None = None
        self.longest_s = 0.0
        self._last_s: float | None = None

    def add(self, chunk: dict[str, Any]) -> None:
        """Take a chunk, or a whole answer."""
        self.usage = chunk.get("usage") or self.usage
        now_s = time.monotonic()
        for choice in chunk["choices"]:
            self.texts[choice["index"]] = self.texts.get(choice["index"], "") + choice["text"]
            self.n_logprobs += len((choice.get("logprobs") or {"tokens": ()})["tokens"])
        if any(choice["text"] for choice in chunk["choices"]):
            if self._last_s is not None:
                self.longest_s = max(self.longest_s, now_s - self._last_s)
            self._last_s = now_s

    @property
    def told(self) -> Told:
        """What another answer to the same must be like."""
        n_tokens = None if self.usage is None else self.usage["completion_tokens"]
        return Told(self.texts, n_tokens, self.n_logprobs)


async def chunks(
    http: httpx2.AsyncClient, path: str, body: dict[str, Any], flaws: list[str]
) -> AsyncIterator[dict[str, Any]]:
    """Yield the chunks of a stream, and add the errors in it to `flaws`."""
    async with http.stream("POST", path, json=body) as response:
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if not data.startswith("{"):
                continue
            if "error" in (chunk := json.loads(data)):
                flaws.append(str(chunk["error"]))
            else:
                yield chunk


async def read(
    http: httpx2.AsyncClient,
    body: dict[str, Any],
    report: Report,
    expected: Told | None,
    on_chunk: Callable[[], None] = lambda: None,
) -> Told:
    """Ask for one answer, enter it in the report, and return what was told."""
    answer, flaws = Answer(), []
    try:
        async for chunk in chunks(http, COMPLETIONS, body, flaws):
            answer.add(chunk)
            on_chunk()
    except httpx2.HTTPError as error:
        flaws.append(repr(error))
    told = answer.told
    if expected is not None and told != expected:
        n_chars = {index: len(text) for index, text in told.texts.items()}
        flaws.append(f"{n_chars} characters, {told[1:]} are not what was to come")
    report.n_answers += 1
    report.n_tokens += told.n_tokens or 0
    report.pauses_s.append(answer.longest_s)
    report.wrong += [f"{body['prompt']}: {flaw}" for flaw in flaws]
    return told


async def ready(http: httpx2.AsyncClient) -> bool:
    """Ask whether the server takes requests."""
    return (await http.get("/ready")).status_code == 200


async def n_restarts(http: httpx2.AsyncClient) -> float:
    """Ask how often engines were restarted."""
    text = (await http.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in text if line.startswith("cobali_engine_restarts_total{"))


async def endure(
    url: str,
    pid: Pid,
    fault: Callable[[int], None],
    *,
    n_streams: int,
    n_tokens: int,
    every_s: float,
    n_faults: int,
) -> Report:
    """Keep streams running while a fault befalls the engine again and again; see that nobody notices.

    Each stream's answers are compared with those it gets before.
    """
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=HUNG_S, limits=limits) as http:
        bodies = [asked(number, n_tokens) for number in range(n_streams)]
        before = Report()
        expected = await asyncio.gather(*(read(http, body, before, None) for body in bodies))
        report = Report(wrong=before.wrong)

        async def ask(number: int) -> None:
            await read(http, bodies[number], report, expected[number])

        await befall(http, pid, fault, ask, report, n_streams=n_streams, every_s=every_s, n_faults=n_faults)
    return report


async def befall(
    http: httpx2.AsyncClient,
    pid: Pid,
    fault: Callable[[int], None],
    ask: Callable[[int], Awaitable[None]],
    report: Report,
    *,
    n_streams: int,
    every_s: float,
    n_faults: int,
) -> None:
    """Have each of many clients ask again and again while a fault befalls the engine; enter the restarts."""
    over = asyncio.Event()

    async def stream(number: int) -> None:
        while not over.is_set():
            await ask(number)

    streams = [asyncio.create_task(stream(number)) for number in range(n_streams)]
    try:
        for _ in range(n_faults):
            await asyncio.sleep(every_s / 2)
            n_before, began_s = await n_restarts(http), time.monotonic()
            fault(await pid())
            report.restarts_s.append(await _back(http, n_before, began_s))
            await asyncio.sleep(max(every_s / 2 - report.restarts_s[-1], 0.0))
    finally:
        over.set()
        await asyncio.gather(*streams)


async def _back(http: httpx2.AsyncClient, n_before: float, began_s: float) -> float:
    """Wait until the engine was restarted and the server is ready again; return how long that took."""
    async with asyncio.timeout(BACK_S):
        while await n_restarts(http) == n_before or not await ready(http):  # noqa: ASYNC110 another process
            await asyncio.sleep(LOOK_S)
    return time.monotonic() - began_s


def kill(pid: int) -> None:
    """End a process at once."""
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    """Have a process stand still."""
    os.kill(pid, signal.SIGSTOP)


def n_files(pids: list[int]) -> list[int]:
    """Count the open file descriptors of processes."""
    return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids]


async def leave(url: str, *, n_clients: int, at_once: int, seed: int) -> None:
    """Have clients come and leave again at any moment: on the way in, in the queue, in mid-answer."""
    rng, gate = random.Random(seed), asyncio.Semaphore(at_once)

    async def client(number: int, leaves_after_s: float) -> None:
        async with gate, httpx2.AsyncClient(base_url=url, timeout=HUNG_S) as http:
            task = asyncio.ensure_future(read(http, asked(number, 2000), Report(), None))
            await asyncio.wait({task}, timeout=leaves_after_s)
            task.cancel()
            await asyncio.wait({task})

    await asyncio.gather(*(client(number, rng.expovariate(8.0)) for number in range(n_clients)))


async def ghosts(url: str) -> list[str]:
    """Say what is still held when all clients have gone, at the latest after half a minute."""
    async with httpx2.AsyncClient(base_url=url, timeout=30.0) as http:
        held: list[str] = ["not looked at"]
        until_s = time.monotonic() + 30.0
        while held and time.monotonic() < until_s:
            await asyncio.sleep(0.1)
            lines = (await http.get("/metrics")).text.splitlines()
            held = [line for line in lines if _NOBODYS.match(line) and not line.endswith(" 0.0")]
        return held


_NOBODYS = re.compile(
    r'cobali_(slots{.*state="(generating|prefilling)"|kv_cells{.*state="used"|queue_(requests|tokens){'
    r"|embedding_queue_texts{)"
)
