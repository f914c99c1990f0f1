"""`cobali bench batch`: what live clients notice of a batch, and what a batch gains by its order."""

from __future__ import annotations

from itertools import product
from statistics import fmean
from typing import Annotated

import numpy as np
import typer

from cobali_workloads.commands.options import OUT, Out, Quick, spell
from cobali_workloads.inside.batch import (
    LOADS,
    N_BEGINNING,
    N_BEGINNINGS,
    N_CLIENTS,
    LiveRun,
    answer_file,
    beside,
    shared_lines,
    typical_lines,
)
from cobali_workloads.inside.devices import DEVICES
from cobali_workloads.report.report import Report, Table, deliver, ms

DEVICE_NAMES = ("0.5b-q8_0", "rtx4090")
QUICK_LINES, QUICK_LIVE = 60, 8
RATIOS = ("ttft_p50_s", "ttft_mean_s", "ttft_p99_s", "itl_p50_s", "itl_p99_s")
FILES = {"20 beginnings": shared_lines, "nothing in common": typical_lines}
NOTE = (
    "Simulated engines, the scheduler the product's; passes take what tables of devices say: 0.5b-q8_0 is "
    "the 0.5B shape on two cores, rtx4090 an 8B model on that card. Live requests are typical ones and come "
    "at random times, the same beside a batch, which has all slots; their load is a share of what the device "
    f"can answer. Lines of the first file begin with one of {N_BEGINNINGS} texts of {N_BEGINNING} tokens, in "
    "random order, and answers have 8 to 32; those of the second are typical requests. Nothing here depends "
    "on the machine."
)


def batch(
    requests: Annotated[int, typer.Option(min=20, help="Lines of the file.")] = 2000,
    live: Annotated[int, typer.Option(min=2, help="Live requests of each load.")] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the loads.")] = 0,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Answer a batch beside live clients, and a file of requests in two orders; a virtual clock, no model."""
    n_lines, n_live = (QUICK_LINES, QUICK_LIVE) if quick else (requests, live)
    noticed = Table(
        "Live requests beside a batch",
        [
            *("device", "live load", "TTFT p50 ms", "beside", "p50 ratio", "mean ratio", "p99 ratio"),
            *("ITL p50 ratio", "ITL p99 ratio", "busy", "beside", "batch tokens/s"),
        ],
    )
    samples: dict[str, dict[str, dict[str, float]]] = {}
    for name, load in product(DEVICE_NAMES, LOADS):
        alone, both = (
            figures(beside(DEVICES[name], load, n_live, seed, batch=batch)) for batch in (False, True)
        )
        samples[f"{name}, {load}"] = {"alone": alone, "beside": both}
        noticed.rows.append((
            name, f"{load:g}", ms(alone["ttft_p50_s"]), ms(both["ttft_p50_s"]),
            *(f"{both[key] / alone[key]:.2f}" for key in RATIOS), f"{alone['busy']:.2f}",
            f"{both['busy']:.2f}", f"{both['batch_tps']:.0f}",
        ))  # fmt: skip
    order = Table(
        f"Files of {n_lines} requests",
        ["device", "file", "who", "prompt tokens computed", "requests/s", "ratio"],
    )
    for name, (kind, lines_of) in product(DEVICE_NAMES, FILES.items()):
        lines = lines_of(n_lines, seed)
        by_clients, ours = (
            answer_file(DEVICES[name], lines, seed, ordered=ordered) for ordered in (False, True)
        )
        samples[f"{name}, {kind}"] = {"clients": by_clients._asdict(), "batch": ours._asdict()}
        for who, run in ((f"{N_CLIENTS} clients, as in the file", by_clients), ("as a batch", ours)):
            ratio = f"{run.rps / by_clients.rps:.2f}"
            order.rows.append((name, kind, who, f"{run.computed:.3f}", f"{run.rps:.2f}", ratio))
    report = Report(
        name="batch",
        title="Batches",
        command=spell(
            "batch",
            requests=None if quick else requests,
            live=None if quick else live,
            seed=seed,
            quick=quick,
        ),
        config={"seed": seed, "requests": n_lines, "live": n_live},
        tables=[noticed, order],
        samples=samples,
        notes=[NOTE],
    )
    deliver(report, out)


def figures(run: LiveRun) -> dict[str, float]:
    """Return what live clients saw, in numbers."""
    return {
        "ttft_p50_s": float(np.quantile(run.ttft_s, 0.5)),
        "ttft_mean_s": fmean(run.ttft_s),
        "ttft_p99_s": float(np.quantile(run.ttft_s, 0.99)),
        "itl_p50_s": float(np.quantile(run.gaps_s, 0.5)),
        "itl_p99_s": float(np.quantile(run.gaps_s, 0.99)),
        "busy": run.busy,
        "batch_tps": run.batch_tps,
    }
