"""One engine killed with `kill -9` under load: who notices when, and how long a new request waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from itertools import pairwise
from typing import Final

import httpx2

from cobali_ray.errors import ConfigError
from cobali_workloads.load.reply import Exchange, read_reply, timeline_of
from cobali_workloads.load.sender import LoopTimer, Sender
from cobali_workloads.load.target import Job, connect
from cobali_workloads.report.rounds import Figures
from cobali_workloads.servers.processes import descendants, name_of

ENGINE: Final = "ray::ServeReplica:cobali:engine"
"""What Ray calls the engine's process."""
MOMENTS: Final = {
    "stream_s": "the last of the streams goes on",
    "unready_s": "/ready says 503",
    "process_s": "a process is the new engine's",
    "ready_s": "/ready says 200",
    "answer_s": "the request sent at the kill is answered",
}
POLL_S: Final = 0.02
TIMEOUT_S: Final = 120.0
_LONG = Job(prompt="tell me something", n_output=1000)
_SHORT = Job(prompt="tell me something", n_output=1)


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
    target = await asyncio.to_thread(connect, "server", url, endpoint="chat")
    timer = LoopTimer()
    send = Sender(target, timer, ignore_eos=True, timeout_s=TIMEOUT_S)
    starts = [asyncio.Event() for _ in range(n_streams)]
    streams = [asyncio.create_task(send(_LONG, timer.now(), start)) for start in starts]
    for start in starts:
        await start.wait()
    async with httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S) as http:
        killed_s = timer.now()
        os.kill(pid, signal.SIGKILL)
        seen = dict.fromkeys(MOMENTS, float("nan"))

        def note(name: str) -> None:
            seen[name] = timer.now() - killed_s

        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(
                _gone_on(streams, seen, killed_s),
                _answered(send, note),
                _taken(root, pid, note),
                _watched(http, note),
            )
    return seen


async def _gone_on(streams: list[asyncio.Task[Exchange]], seen: dict[str, float], killed_s: float) -> None:
    seen["stream_s"] = max(pause_end_s(exchange) for exchange in await asyncio.gather(*streams)) - killed_s


def pause_end_s(exchange: Exchange) -> float:
    """Return when the longest pause of a stream was over. Raises ConfigError if the stream failed."""
    reply = read_reply(exchange.pieces)
    if not reply.finished or reply.error:
        raise ConfigError("restart", f"a stream failed: {reply.error or exchange.error}")
    arrivals = [at_s for at_s, _ in reply.deltas]
    return max(pairwise(arrivals), key=lambda pair: pair[1] - pair[0])[1]


async def _answered(send: Sender, note: Callable[[str], None]) -> None:
    answer = timeline_of(await send(_SHORT, 0.0))
    if answer.status != "ok":
        raise ConfigError("restart", f"the request sent at the kill was {answer.status}: {answer.error}")
    note("answer_s")


async def _taken(root: int, old: int, note: Callable[[str], None]) -> None:
    while await asyncio.to_thread(engine_pid, root, but=old) is None:  # noqa: ASYNC110 another process
        await asyncio.sleep(POLL_S)
    note("process_s")


async def _watched(http: httpx2.AsyncClient, note: Callable[[str], None]) -> None:
    for name, status in (("unready_s", 503), ("ready_s", 200)):
        while (await http.get("/ready")).status_code != status:  # noqa: ASYNC110 another process
            await asyncio.sleep(POLL_S)
        note(name)
