"""What clients see when a part of the server other than an engine dies under their streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx2

from cobali_workloads.servers.processes import INGRESS, pids_of
from tests.chaos.crowd import COMPLETIONS, HUNG_S, LOOK_S, Report, asked, read

PARTS = {
    "an ingress": INGRESS,
    "Serve's controller": "ray::ServeController",
    "HAProxy": "haproxy",
    "Serve's proxy": "ray::ProxyActor",
}
"""What Ray calls their processes."""


@dataclass
class Fate:
    """What became of streams and of a new request."""

    n_whole: int = 0
    n_cut: int = 0
    wrong: list[str] = field(default_factory=list)
    """Streams that are neither what was to come nor cut."""
    cut_s: float = 0.0
    """From the death until the last of those that were cut heard of it."""
    pause_s: float = 0.0
    """The longest of the others."""
    served_s: float = 0.0
    """From the death to the end of the first new request that was answered."""

    def __str__(self) -> str:
        return (
            f"{self.n_whole} streams whole (longest pause {self.pause_s:.2f} s), {self.n_cut} cut after "
            f"{self.cut_s:.2f} s at most, {len(self.wrong)} wrong; "
            f"a new request served after {self.served_s:.2f} s"
        )


def kill_one(root: int, part: str) -> None:
    """End the newest process of a part at once; of HAProxy all: those before a reload keep their streams."""
    pids = pids_of(root, PARTS[part])
    for pid in pids if part == "HAProxy" else pids[-1:]:
        os.kill(pid, signal.SIGKILL)


async def witness(
    url: str, kill: Callable[[], None], *, n_streams: int, n_tokens: int, **fields: str
) -> Fate:
    """Have a part die under streams; see what becomes of them and of those who come afterwards.

    All requests have the `fields`, such as a model.
    """
    limits, fate = httpx2.Limits(max_connections=None), Fate()
    async with httpx2.AsyncClient(base_url=url, timeout=HUNG_S, limits=limits) as http:
        bodies = [asked(4 * number, n_tokens) | fields for number in range(n_streams)]  # one stream each
        expected = await asyncio.gather(*(read(http, body, Report(), None) for body in bodies))
        killed_s, begun = 0.0, set[int]()

        async def stream(number: int) -> None:
            report = Report()
            told = await read(http, bodies[number], report, None, lambda: begun.add(number))
            if told == expected[number]:
                fate.n_whole += 1
                fate.pause_s = max(fate.pause_s, *report.pauses_s)
            elif report.wrong and expected[number].texts[0].startswith(told.texts.get(0, "")):
                fate.n_cut += 1
                fate.cut_s = max(fate.cut_s, time.monotonic() - killed_s)
            else:
                fate.wrong.append(f"{bodies[number]['prompt']}: {report.wrong} {len(told.texts.get(0, ''))}")

        streams = [asyncio.create_task(stream(number)) for number in range(n_streams)]
        async with asyncio.timeout(HUNG_S):
            while len(begun) < n_streams:  # noqa: ASYNC110 another process
                await asyncio.sleep(LOOK_S)
        kill()
        killed_s = time.monotonic()
        fate.served_s = await _served(http, killed_s, fields)
        await asyncio.gather(*streams)
    return fate


async def _served(http: httpx2.AsyncClient, since_s: float, fields: dict[str, str]) -> float:
    body = {"prompt": "new", "max_tokens": 1} | fields
    while True:
        with contextlib.suppress(httpx2.HTTPError):
            if (await http.post(COMPLETIONS, json=body)).status_code == 200:
                return time.monotonic() - since_s
        await asyncio.sleep(LOOK_S)
