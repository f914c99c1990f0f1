"""`cobali bench delivery`: how late tokens reach clients.

Against a server that was started with `--set log_ticks=ticks.jsonl` and, usually, `--model builtin:scripted`.
Both sides read the machine's monotonic clock, so the lag of a token is the time from when it was sampled to
the client's socket callback. Streams start one after another, each after the first token of the one before;
so the ticks in which one more row was sampled than decoded name, in order, the tick of each stream's first
token, and one token follows per tick. Only ticks in which all streams run count.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import numpy as np
import orjson
import typer

from cobali_ray.command_line import DEFAULT_URL, Key, Url, address_of
from cobali_ray.errors import ConfigError
from cobali_workloads.commands.options import OUT, Out, numbers, spell
from cobali_workloads.load.reply import Exchange, read_reply
from cobali_workloads.load.sender import LoopTimer, Sender
from cobali_workloads.load.target import Job, Target, connect
from cobali_workloads.report import plots
from cobali_workloads.report.report import Report, Table, deliver

TIMEOUT_S = 600.0


def delivery(
    ticks: Annotated[Path, typer.Option(help="The server's tick log (setting log_ticks).")],
    url: Url = DEFAULT_URL,
    key: Key = None,
    streams: Annotated[str, typer.Option(help="Streams at once.")] = "1,8,32,128",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long all streams run together.")] = 8.0,
    tick_s: Annotated[float, typer.Option(min=0.001, help="Seconds per tick of the model.")] = 0.02,
    out: Out = OUT,
) -> None:
    """Measure the time from when a token was sampled to its arrival at a client."""
    sizes = numbers("--streams", streams)
    if not ticks.is_file():
        raise ConfigError("--ticks", f"there is no file {ticks}")
    target = connect("server", address_of(url), endpoint="chat", api_key=key)
    columns = ("streams", "tok/s offered", "tok/s arrived", "p50", "p90", "p99", "max")
    table = Table(f"Delivery lag, ms, tick {1e3 * tick_s:g} ms", columns)
    samples: dict[str, list[float]] = {}
    for n in sizes:
        n_tokens = int((seconds + n * 3 * tick_s) / tick_s)
        before = len(ticks.read_bytes().splitlines())
        arrivals = asyncio.run(run(target, n, n_tokens))
        log = [orjson.loads(line) for line in ticks.read_bytes().splitlines()[before:]]
        late, rate = lags(log, arrivals)
        shares = [f"{1e3 * value:.1f}" for value in np.quantile(late, [0.5, 0.9, 0.99, 1.0])]
        table.rows.append((str(n), f"{n / tick_s:.0f}", f"{rate:.0f}", *shares))
        samples[f"{n} streams"] = [1e3 * value for value in late.tolist()]
    report = Report(
        name="delivery",
        title="How late tokens reach clients",
        command=spell("delivery", ticks=ticks, url=url, streams=streams, seconds=seconds, tick_s=tick_s),
        config={"tick_s": tick_s, "seconds": seconds},
        tables=[table],
        samples={"lags_ms": samples},
        figures={"lags": plots.shares("Delivery lag", "ms", samples)},
    )
    deliver(report, out)


async def run(target: Target, n_streams: int, n_tokens: int) -> list[list[float]]:
    """Start the streams one after another; return each one's token arrival times."""
    timer = LoopTimer()
    send = Sender(target, timer, ignore_eos=True, timeout_s=TIMEOUT_S)
    running: list[asyncio.Task[Exchange]] = []
    for _ in range(n_streams):
        said = asyncio.Event()
        job = Job(prompt="tick", n_output=n_tokens)
        running.append(asyncio.create_task(send(job, timer.now(), said)))
        await said.wait()
    replies = [read_reply(exchange.pieces) for exchange in await asyncio.gather(*running)]
    if wrong := [reply.error for reply in replies if reply.error]:
        raise ConfigError("--url", f"a stream failed: {wrong[0]}")
    return [[at for at, text in reply.deltas for _ in text] for reply in replies]  # a character is a token


def lags(ticks: list[dict[str, float]], arrivals: list[list[float]]) -> tuple[np.ndarray, float]:
    """Return the lag of every token while all streams ran, in seconds, and tokens arriving per second."""
    sampled = np.array([t["started_s"] + t["plan_s"] + t["forward_s"] + t["sample_s"] for t in ticks])
    firsts = [i for i, t in enumerate(ticks) if t["n_sampled"] - t["n_decode"] == 1]
    if len(firsts) != len(arrivals):
        raise ConfigError(
            "--ticks", f"{len(arrivals)} streams, but {len(firsts)} first tokens in the tick log"
        )
    all_run = firsts[-1]
    last_run = min(first + len(a) for first, a in zip(firsts, arrivals, strict=True)) - 1
    last_run = min(last_run, len(ticks) - 1)  # the last ones may not be in the log yet
    late, n_window = [], 0
    start, end = sampled[all_run], sampled[last_run]
    for first, times in zip(firsts, arrivals, strict=True):
        window = np.array(times[all_run - first : last_run - first])
        late.append(window - sampled[all_run:last_run])
        n_window += int(((window >= start) & (window < end)).sum())
    return np.concatenate(late), n_window / float(end - start)
