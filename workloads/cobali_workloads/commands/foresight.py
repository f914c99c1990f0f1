"""`cobali bench foresight`: how close the simulator comes to what an engine in process really takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Annotated

import typer

from cobali_ray.engine.opening import model_path, open_backend
from cobali_ray.settings import read_settings
from cobali_workloads.commands.options import DEFAULT_MODEL, OUT, Model, Out, check_model, spell
from cobali_workloads.inside.foresight import Bench, foresee
from cobali_workloads.report.plots import shares
from cobali_workloads.report.report import Report, Table, deliver, ms
from cobali_workloads.simulate.ticks import write_times

BAR = 0.1
NOTE = (
    "Each figure is of the compared runs; beside it, how far the simulation is from it, and how far the runs "
    "whose ticks were fitted are: nothing foresees better than another run of the same. No HTTP is in it."
)


def foresight(
    model: Model = DEFAULT_MODEL,
    n_requests: Annotated[int, typer.Option("--requests", min=16, help="Requests per load.")] = 120,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each load to fit, and as many to compare.")] = 3,
    n_slots: Annotated[int, typer.Option(min=1)] = 16,
    n_ctx: Annotated[int, typer.Option(min=1024)] = 1024,
    n_threads: Annotated[int | None, typer.Option(min=1)] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Out = OUT,
) -> None:
    """Measure three loads in process, simulate them from other runs' ticks, and compare the latencies."""
    check_model(model)
    settings = read_settings({"model": model, "n_slots": n_slots, "n_ctx": n_ctx, "n_threads": n_threads})
    backend = open_backend(settings, model_path(settings))
    try:
        result = foresee(Bench(backend, settings), n_requests=n_requests, n_rounds=rounds, seed=seed)
    finally:
        backend.close()
    simulated, again = result.errors(result.simulated), result.errors(result.fitted)
    rows: list[Sequence[str]] = [
        (load, name, ms(value), f"{simulated[load][name]:+.1%}", f"{again[load][name]:+.1%}")
        for load, latencies in result.compared.items()
        for name, value in latencies.figures().items()
    ]
    middle = {name: typical(errors) for name, errors in (("simulated", simulated), ("measured again", again))}
    report = Report(
        name="foresight",
        title="Simulated beside measured",
        command=spell(
            "foresight", model=model, requests=n_requests, rounds=rounds, n_slots=n_slots, n_ctx=n_ctx,
            n_threads=n_threads, seed=seed,
        ),
        config={"model": model, "times": asdict(result.times)},
        tables=[
            Table(
                "Errors", ["load", "figure", "measured ms", "simulated", "measured again"], rows, note=NOTE,
            ),
            Table(
                "Median error", ["bar", "simulated", "measured again"],
                [(f"{BAR:.0%}", f"{middle['simulated']:.1%}", f"{middle['measured again']:.1%}")],
            ),
        ],
        samples={"simulated": simulated, "measured again": again},
        figures={
            load.replace(" ", "-"): shares(
                f"{load}: TTFT", "seconds",
                {"measured": result.compared[load].ttft_s, "simulated": result.simulated[load].ttft_s},
                log=True,
            )
            for load in result.compared
        },
    )  # fmt: skip
    deliver(report, out)
    write_times(result.times, out / "model-time.json")


def typical(errors: dict[str, dict[str, float]]) -> float:
    """Return the median of all errors, whatever their sign."""
    return median([abs(error) for by_figure in errors.values() for error in by_figure.values()])
