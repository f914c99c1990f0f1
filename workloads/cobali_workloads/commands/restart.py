"""`cobali bench restart`: kill the engine again and again, and say what a restart takes."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import track

from cobali_ray.signals import ended_in_order
from cobali_workloads.commands.options import OUT, Model, Out, check_model, spell
from cobali_workloads.report.report import Report, Table, deliver
from cobali_workloads.report.rounds import Figures
from cobali_workloads.servers.process import cobali_server
from cobali_workloads.servers.restart import MOMENTS, kill


def restart(
    model: Model = "builtin:tiny",
    kills: Annotated[int, typer.Option(min=1, help="How often the engine is killed.")] = 8,
    pause: Annotated[float, typer.Option(min=0, help="Seconds from an answer to the next kill.")] = 12.0,
    streams: Annotated[int, typer.Option(min=1, help="Streams running when the engine is killed.")] = 4,
    out: Out = OUT,
) -> None:
    """Start a server, kill its engine (kill -9) under streams, and time everything until it answers again."""
    check_model(model)
    found: list[Figures] = []
    values = {"model": model, "log_level": "warning"}
    with (
        tempfile.TemporaryDirectory() as folder,
        ended_in_order(),
        cobali_server(values, Path(folder), os.environ) as server,
    ):
        for _ in track(range(kills), description="kills"):
            time.sleep(pause)
            found.append(asyncio.run(kill(server.url, server.pid, n_streams=streams)))
    command = spell("restart", model=model, kills=kills, pause=pause, streams=streams)
    deliver(_report(command, found), out)


def _report(command: str, found: list[Figures]) -> Report:
    table = Table("Seconds after the kill", ["when", "p50", "p90", "least", "most"])
    for name, text in MOMENTS.items():
        values = np.array([one[name] for one in found])
        p50, p90 = np.quantile(values, [0.5, 0.9])
        table.rows.append((text, *(f"{v:.2f}" for v in (p50, p90, values.min(), values.max()))))
    return Report(
        name="restart",
        title="The engine killed and replaced",
        command=command,
        config={"n_kills": len(found)},
        tables=[table],
        samples={name: [one[name] for one in found] for name in MOMENTS},
    )
