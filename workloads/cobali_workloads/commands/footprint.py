"""`cobali bench footprint`: memory and idle CPU of a running server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Annotated

import typer

from cobali_ray.errors import ConfigError
from cobali_workloads.commands.options import OUT, Out, spell
from cobali_workloads.report.report import Report, Table, deliver
from cobali_workloads.servers.processes import cpu_s, descendants, memory_mb, name_of

NOTE = "RSS counts shared pages in every process, PSS divides them."


def footprint(
    pid: Annotated[int, typer.Argument(help="Process id of cobali serve.")],
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to watch the CPU.")] = 10.0,
    out: Out = OUT,
) -> None:
    """Add up memory and CPU of a process and its descendants."""
    before = {process: cpu_s(process) for process in descendants(pid)}
    if not _seen(before):
        raise ConfigError("PID", f"there is no process {pid} to look at")
    time.sleep(seconds)
    rows: list[tuple[str, float, float, float]] = []
    for process, used_s in before.items():
        try:
            rows.append((name_of(process), *memory_mb(process), 100 * (cpu_s(process) - used_s) / seconds))
        except (OSError, KeyError):
            continue  # it ended, or may not be read
    if not rows:
        raise ConfigError("PID", f"process {pid} ended meanwhile")
    rows.append(("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])))
    table = Table(
        f"Everything below process {pid}, CPU over {seconds:g} s",
        ("process", "RSS MB", "PSS MB", "CPU %"),
        [(name, *(f"{value:.1f}" for value in values)) for name, *values in rows],
        note=NOTE,
    )
    report = Report(
        name="footprint", title="Memory and idle CPU", command=f"{spell('footprint', seconds=seconds)} {pid}",
        config={"seconds": seconds}, tables=[table], samples={"processes": rows},
    )  # fmt: skip
    deliver(report, out)


def _seen(pids: Iterable[int]) -> bool:
    """Say whether any of these processes is there and may be read."""
    for pid in pids:
        with contextlib.suppress(OSError, KeyError):
            memory_mb(pid)
            return True
    return False
