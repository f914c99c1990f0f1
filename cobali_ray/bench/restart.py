"""One engine killed with `kill -9` under load: who notices when, and how long a new request waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import httpx2

from cobali_ray.bench.footprint import descendants, name_of
from cobali_ray.bench.rounds import Figures
from cobali_ray.errors import ConfigError

ENGINE: Final = "ray::ServeReplica:cobali:engine"
"""What Ray calls the engine's process."""
MOMENTS: Final = {
    "stream_s": "the streams' clients are told",
    "unready_s": "/ready says 503",
    "process_s": "a process is the new engine's",
    "ready_s": "/ready says 200",
    "answer_s": "the request sent at the kill is answered",
}
LOOK_S: Final = 0.02
TIMEOUT_S: Final = 120.0
CHAT: Final = "/v1/chat/completions"
_SAY = [{"role": "user", "content": "tell me something"}]
_LONG = {"messages": _SAY, "stream": True, "max_tokens": 3000, "ignore_eos": True}


def engine_pid(root: int, *, but: int = 0) -> int | None:
    """Return the engine's process below `root`, other than `but`; None where there is none."""
    for pid in descendants(root):
        with contextlib.suppress(OSError):
            if pid != but and name_of(pid).startswith(ENGINE):
                return pid
    return None


async def kill(url: str, root: int, *, n_streams: int) -> Figures:
    """Kill the engine beneath `root` while it streams, and return the MOMENTS after it in seconds."""
    pid = engine_pid(root)
    if pid is None:
        raise ConfigError("restart", f"no engine runs below process {root}")
    async with (
        httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S) as http,
        contextlib.AsyncExitStack() as open_,
    ):
        streams = [await open_.enter_async_context(_stream(http)) for _ in range(n_streams)]
        killed_s = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        seen = dict.fromkeys(MOMENTS, float("nan"))

        def note(name: str) -> None:
            seen[name] = time.perf_counter() - killed_s

        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(
                _told(streams, note), _answered(http, note), _taken(root, pid, note), _watched(http, note)
            )
    return seen


@contextlib.asynccontextmanager
async def _stream(http: httpx2.AsyncClient) -> AsyncIterator[AsyncIterator[str]]:
    async with http.stream("POST", CHAT, json=_LONG) as response:
        response.raise_for_status()
        lines = response.aiter_lines()
        await anext(lines)
        yield lines


async def _told(streams: list[AsyncIterator[str]], note: Callable[[str], None]) -> None:
    for lines in streams:
        async for _ in lines:
            pass
    note("stream_s")


async def _answered(http: httpx2.AsyncClient, note: Callable[[str], None]) -> None:
    answer = await http.post(CHAT, json={"messages": _SAY, "max_tokens": 1})
    answer.raise_for_status()
    note("answer_s")


async def _taken(root: int, old: int, note: Callable[[str], None]) -> None:
    while await asyncio.to_thread(engine_pid, root, but=old) is None:  # noqa: ASYNC110 another process
        await asyncio.sleep(LOOK_S)
    note("process_s")


async def _watched(http: httpx2.AsyncClient, note: Callable[[str], None]) -> None:
    for name, status in (("unready_s", 503), ("ready_s", 200)):
        while (await http.get("/ready")).status_code != status:  # noqa: ASYNC110 another process
            await asyncio.sleep(LOOK_S)
        note(name)
