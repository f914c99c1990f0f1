"""The first server of a comparison against the best of the others, figure by figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import median
from typing import TYPE_CHECKING

from cobali_workloads.commands.serve_report import plain, spread_of
from cobali_workloads.load.jobs import LoadCase
from cobali_workloads.load.run import ServeResult, contender
from cobali_workloads.report.plots import blank
from cobali_workloads.report.report import Table

if TYPE_CHECKING:  # an extra, which --help does without
    from matplotlib.figure import Figure

RATE = "output_tokens_per_s"
FIGURES = {
    "output tok/s": RATE,
    "TTFT p50": "ttft_p50_s", "TTFT p90": "ttft_p90_s", "TTFT p99": "ttft_p99_s",
    "E2E p50": "e2e_p50_s", "E2E p90": "e2e_p90_s",
    "ITL p50": "itl_p50_s", "ITL p99": "itl_p99_s", "longest gap": "itl_highest_s",
}  # fmt: skip
INTRUDED = {"long prompt's TTFT": "intruder_ttft_p50_s"}


@dataclass(frozen=True, slots=True)
class Versus:
    """One figure of one case: the best other server's name, and ours / its, round by round."""

    best: str
    ratios: Sequence[float]

    @property
    def middle(self) -> float:
        """The median of the rounds."""
        return median(self.ratios)


def versus_best(result: ServeResult, case: LoadCase, figure: str) -> Versus | None:
    """Compare with the other whose median is best; None where nobody has the figure.

    More is better of a rate; of anything else, less.
    """
    first, *others = result.targets
    medians = {other.name: result.figure(other.name, case, figure) for other in others}
    measured = {name: value for name, value in medians.items() if not isnan(value)}
    if not measured:
        return None
    best = (
        max(measured, key=measured.__getitem__) if figure == RATE else min(measured, key=measured.__getitem__)
    )
    return Versus(best, result.ratios(first.name, best, case, figure))


def best_tables(result: ServeResult) -> list[Table]:
    """Return the ratios to the best of the others, and beside an intruder what it waits."""
    table = Table(
        f"{result.targets[0].name} / the best of the others, by figure",
        ["load", *_figures(result)],
        note="Each ratio within its own round: median (least to largest), and who was best by the "
        "median of the rounds. Of tokens per second more is better, of all times less.",
    )  # fmt: skip
    for case in result.cases:
        cells = []
        for figure in _figures(result).values():
            versus = versus_best(result, case, figure)
            cells.append(
                "-"
                if versus is None
                else f"{spread_of(versus.ratios)} {versus.best.removeprefix('llama-server ')}"
            )
        table.rows.append([case.label, *cells])
    return [table, *([_beside_alone(result)] if _intruded(result) else [])]


def _beside_alone(result: ServeResult) -> Table:
    table = Table(
        "The long prompt's TTFT / that of the same prompt alone",
        ["load", *(target.name for target in result.targets)],
        note="Within each round: median (least to largest). Alone: on the warmed server, without streams.",
    )
    for case in result.cases:
        values = [result.rounds.values(contender(t.name, case), "intruder_by_alone") for t in result.targets]
        table.rows.append([case.label, *map(spread_of, values)])
    return table


def ratio_plot(result: ServeResult) -> Figure:
    """Draw the medians of all ratios, a colour per case, with the least and the largest of the rounds."""
    names = _figures(result)
    figure = blank((10.0, 4.6))
    axes = figure.add_subplot()
    for i, case in enumerate(result.cases):
        comparisons = [versus_best(result, case, name) for name in names.values()]
        middles = [nan if versus is None else versus.middle for versus in comparisons]
        spans = [
            (0.0, 0.0)
            if versus is None
            else (versus.middle - min(versus.ratios), max(versus.ratios) - versus.middle)
            for versus in comparisons
        ]
        places = [x + (i + 0.5) / len(result.cases) * 0.7 - 0.35 for x in range(len(names))]
        axes.errorbar(
            places, middles, yerr=list(zip(*spans, strict=True)), fmt="o", capsize=2, label=case.label
        )
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(names)), list(names))
    axes.set_ylabel(f"{result.targets[0].name} / the best of the others")
    axes.set_yscale("log")
    plain(axes.yaxis)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _intruded(result: ServeResult) -> bool:
    return result.workload.shape.intruder is not None


def _figures(result: ServeResult) -> dict[str, str]:
    return FIGURES | INTRUDED if _intruded(result) else FIGURES
