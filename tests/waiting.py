"""Waiting for what sets no event of ours, such as another process. Only here do tests sleep."""

import asyncio
import inspect
import time
from pathlib import Path

PAUSE_S = 0.01


def _next_pause_s(pause_s, waited_s):
    """Pauses grow: who asks a server without a pause takes the time that it needs to get there."""
    return max(pause_s, min(1.5 * pause_s, 0.1), min(0.05 * waited_s, 0.5))


def wait_until(holds, *, timeout_s=60.0, pause_s=PAUSE_S, so_far=str):
    """Ask again and again until `holds()` is true, and return it; `so_far()` says what there is instead."""
    began = time.monotonic()
    while not (held := holds()):
        waited_s = time.monotonic() - began
        assert waited_s < timeout_s, f"not within {timeout_s} s: {holds} {so_far()}"
        time.sleep(pause_s)
        pause_s = _next_pause_s(pause_s, waited_s)
    return held


async def until(holds, *, timeout_s=60.0, pause_s=PAUSE_S):
    """Do the same on an event loop, where `holds` may be a coroutine function."""
    began = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while True:
            held = holds()
            if inspect.isawaitable(held):
                held = await held
            if held:
                return held
            await asyncio.sleep(pause_s)
            pause_s = _next_pause_s(pause_s, time.monotonic() - began)


def all_read(sock):
    """Say whether the process at the other end, on this machine, has read all that was sent: Linux, IPv4."""
    ours, theirs = (f":{name[1]:04X}" for name in (sock.getsockname(), sock.getpeername()))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if local.endswith(theirs) and remote.endswith(ours):
            return not int(queues.partition(":")[2], 16)
    return True  # or it is closed
