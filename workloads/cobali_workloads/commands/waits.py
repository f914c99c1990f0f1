"""`cobali bench waits`: how far the waits that are forecast to queued requests are from the real ones."""

from __future__ import annotations

from itertools import product
from typing import Annotated

import numpy as np
import typer

from cobali_workloads.commands.options import OUT, Out, Quick, spell
from cobali_workloads.inside.waits import (
    ENGINES,
    LENGTHS,
    KnownLengths,
    Wait,
    asks,
    best_wait,
    capacity_rps,
    play,
)
from cobali_workloads.report.report import Report, Table, deliver, ms

LOADS = (0.6, 0.9)
QUICK_REQUESTS = 200
NOTE = (
    "Simulated engines, scheduler, door and forecast the product's: a tick takes 15 ms, 0.3 ms for every "
    "stream and 0.25 ms for every prompt token, or what the 0.5B shape in Q8_0 took on two cores; 16 slots, "
    "prompts of 100 to 1,500 tokens, Poisson arrivals. "
    "Each request that waits is told once, at the end of the tick in which it came; the error is what the "
    "told wait is off by, as a share of the real one. Lengths known: that of the best forecast, which knows "
    "how answers' lengths are spread and what each running one has said so far, and tells of each wait what "
    "makes the median error least. By the rate: those ahead and itself, by the rate at which the "
    "queue drains. Nothing here depends on the machine."
)


def waits(
    requests: Annotated[int, typer.Option(min=50, help="Requests of each load.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the loads.")] = 0,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Compare the waits that requests in a queue are told with the real ones; a virtual clock, no model."""
    n = QUICK_REQUESTS if quick else requests
    table = Table(
        f"Loads of {n} requests",
        [
            "engine",
            "answers",
            "load",
            "waited",
            "median wait ms",
            "median error",
            "lengths known",
            "error p90",
            "by the rate",
            "median ms off",
        ],
    )
    samples = dict[str, dict[str, float]]()
    for (name, times), lengths in product(ENGINES.items(), LENGTHS):
        most_rps = capacity_rps(lengths, seed, times)
        for load in LOADS:
            played, _ = play(
                asks(lengths, load * most_rps, n, seed + 1), seed + 1, times, KnownLengths(lengths, seed)
            )
            outcome = samples[f"{name}, {lengths}, {load}"] = figures(played)
            shares = [f"{outcome[key]:.0%}" for key in ("error_p50", "known_p50", "error_p90", "by_rate_p50")]
            waited = [f"{outcome['waited']:.0f}", ms(outcome["real_p50_s"])]
            table.rows.append((name, lengths, f"{load:g}", *waited, *shares, ms(outcome["off_p50_s"])))
    report = Report(
        name="waits",
        title="Waits as they are told and as they are",
        command=spell("waits", requests=None if quick else requests, seed=seed, quick=quick),
        config={"seed": seed, "requests": n},
        tables=[table],
        samples=samples,
        notes=[NOTE],
    )
    deliver(report, out)


def figures(played: list[Wait]) -> dict[str, float]:
    """Return how far the forecast waits of a load are from the real ones, in numbers; NaN where none was."""
    forecasts = [(wait.forecast_s, wait) for wait in played if wait.forecast_s is not None]
    by_rate = [error for wait in played if (error := wait.error(wait.by_rate_s)) is not None]
    with_games = [wait for wait in played if wait.games_s]
    best = zip(with_games, best_wait(with_games), strict=True)
    errors = [wait.error(forecast_s) or 0.0 for forecast_s, wait in forecasts]
    return {
        "waited": len(played),
        "real_p50_s": _quantile([wait.real_s for wait in played], 0.5),
        "error_p50": _quantile(errors, 0.5),
        "known_p50": _quantile([wait.error(at_s) or 0.0 for wait, at_s in best], 0.5),
        "error_p90": _quantile(errors, 0.9),
        "by_rate_p50": _quantile(by_rate, 0.5),
        "off_p50_s": _quantile([abs(forecast_s - wait.real_s) for forecast_s, wait in forecasts], 0.5),
    }


def _quantile(values: list[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else float("nan")
