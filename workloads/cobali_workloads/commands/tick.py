"""`cobali bench tick`: host time of one tick outside forward pass and sampling."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

from cobali_workloads.commands.options import OUT, NRounds, Out, numbers, spell
from cobali_workloads.inside.tick import HostTime, measure
from cobali_workloads.report.report import Report, Table, deliver
from cobali_workloads.report.rounds import run_rounds

TARGET_S = {16: 0.1e-3, 128: 0.3e-3}


def tick(
    slots: Annotated[str, typer.Option(help="Slots, all of them generating.")] = "1,16,32,64,128,256",
    ticks: Annotated[int, typer.Option(min=2, help="Ticks of one run.")] = 2000,
    rounds: NRounds = 1,
    out: Out = OUT,
) -> None:
    """Measure what the host does per tick: planning, publishing, records; the model is scripted."""
    command = spell("tick", slots=slots, ticks=ticks, rounds=rounds)
    sizes = numbers("--slots", slots)
    measured = run_rounds(
        {str(n): lambda n=n: _figures(measure(n, ticks)) for n in sizes},  # type: ignore[misc]
        n_rounds=rounds,
        n_warmup=0,
    )
    names = ("plan p50", "publish p50", "rest p50", "all p50", "all p99")
    table = Table("Host time per tick outside forward and sampling, ms", ["slots", *names, "target"])
    for n in sizes:
        cells = (f"{1e3 * measured.median(str(n), name):.3f}" for name in names)
        table.rows.append((str(n), *cells, f"{1e3 * TARGET_S[n]:.1f}" if n in TARGET_S else "-"))
    report = Report(
        name="tick", title="Host time per tick", command=command, config={"ticks": ticks}, tables=[table],
        samples=measured.as_json(), notes=measured.notes(),
    )  # fmt: skip
    deliver(report, out)


def _figures(time: HostTime) -> dict[str, float]:
    parts = {"plan": time.plan_s, "publish": time.publish_s, "rest": time.rest_s, "all": time.total_s}
    medians = {f"{name} p50": float(np.median(part)) for name, part in parts.items()}
    return medians | {"all p99": float(np.quantile(time.total_s, 0.99))}
