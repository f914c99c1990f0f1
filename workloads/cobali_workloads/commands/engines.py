"""`cobali bench engines`: how throughput grows with the engines, and what a token then costs the ingress.

The model only pretends and sleeps its ticks away, so that few cores have room for many engines: what is left
is the way of a token through engine, wire, ingress and front end. The streams fill all slots, no more.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Annotated, Final

import typer
from rich.progress import track

from cobali_ray.engine.opening import SCRIPTED
from cobali_ray.errors import ConfigError
from cobali_ray.signals import ended_in_order
from cobali_workloads.commands.options import OUT, Out, numbers, spell
from cobali_workloads.load.reply import timeline_of
from cobali_workloads.load.sender import LoopTimer, Sender, closed_loop
from cobali_workloads.load.target import Job, connect
from cobali_workloads.report.report import Report, Table, deliver
from cobali_workloads.report.rounds import Figures
from cobali_workloads.servers.process import cobali_server
from cobali_workloads.servers.processes import INGRESS, cpu_s, pids_of

TIMEOUT_S: Final = 600.0


def engines(
    count: Annotated[str, typer.Option(help="Numbers of engines of one model; each gets a server.")] = "1,4",
    slots: Annotated[int, typer.Option(min=1, help="Slots per engine, and streams sent to each.")] = 4,
    tick_s: Annotated[float, typer.Option(min=0.001, help="Seconds per tick of the model.")] = 0.02,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 400,
    rounds: Annotated[int, typer.Option(min=1, help="How often all streams are sent.")] = 5,
    out: Out = OUT,
) -> None:
    """Compare servers with few and many engines that sleep: tokens per second, and CPU time per token."""
    sizes = numbers("--count", count)
    by_size: dict[int, list[Figures]] = {}
    for n in sizes:
        values = {
            "model": f"{SCRIPTED}:{tick_s}", "replicas": n, "n_slots": slots, "log_level": "warning",
        }  # fmt: skip
        with (
            tempfile.TemporaryDirectory() as folder,
            ended_in_order(),
            cobali_server(values, Path(folder), os.environ) as server,
        ):
            asyncio.run(_round(server.url, server.pid, n_streams=n * slots, n_tokens=20))
            by_size[n] = [
                asyncio.run(_round(server.url, server.pid, n_streams=n * slots, n_tokens=tokens))
                for _ in track(range(rounds), description=f"{n} engines")
            ]
    command = spell("engines", count=count, slots=slots, tick_s=tick_s, tokens=tokens, rounds=rounds)
    deliver(report_of(command, by_size, offered={n: n * slots / tick_s for n in sizes}), out)


async def _round(url: str, root: int, *, n_streams: int, n_tokens: int) -> Figures:
    """Send all streams at once; return tokens per second, and microseconds of processor time per token."""
    target = await asyncio.to_thread(connect, "server", url, endpoint="chat")
    timer = LoopTimer()
    send = Sender(target, timer, ignore_eos=True, timeout_s=TIMEOUT_S)
    jobs = [[Job(prompt=f"stream {i}", n_output=n_tokens)] for i in range(n_streams)]
    watched = pids_of(root, INGRESS)
    before_s = sum(map(cpu_s, watched))
    timelines = [timeline_of(exchange) for exchange in await closed_loop(send, jobs, timer)]
    used_s = sum(map(cpu_s, watched)) - before_s
    if wrong := [timeline.error or timeline.status for timeline in timelines if timeline.status != "ok"]:
        raise ConfigError("engines", f"a stream failed: {wrong[0]}")
    n_output = sum(timeline.n_output for timeline in timelines)
    seconds = max(timeline.ended_s for timeline in timelines) - min(timeline.sent_s for timeline in timelines)
    return {"tokens_per_s": n_output / seconds, "ingress_us": 1e6 * used_s / n_output}


def report_of(command: str, by_size: dict[int, list[Figures]], *, offered: dict[int, float]) -> Report:
    """Compare everything with the smallest number of engines."""
    columns = ["engines", "tok/s offered", "tok/s", "of the least", "ingress, µs per token"]
    table = Table("Medians of the rounds", columns)
    rates = {n: median(figures["tokens_per_s"] for figures in rounds) for n, rounds in by_size.items()}
    for n, rounds in by_size.items():
        cost_us = median(figures["ingress_us"] for figures in rounds)
        ratio = rates[n] / rates[min(rates)]
        table.rows.append((str(n), f"{offered[n]:.0f}", f"{rates[n]:.0f}", f"{ratio:.2f}", f"{cost_us:.0f}"))
    return Report(
        name="engines",
        title="Several engines behind one ingress",
        command=command,
        config={},
        tables=[table],
        samples={
            f"{n} engines, {name}": [figures[name] for figures in rounds]
            for n, rounds in by_size.items()
            for name in ("tokens_per_s", "ingress_us")
        },
    )
