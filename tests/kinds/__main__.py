"""Eight plain streams beside forty clients of all kinds: `python -m tests.kinds` says what gaps they have.

In turn, round by round: the streams alone, beside forty plain chats of about the same prompts and answers,
and beside forty of all kinds; all forty ask once, at the same moment. Prompts beside streams make gaps
longer, up to the ITL target, whatever API they come by; so the plain chats say what the kinds themselves
cost. It fails if an answer is not whole, if a stream fails, if anything is held when all have gone, or if
the kinds cost more than 1.2 times what plain chats do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from cobali_ray.signals import ended_in_order
from cobali_workloads.report.report import Table, with_range
from cobali_workloads.report.rounds import Figures, run_rounds
from cobali_workloads.servers.process import cobali_server
from tests.chaos.crowd import ghosts
from tests.fuzz import watch
from tests.kinds.clients import KINDS, Site, crowd, site
from tests.waiting import until

N_STREAMS, N_CLIENTS = 8, 40
MOST = 1.2
ALONE, PLAIN, MIXED = "alone", "beside plain chats", "beside all kinds"
COUNTS = ("n_prompt", "n_output")
STREAMING = 'cobali_slots{.*state="generating"'

Wave = Callable[[Site], Awaitable[list[str]]]


_ASKED = count()


async def chats(at: Site) -> list[str]:
    """Let as many plain chats begin at once as `crowd` has clients, each of the size of one of those."""
    kinds = list(KINDS.values())

    async def ask(kind: Any, number: int) -> None:
        await at.openai.chat.completions.create(
            model=at.talks,
            messages=[{"role": "user", "content": f"{number} " + "moon " * kind.n_prompt}],
            max_tokens=kind.n_output,
            extra_body={"ignore_eos": True},
        )

    asks = (ask(kinds[i % len(kinds)], next(_ASKED)) for i in range(N_CLIENTS))
    return [repr(found) for found in await asyncio.gather(*asks, return_exceptions=True) if found]


async def first(url: str) -> list[str]:
    """Have each kind ask once, because what clients load and build for their first request takes seconds."""
    async with site(url) as at:
        return await crowd(at, len(KINDS))


async def measure(url: str, wave: Wave | None, seconds: float, wrong: list[str]) -> Figures:
    """Watch the streams for a while, and let a wave of clients come; return the gaps and the work."""
    script = str(Path(watch.__file__))
    async with site(url) as at:
        command = (sys.executable, script, url, str(seconds), str(N_STREAMS), at.talks)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        watched = asyncio.ensure_future(process.communicate())

        async def begun() -> bool:
            return watched.done() or await count_of(at, STREAMING) >= N_STREAMS

        await until(begun)
        before, began_s = await work(at), time.monotonic()
        if wave is not None:
            wrong += await wave(at)
        took_s = time.monotonic() - began_s
        n_prompt, n_output = (b - a for a, b in zip(before, await work(at), strict=True))
        out, _ = await watched
    seen = json.loads(out)
    wrong += [f"a stream failed: {text}" for text in seen["failures"]] + await ghosts(url)
    return {
        "p50_s": seen["p50_s"], "p99_s": seen["p99_s"], "longest_s": seen["longest"][-1][0],
        "took_s": took_s, "n_prompt": n_prompt, "n_output": n_output,
    }  # fmt: skip


async def work(at: Site) -> tuple[float, float]:
    """Return how many tokens the server has read of prompts and texts, and how many it has written."""
    kinds = ("prompt", "embedded", "output")
    n_prompt, n_embedded, n_output = [await count_of(at, f"cobali_{kind}_tokens_total") for kind in kinds]
    return n_prompt + n_embedded, n_output


async def count_of(at: Site, name: str) -> float:
    """Return a metric, of all engines together."""
    lines = (await at.http.get("/metrics")).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(name, line))


def compare(url: str, n_rounds: int, seconds: float) -> list[str]:
    """Run all, print what was seen, and return what is wrong, in words."""
    wrong = asyncio.run(first(url))

    def run(wave: Wave | None) -> Figures:
        return asyncio.run(measure(url, wave, seconds, wrong))

    waves = {ALONE: None, PLAIN: chats, MIXED: partial(crowd, n_clients=N_CLIENTS)}
    found = run_rounds(
        {name: partial(run, wave) for name, wave in waves.items()}, n_rounds=n_rounds, in_process=False
    )
    gaps = {"p50_s": "ITL p50, ms", "p99_s": "ITL p99, ms", "longest_s": "longest, ms"}
    table = Table(
        f"Gaps of {N_STREAMS} streams",
        ("streams", *gaps.values(), "all answered, s", "prompt tokens", "output tokens"),
    )
    for name in waves:
        times = [with_range([1e3 * s for s in found.values(name, figure)], "") for figure in gaps]
        told = (f"{found.median(name, 'took_s'):.1f}", *(f"{found.median(name, n):.0f}" for n in COUNTS))
        table.rows.append((name, *times, *told))
    ratios = Table("Ratios, within each round", ("", "p50", "p99"))
    for name, other in ((PLAIN, ALONE), (MIXED, ALONE), (MIXED, PLAIN)):
        both = (with_range(found.ratios(name, other, figure)) for figure in ("p50_s", "p99_s"))
        ratios.rows.append((f"{name} / {other}", *both))
    print(table.markdown(), ratios.markdown(), *found.notes(), sep="\n\n")
    ratio = median(found.ratios(MIXED, PLAIN, "p99_s"))
    return wrong + ([f"kinds cost {ratio:.2f} times what plain chats do"] if ratio > MOST else [])


def main() -> None:
    """Run and exit with 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", help="a running server, in place of one of its own")
    parser.add_argument("--model", default="builtin:tiny", help="of the server of its own")
    parser.add_argument("--itl-target-ms", default="auto", help="of the server of its own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each part of a round")
    options = parser.parse_args()
    if options.url:
        wrong = compare(options.url, options.rounds, options.seconds)
    else:
        values = {
            "model": options.model, "n_slots": 2 * N_STREAMS, "n_ctx": 4096, "pooling": "last",
            "itl_target_ms": options.itl_target_ms, "log_level": "warning",
        }  # fmt: skip
        with (
            tempfile.TemporaryDirectory() as folder,
            ended_in_order(),
            cobali_server(values, Path(folder), os.environ) as server,
        ):
            wrong = compare(server.url, options.rounds, options.seconds)
    print("\n".join(wrong[:20]) or "Nothing wrong.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
