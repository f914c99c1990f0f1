"""What a person sees: a bar on a terminal, a line now and then elsewhere, and the curve as a plot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

CONSOLE = Console(stderr=True)
_LINE_EVERY_S = 30.0
_SMOOTH = 50


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Show how far it is: the function it gives is called with how much is done, and a remark."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[remark]}"),
    )
    last = time.monotonic() - _LINE_EVERY_S
    with Progress(*columns, console=CONSOLE, disable=not CONSOLE.is_terminal) as bars:
        task = bars.add_task(what, total=total, remark="")

        def on_progress(done: int, remark: str) -> None:
            nonlocal last
            bars.update(task, completed=done, remark=remark)
            if not CONSOLE.is_terminal and time.monotonic() - last >= _LINE_EVERY_S:
                last = time.monotonic()
                CONSOLE.print(f"{what}: {done}/{total} {remark}", highlight=False)

        yield on_progress


def plot_losses(losses: Sequence[float], path: Path) -> None:
    """Draw the curve: every step, and the running mean."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), dpi=110)
    steps = np.arange(1, len(losses) + 1)
    axes.plot(steps, losses, color="0.8", linewidth=0.6, label="each step")
    if len(losses) > _SMOOTH:
        mean = np.convolve(losses, np.ones(_SMOOTH) / _SMOOTH, mode="valid")
        axes.plot(steps[_SMOOTH - 1 :], mean, color="C0", linewidth=1.4, label=f"mean of {_SMOOTH}")
    axes.set(
        yscale="log", xlabel="step", ylabel="loss per token of an answer", title="Training of builtin:tiny"
    )
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
