"""`cobali bench regret`: the scheduler beside simple policies on tables of devices, computing nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from itertools import chain
from statistics import geometric_mean
from typing import Annotated

import typer

from cobali_ray.errors import ConfigError
from cobali_ray.models.commands import AsJson, progress_bars
from cobali_workloads.commands.options import OUT, Out, spell
from cobali_workloads.inside.devices import DEVICES
from cobali_workloads.inside.regret import (
    CONTENDERS,
    FIGURES,
    LLAMA_SERVER,
    LOADS,
    MAX_WAIT,
    OURS,
    Cell,
    cells,
)
from cobali_workloads.report.report import Report, Table, deliver, ms

N_WORST = 12
NAMES = dict(zip(FIGURES, ("mean TTFT", "mean E2E", "ITL p99", "throughput"), strict=True))
NOTE = (
    "Simulated: the product's scheduler; passes take what tables of devices say, give or take a few percent. "
    "HTTP, tokenising and sampling are not in it. Best is who holds nobody back: whose longest time to "
    f"a first token is at most {MAX_WAIT:g} times that of llama-server's rule."
)


def regret(
    device: Annotated[str, typer.Option(help="Names separated by commas, or all.")] = "all",
    load: Annotated[str, typer.Option(help="Names separated by commas, or all.")] = "all",
    seed: Annotated[int, typer.Option(min=0, help="Seed of lengths, times and noise.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Number of seeds to simulate, starting at --seed.")] = 1,
    as_json: AsJson = False,
    out: Out = OUT,
) -> None:
    """Compare the scheduler with the best of ten simple policies, on tables of devices, in simulation.

    Example: cobali bench regret --device rtx4090,m2-ultra --load bursts
    """
    devices = [DEVICES[name] for name in _chosen("--device", device, DEVICES)]
    loads = _chosen("--load", load, LOADS)
    all_cells = list[Cell]()
    with progress_bars() as progress:
        for cell in chain.from_iterable(cells(devices, loads, seed + i) for i in range(rounds)):
            all_cells.append(cell)
            progress("playing", len(all_cells) / (len(devices) * len(loads) * rounds))
    report = Report(
        name="regret",
        title="The scheduler's regret",
        command=spell("regret", device=device, load=load, seed=seed, rounds=rounds),
        config={
            "devices": [asdict(entry) for entry in devices],
            "contenders": list(CONTENDERS),
            "seed": seed,
        },
        tables=[_policies(all_cells), _regrets(all_cells), _worst(all_cells)],
        samples={"cells": [asdict(cell) | {"regret": _ratios(cell)} for cell in all_cells]},
        notes=[NOTE, *(f"{entry.name}: {entry.source}" for entry in devices)],
    )
    if as_json:
        typer.echo(json.dumps(report.samples["cells"], indent=1))
    else:
        deliver(report, out)


def _chosen(option: str, text: str, choices: Collection[str]) -> list[str]:
    names = list(choices) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    if not names or not set(names) <= set(choices):
        raise ConfigError(option, f"must be all or some of {', '.join(choices)}, got {text!r}")
    return names


def _ratios(cell: Cell) -> dict[str, float]:
    return {figure: cell.regret(figure) for figure in FIGURES}


def _policies(all_cells: Sequence[Cell]) -> Table:
    """Return what each policy makes of each load, over all devices and seeds, from the shortest gaps on."""
    rows: list[Sequence[str]] = []
    for load in dict.fromkeys(cell.load for cell in all_cells):
        played = [cell for cell in all_cells if cell.load == load]
        means = {
            who: [
                geometric_mean(
                    [cell.figures[who][figure] / cell.figures[LLAMA_SERVER][figure] for cell in played]
                )
                for figure in FIGURES
            ]
            for who in CONTENDERS
        }
        by_gap = sorted(means, key=lambda who: means[who][FIGURES.index("itl_p99_s")])
        rows += [(load, who, *(f"{ratio:.2f}" for ratio in means[who])) for who in by_gap]
    return Table(
        "Policies",
        ["load", "policy", *NAMES.values()],
        rows,
        note=f"Geometric means, relative to {LLAMA_SERVER}'s rule.",
    )


def _regrets(all_cells: Sequence[Cell]) -> Table:
    rows: list[Sequence[str]] = [
        (
            cell.device,
            cell.load,
            *(f"{ratio:.2f}" for ratio in _ratios(cell).values()),
            cell.best("e2e_mean_s"),
        )
        for cell in all_cells
    ]
    return Table(
        "Regret",
        ["device", "load", *NAMES.values(), "best by mean E2E"],
        rows,
        note="How many times worse the product is than the best of all, figure by figure: 1.00 is the best.",
    )


def _worst(all_cells: Sequence[Cell]) -> Table:
    """Return the cells with the largest regret, whatever the figure."""
    all_of_them = [(cell.regret(figure), cell, figure) for cell in all_cells for figure in FIGURES]
    all_of_them.sort(key=lambda row: -row[0])
    rows: list[Sequence[str]] = []
    for ratio, cell, figure in all_of_them[:N_WORST]:
        best = cell.best(figure)
        own_value, best_value = (_value(cell.figures[name][figure], figure) for name in (OURS, best))
        rows.append((cell.device, cell.load, NAMES[figure], f"{ratio:.2f}", own_value, best_value, best))
    columns = ["device", "load", "figure", "regret", "ours", "best", "whose"]
    return Table("Worst", columns, rows, note="Latencies in ms, throughput in tokens per second.")


def _value(value: float, figure: str) -> str:
    return f"{value:,.1f}" if figure == "output_tokens_per_s" else ms(value)
