"""`cobali bench batch`: what live clients notice of a batch, and what a batch gains by its order."""

from __future__ import annotations

from statistics import fmean
from typing import Annotated

import numpy as np
import typer

from cobali_workloads.commands.options import OUT, Out, Quick, spell
from cobali_workloads.inside.batch import (
    N_BEGINNING,
    N_BEGINNINGS,
    N_CLIENTS,
    THINK_S,
    LiveRun,
    answer_file,
    beside,
)
from cobali_workloads.inside.devices import DEVICES
from cobali_workloads.report.report import Report, Table, deliver, ms

DEVICE_NAMES = ("0.5b-q8_0", "rtx4090")
QUICK_LINES, QUICK_EACH = 60, 4
NOTE = (
    "Simulated engines, the scheduler the product's; passes take what tables of devices say: 0.5b-q8_0 is "
    "the 0.5B shape on two cores, rtx4090 an 8B model on that card. Live clients send typical requests one "
    f"after another, {THINK_S:g} s after the last answer on average; a batch has all slots. "
    f"Lines of the file begin with one of {N_BEGINNINGS} texts of {N_BEGINNING} tokens, in random order, and "
    "answers have 8 to 32. Nothing here depends on the machine."
)


def batch(
    requests: Annotated[int, typer.Option(min=20, help="Lines of the file.")] = 2000,
    each: Annotated[int, typer.Option(min=2, help="Requests of each live client.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of the loads.")] = 0,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Answer a batch beside live clients, and a file of requests in two orders; a virtual clock, no model."""
    n_lines, n_each = (QUICK_LINES, QUICK_EACH) if quick else (requests, each)
    live = Table(
        "Live clients beside a batch",
        [
            *("device", "live clients", "TTFT mean ms", "beside", "ratio", "TTFT p99 ratio"),
            *("ITL p50 ratio", "ITL p99 ratio", "busy", "beside", "batch tokens/s"),
        ],
    )
    samples: dict[str, dict[str, dict[str, float]]] = {}
    for name in DEVICE_NAMES:
        for n_clients in (1, 2):
            alone = beside(DEVICES[name], n_clients, n_each, seed, batch=False)
            both = beside(DEVICES[name], n_clients, n_each, seed, batch=True)
            one, other = figures(alone), figures(both)
            samples[f"{name}, {n_clients}"] = {"alone": one, "beside": other}
            ratio = {key: f"{other[key] / one[key]:.2f}" for key in one if one[key]}
            live.rows.append((
                name, f"{n_clients}", ms(one["ttft_mean_s"]), ms(other["ttft_mean_s"]), ratio["ttft_mean_s"],
                ratio["ttft_p99_s"], ratio["itl_p50_s"], ratio["itl_p99_s"], f"{one['busy']:.2f}",
                f"{other['busy']:.2f}", f"{other['batch_tps']:.0f}",
            ))  # fmt: skip
    order = Table(
        f"A file of {n_lines} requests",
        ["device", "who", "prompt tokens computed", "requests/s", "ratio"],
    )
    for name in DEVICE_NAMES:
        by_clients, ours = (answer_file(DEVICES[name], n_lines, seed, ordered=o) for o in (False, True))
        samples[f"{name}, file"] = {"clients": by_clients._asdict(), "batch": ours._asdict()}
        for who, run in ((f"{N_CLIENTS} clients, as in the file", by_clients), ("as a batch", ours)):
            ratio_of = f"{run.rps / by_clients.rps:.2f}"
            order.rows.append((name, who, f"{run.computed:.3f}", f"{run.rps:.2f}", ratio_of))
    report = Report(
        name="batch",
        title="Batches",
        command=spell(
            "batch",
            requests=None if quick else requests,
            each=None if quick else each,
            seed=seed,
            quick=quick,
        ),
        config={"seed": seed, "requests": n_lines, "each": n_each},
        tables=[live, order],
        samples=samples,
        notes=[NOTE],
    )
    deliver(report, out)


def figures(run: LiveRun) -> dict[str, float]:
    """Return what live clients saw, in numbers."""
    return {
        "ttft_mean_s": fmean(run.ttft_s),
        "ttft_p99_s": float(np.quantile(run.ttft_s, 0.99)),
        "itl_p50_s": float(np.quantile(run.gaps_s, 0.5)),
        "itl_p99_s": float(np.quantile(run.gaps_s, 0.99)),
        "busy": run.busy,
        "batch_tps": run.batch_tps,
    }
