"""Contenders take turns, round by round, so that a machine's drift hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from statistics import median
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cobali_workloads.report.machine import BUSY_SHARE, Watch

Figures: TypeAlias = Mapping[str, float]
"""One run's numbers by name."""


class Rounds:
    """Every contender's figures, one entry per round."""

    def __init__(self) -> None:
        self.figures: dict[str, list[Figures]] = {}
        self.usage: list[dict[str, Any]] = []

    def values(self, contender: str, figure: str) -> list[float]:
        """Return one figure of one contender, round by round."""
        return [run[figure] for run in self.figures[contender]]

    def median(self, contender: str, figure: str) -> float:
        """Return the median over the rounds."""
        return median(self.values(contender, figure))

    def spread(self, contender: str, figure: str) -> tuple[float, float]:
        """Return the least and the largest value over the rounds."""
        values = self.values(contender, figure)
        return min(values), max(values)

    def ratios(self, contender: str, other: str, figure: str) -> list[float]:
        """Return contender / other, each within its own round."""
        pairs = zip(self.values(contender, figure), self.values(other, figure), strict=True)
        return [a / b if b else float("nan") for a, b in pairs]

    def notes(self) -> list[str]:
        """Say if the machine was too busy to trust."""
        busy = [u for u in self.usage if u["steal_share"] > BUSY_SHARE or u.get("disturbed")]
        if not busy:
            return []
        worst = max(u["steal_share"] for u in busy)
        count = f"{len(busy)} of {len(self.usage)}"
        return [f"{count} runs were disturbed (steal up to {worst:.0%}): trust the ratios, not the times."]

    def as_json(self) -> dict[str, Any]:
        """Return every sample."""
        return {
            "rounds": {name: [dict(run) for run in runs] for name, runs in self.figures.items()},
            "usage": self.usage,
        }


def run_rounds(
    contenders: Mapping[str, Callable[[], Figures]],
    *,
    n_rounds: int,
    n_warmup: int = 1,
    in_process: bool = True,
) -> Rounds:
    """Run each contender once per round, in turn; the first `n_warmup` rounds are not counted.

    Every second round goes backwards, so that nobody always comes first.
    With `in_process`, all the work is ours, so that what others use of the processors disturbs it.
    """
    rounds = Rounds()
    rounds.figures = {name: [] for name in contenders}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("rounds", total=(n_warmup + n_rounds) * len(contenders))
        for number in range(n_warmup + n_rounds):
            for name in list(contenders)[:: -1 if number % 2 else 1]:
                bar.update(task, description=f"{'warm-up' if number < n_warmup else 'round'} {name}")
                with Watch() as watch:
                    figures = contenders[name]()
                bar.advance(task)
                if number >= n_warmup:
                    rounds.figures[name].append(figures)
                    disturbed = in_process and watch.usage.others_share > BUSY_SHARE
                    rounds.usage.append({"contender": name, "disturbed": disturbed, **asdict(watch.usage)})
    return rounds
