"""The tables and plots of `cobali bench prefill`."""

from __future__ import annotations

from dataclasses import asdict
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cobali_workloads.inside.lengths import LengthSpread, batch_reduction, deviation
from cobali_workloads.inside.prefill import Prompts
from cobali_workloads.report import plots
from cobali_workloads.report.report import Report, Table, ms, with_range
from cobali_workloads.report.rounds import Rounds

if TYPE_CHECKING:  # an extra, which --help does without
    from matplotlib.figure import Figure

WAYS = ("padded", "length-ordered", "one by one", "fcfs", "packed")
PUBLISHED = (
    "Published (README of Prepacking: RTX A6000, 1B model, MMLU, batch 64, seconds per batch): prepacking "
    "0.441, length-ordered 0.658, padded full batching 2.299, which is 5.2x; the paper reports 1.6x to "
    "3.5x, up to 6x."
)
METHOD = (
    "llama.cpp's batches are ragged: fcfs and packed compute no filler at all, which is more than bins can "
    "save. Padded rows carry filler in front, unmasked: the work is that of a padded batch, the answers are "
    "not. Length-ordered sorts the whole pool first, which a server cannot; one batch gains nothing."
)


class PrefillCase(NamedTuple):
    """One data set at one batch size."""

    spread: LengthSpread
    size: int
    rounds: Rounds
    batches: list[Prompts]
    """In arrival order."""
    seconds: dict[str, list[list[float]]]
    """By way, round and batch."""
    bytes_per_cell: float | None


def report_of(command: str, cases: list[PrefillCase], config: dict[str, Any]) -> Report:
    """Put the cases into tables and plots."""
    return Report(
        name="prefill",
        title="Prefill: padding against packing (Prepacking)",
        command=command,
        config=config | {"spreads": [asdict(case.spread) for case in cases]},
        tables=[
            _lengths_table(cases),
            _times_table(cases, "batch_s", "Prefill time per batch, ms"),
            _times_table(cases, "ttft_s", "Mean TTFT of a batch's prompts, ms"),
            _memory_table(cases),
        ],
        samples={
            f"{case.spread.name} {case.size}": {
                **case.rounds.as_json(),
                "batch_s": case.seconds,
                "lengths": [[len(prompt) for prompt in batch] for batch in case.batches],
            }
            for case in cases
        },
        figures=_figures(cases),
        notes=[PUBLISHED, METHOD, *{note for case in cases for note in case.rounds.notes()}],
    )


def _lengths_table(cases: list[PrefillCase]) -> Table:
    columns = (
        "data set",
        "prompts",
        "mean",
        "deviation",
        "least",
        "most",
        "padded : real at the largest batch",
    )
    table = Table(
        "Prompt lengths drawn, tokens", columns, note="Generated: the spread is approximated, see the code."
    )
    for case in {case.spread.name: case for case in cases}.values():
        lengths = [len(prompt) for batch in case.batches for prompt in batch]
        padded = sum(len(batch) * max(map(len, batch)) for batch in case.batches)
        cells = (fmean(lengths), pstdev(lengths), min(lengths), max(lengths), padded / sum(lengths))
        table.rows.append((case.spread.name, str(len(lengths)), *(f"{c:.4g}" for c in cells)))
    return table


def _times_table(cases: list[PrefillCase], figure: str, title: str) -> Table:
    columns = (
        "data set, batch",
        *WAYS,
        "padded / packed (min..max)",
        "length-ordered / packed",
        "fcfs / packed",
    )
    table = Table(title, columns)
    for case in cases:
        rounds = case.rounds
        ratios = [
            with_range(rounds.ratios(name, "packed", figure)) for name in ("padded", "length-ordered", "fcfs")
        ]
        times = [ms(rounds.median(name, figure)) for name in WAYS]
        table.rows.append((f"{case.spread.name}, {case.size}", *times, *ratios))
    return table


def _memory_table(cases: list[PrefillCase]) -> Table:
    columns = (
        "data set, batch",
        "padded cells",
        "length-ordered",
        "ragged",
        "padded MB",
        "ragged MB",
        "saved",
    )
    note = (
        "KV of the largest batch when decoding could begin. Cells are counted; bytes are cells times what "
        "llama.cpp's own state size says of one cell. The compute buffer is one for all contenders, sized by "
        "the token budget."
    )
    table = Table("KV cache held", columns, note=note)
    for case in cases:
        padded, ordered, ragged = (
            case.rounds.median(name, "n_cells") for name in ("padded", "length-ordered", "packed")
        )
        sizes = [
            "-" if case.bytes_per_cell is None else f"{cells * case.bytes_per_cell / 1e6:.2f}"
            for cells in (padded, ragged)
        ]
        cells = (f"{padded:.0f}", f"{ordered:.0f}", f"{ragged:.0f}", *sizes, f"{padded / ragged:.2f}x")
        table.rows.append((f"{case.spread.name}, {case.size}", *cells))
    return table


def _figures(cases: list[PrefillCase]) -> dict[str, Figure]:
    by_size: dict[str, list[tuple[float, float]]] = {}
    reduction: dict[str, list[tuple[float, float]]] = {}
    spread: dict[str, list[tuple[float, float]]] = {}
    for case in cases:
        name = case.spread.name
        ratio = float(np.median(case.rounds.ratios("padded", "packed", "batch_s")))
        by_size.setdefault(name, []).append((case.size, ratio))
        padded, packed = (np.median(case.seconds[way], axis=0) for way in ("padded", "packed"))
        for batch, gain in zip(case.batches, (padded / packed).tolist(), strict=True):
            lengths = [len(prompt) for prompt in batch]
            reduction.setdefault(name, []).append((batch_reduction(lengths), gain))
            spread.setdefault(name, []).append((deviation(lengths), gain))
    y = "padded time / packed time"
    return {
        "batch-size": plots.lines("Speed-up by batch size", "prompts per batch", y, by_size, log_x=True),
        "reduction": plots.dots("Speed-up of each batch by how much packing shrinks it",
                                "rows padded / rows packed", y, reduction),
        "deviation": plots.dots("Speed-up of each batch by the spread of its lengths",
                                "longest - mean, tokens", y, spread),
    }  # fmt: skip
