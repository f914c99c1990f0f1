"""Fuzz a running server beside plain streams: `python -m tests.fuzz --seconds 120`.

The server is to promise short gaps (`itl_target_ms: 50`): without, long prompts are read in larger pieces.
First the streams alone, then the same beside requests from a seed. It fails if any request gets a 5xx, if a
stream fails, if streams have gaps over 100 ms that they do not have alone, or if a slot is still held when
all clients have gone.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from rich.progress import Progress

from tests.fuzz.cases import Case, Cases
from tests.fuzz.watch import LONG_GAP_S, Gap

N_STREAMS = 8
N_SENDERS = 2
ANSWER_TIMEOUT_S = 60.0


async def send(url: str, case: Case) -> int | None:
    """Send one case on a connection of its own and return the status; None: we hung up, or it did."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        path = where.path.rstrip("/") + case.path
        head = [f"{case.method} {path} HTTP/1.1\r\nhost: {where.netloc}\r\nconnection: close\r\n".encode()]
        if case.method == "POST":
            head.append(b"content-length: %d\r\n" % len(case.body))
        head += [b"%b: %b\r\n" % pair for pair in case.headers]
        writer.write(b"".join(head) + b"\r\n")
        start = 0
        for cut in case.segments:
            writer.write(case.body[start:cut])
            start = cut
            await asyncio.sleep(0.01)  # a segment of its own
        if case.hang_up == "in the body" and case.body:
            writer.write(case.body[start : max(start, len(case.body) - 1)])
            await writer.drain()
            return None
        writer.write(case.body[start:])
        await writer.drain()
        if case.hang_up == "after the body":
            await asyncio.sleep(0.02)
            return None
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            words = (await reader.readline()).split()
            while words[1:2] == [b"100"]:  # "go on", and an empty line behind it
                await reader.readline()
                words = (await reader.readline()).split()
            if case.hang_up is None:
                while await reader.read(1 << 16):
                    pass
        return int(words[1]) if len(words) > 1 else None
    except ConnectionError:
        return None  # refused in the middle of a body that nobody wants
    finally:
        writer.close()


async def watch(url: str, seconds: float) -> asyncio.subprocess.Process:
    """Start the process that reads the plain streams."""
    script = str(Path(__file__).with_name("watch.py"))
    return await asyncio.create_subprocess_exec(
        sys.executable, script, url, str(seconds), str(N_STREAMS), stdout=asyncio.subprocess.PIPE
    )


async def seen(process: asyncio.subprocess.Process) -> dict[str, object]:
    """Return what the process saw."""
    out, _ = await process.communicate()
    report: dict[str, object] = json.loads(out)
    return report


async def idle(url: str) -> dict[str, object]:
    """Return the engine's state once nobody holds a slot or waits, at the latest after five seconds."""
    async with httpx2.AsyncClient(base_url=url, timeout=30.0) as http:
        for _ in range(50):
            state: dict[str, object] = (await http.get("/health")).json()["engine"]
            if not state["n_running"] and not state["n_queued"]:
                break
            await asyncio.sleep(0.1)
        return state


async def fuzz(url: str, seconds: float, seed: int, progress: Progress) -> dict[str, Any]:
    """Run both parts and return the report."""
    bar = progress.add_task("streams alone", total=seconds + seconds / 2)
    alone = await watch(url, seconds / 2)
    quiet = asyncio.ensure_future(seen(alone))
    while not quiet.done():
        await asyncio.sleep(0.5)
        progress.advance(bar, 0.5)
    progress.update(bar, description=f"beside requests of seed {seed}")
    beside = asyncio.ensure_future(seen(await watch(url, seconds)))
    until_s = time.monotonic() + seconds
    statuses: collections.Counter[str] = collections.Counter()
    bad: list[str] = []
    sent: list[tuple[float, float, str]] = []
    cases = Cases(seed)

    async def sender() -> None:
        while (left_s := until_s - time.monotonic()) > 0:
            case = next(cases)
            began_s = time.monotonic()
            try:
                status = await send(url, case)
            except TimeoutError:
                status = 0
            statuses[str(status)] += 1
            what = f"{case.name}, {len(case.body)} bytes, hangs up {case.hang_up}: {status}"
            sent.append((began_s, time.monotonic(), what))
            if status is not None and (status >= 500 or status == 0):
                bad.append(f"{status or 'no answer'}: {case.name} {case.headers} {case.body[:200]!r}")
            progress.update(bar, completed=seconds * 1.5 - max(left_s, 0))

    await asyncio.gather(*(sender() for _ in range(N_SENDERS)))
    beside_report = await beside
    return {
        "seed": seed,
        "requests": sum(statuses.values()),
        "statuses": dict(statuses.most_common()),
        "server_errors": bad[:10],
        "long_gaps": gaps_with_company(beside_report["longest"], sent),
        "alone": await quiet,
        "beside": beside_report,
        "engine_after": await idle(url),
    }


def gaps_with_company(gaps: list[Gap], sent: list[tuple[float, float, str]]) -> list[dict[str, Any]]:
    """Return the long gaps, those of several streams at one time once, with what was sent during each."""
    found: dict[float, dict[str, Any]] = {}
    for seconds, end_s in sorted(gaps, reverse=True):
        if seconds > LONG_GAP_S and not any(abs(end_s - other) < LONG_GAP_S for other in found):
            beside = [name for began, ended, name in sent if began < end_s and ended > end_s - seconds]
            found[end_s] = {"seconds": round(seconds, 3), "beside": beside}
    return list(found.values())


def verdict(report: dict[str, Any]) -> list[str]:
    """Return what is wrong, in words."""
    alone, beside, state = report["alone"], report["beside"], report["engine_after"]
    wrong = [f"server error: {text}" for text in report["server_errors"]]
    wrong += [f"a stream failed: {text}" for text in (*alone["failures"], *beside["failures"])]
    longest_s = max((gap for gap, _ in beside["longest"]), default=0.0)
    if beside["n_long"] and longest_s > max((gap for gap, _ in alone["longest"]), default=0.0):
        wrong.append(f"{beside['n_long']} gaps over {LONG_GAP_S} s, the longest {longest_s:.3f} s")
    if state["n_running"] or state["n_queued"]:
        wrong.append(f"slots are held by nobody: {state}")
    return wrong


def main() -> None:
    """Run and exit with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--seconds", type=float, default=120.0, help="of fuzzing; half as long alone before")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        asyncio.run(idle(options.url))
    except httpx2.HTTPError as error:
        hint = 'start one with `make serve ARGS="--set itl_target_ms=50"`, or name one with --url'
        parser.error(f"no server answers at {options.url} ({error}); {hint}")
    with Progress() as progress:
        report = asyncio.run(fuzz(options.url, options.seconds, options.seed, progress))
    print(json.dumps(report, indent=2))
    wrong = verdict(report)
    print("\n".join(wrong) or "Nothing wrong.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
