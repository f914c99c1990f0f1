"""`cobali bench tenants`: what one tenant or class notices of another that floods the server."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer

from cobali_workloads.commands.options import OUT, Out, Quick, spell
from cobali_workloads.inside.tenants import TenantLoad, TenantRun, run
from cobali_workloads.report.report import Report, Table, deliver, ms

QUICK_S = 60.0
NOTE = (
    "Simulated engines, scheduler, router and door the product's: a tick takes 15 ms, 0.3 ms for every "
    "stream and 0.25 ms for every prompt token; 16 slots, prompts of 100 to 1,500 tokens, answers of 50 to "
    "200: 2.6 requests a second and engine at most. Served: prompt tokens computed and output tokens twice, "
    "while the load lasted. Nothing here depends on the machine."
)
CALM = TenantLoad("calm", 0.3, "a")
HALF, BETTER, WORSE = (
    CALM._replace(rps=0.6),
    CALM._replace(rps=0.5),
    TenantLoad("flood", 4.7, "a", priority=5),
)
LOADS: dict[str, tuple[TenantLoad, ...]] = {
    "a quarter of its share, alone": (CALM,),
    "beside a flood of the same tenant": (CALM, TenantLoad("flood", 10.0, "a")),
    "beside a flood of another tenant": (CALM, TenantLoad("flood", 10.0, "b")),
    "half of its share, alone": (HALF,),
    "half, beside a flood of another tenant": (HALF, TenantLoad("flood", 10.0, "b")),
    "two floods": (CALM._replace(rps=10.0), TenantLoad("flood", 10.0, "b")),
    "two floods, weights 3 and 1": (CALM._replace(rps=10.0, weight=3.0), TenantLoad("flood", 10.0, "b")),
    "a better class, alone": (BETTER,),
    "beside a worse class, together twice the server": (BETTER, WORSE),
}


def tenants(
    seconds: Annotated[float, typer.Option(min=10, help="Seconds of each load.")] = 600,
    seed: Annotated[int, typer.Option(help="Seed of the loads.")] = 0,
    engines: Annotated[
        int, typer.Option(min=1, help="Number of engines; each load is multiplied by it.")
    ] = 1,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Flood engines from one tenant or class and measure how others fare; a virtual clock, no model."""
    length_s = QUICK_S if quick else seconds
    table = Table(
        f"Beside each other for {length_s:g} s" + (f" on {engines} engines" if engines > 1 else ""),
        ["load", "who", "asked", "finished", "preempted", "TTFT p50 ms", "p99 ms", "p99 / alone", "served"],
    )
    samples, alone_s = dict[str, dict[str, dict[str, float]]](), 0.0
    for name, loads in LOADS.items():
        played = run(loads, length_s, seed, engines)
        by_load = samples[name] = {load.name: figures(played, load.name) for load in loads}
        if len(loads) == 1:
            alone_s = by_load[CALM.name]["ttft_p99_s"]
        for who, outcome in by_load.items():
            ratio = f"{outcome['ttft_p99_s'] / alone_s:.2f}" if who == CALM.name else "-"
            table.rows.append((
                name, who, *(f"{outcome[key]:.0f}" for key in ("asked", "finished", "preempted")),
                ms(outcome["ttft_p50_s"]), ms(outcome["ttft_p99_s"]), ratio, f"{outcome['share']:.1%}",
            ))  # fmt: skip
    report = Report(
        name="tenants",
        title="Tenants and classes beside each other",
        command=spell("tenants", seconds=None if quick else seconds, seed=seed, engines=engines, quick=quick),
        config={"seed": seed, "seconds": length_s, "engines": engines},
        tables=[table],
        samples=samples,
        notes=[NOTE],
    )
    deliver(report, out)


def figures(played: TenantRun, load: str) -> dict[str, float]:
    """Return what became of one load, in numbers; `share` is of all that was served."""
    stories, served = played.of(load), played.served()
    ends = [story.end for story in stories if story.end]
    ttft_s = [story.tokens_s[0] - story.sent_s for story in stories if story.tokens_s]
    return {
        "asked": len(stories),
        "finished": sum(end.error is None for end in ends),
        "preempted": sum(end.stats.n_preempted for end in ends),
        "ttft_p50_s": float(np.quantile(ttft_s, 0.5)),
        "ttft_p99_s": float(np.quantile(ttft_s, 0.99)),
        "served": served[load],
        "share": served[load] / served.total(),
    }
