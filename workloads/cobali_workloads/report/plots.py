"""The few kinds of plots that the benchmarks need, as matplotlib figures without any global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # an extra, which --help does without
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]
Bars = Sequence[tuple[float, float]]
"""Spans of time: (start, duration)."""


def blank(size: tuple[float, float]) -> Figure:
    """Return an empty figure; so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=size)


def _axes(title: str, x: str, y: str, size: tuple[float, float] = (7.0, 4.2)) -> tuple[Figure, Axes]:
    figure = blank(size)
    axes = figure.subplots()
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(visible=True, alpha=0.3)
    return figure, axes


def _with_legend(figure: Figure, axes: Axes) -> Figure:
    if axes.get_legend_handles_labels()[0]:  # matplotlib warns of a legend of nothing
        axes.legend()
    return figure


def shares(title: str, x: str, series: Mapping[str, Sequence[float]], *, log: bool = False) -> Figure:
    """Draw for each series which share of its values is at most x."""
    figure, axes = _axes(title, x, "share of samples")
    for name, values in series.items():
        ordered = np.sort(np.asarray(values, dtype=float))
        if ordered.size:
            axes.step(ordered, np.arange(1, ordered.size + 1) / ordered.size, where="post", label=name)
    if log:
        axes.set_xscale("log")
    return _with_legend(figure, axes)


def lines(title: str, x: str, y: str, series: Mapping[str, Points], *, log_x: bool = False) -> Figure:
    """Draw one line with marks per series."""
    figure, axes = _axes(title, x, y)
    for name, points in series.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    if log_x:
        axes.set_xscale("log", base=2)
    return _with_legend(figure, axes)


def two_scales(title: str, x: str, left: tuple[str, Points], right: tuple[str, Points]) -> Figure:
    """Draw two quantities of different units over the same logarithmic axis."""
    figure, axes = _axes(title, x, left[0])
    axes.plot(*zip(*left[1], strict=True), marker="o", color="tab:blue")
    axes.yaxis.label.set_color("tab:blue")
    other = axes.twinx()
    other.plot(*zip(*right[1], strict=True), marker="s", color="tab:red")
    other.set_ylabel(right[0], color="tab:red")
    axes.set_xscale("log", base=2)
    return figure


def timeline(title: str, rows: Mapping[str, Mapping[str, Bars]]) -> Figure:
    """Draw spans of time, seconds given and milliseconds shown: a row per actor, a colour per kind."""
    figure, axes = _axes(title, "ms", "", size=(10.0, 0.9 + 0.55 * len(rows)))
    colours = {"device": "tab:green", "host": "tab:orange"}
    names = list(rows)[::-1]
    for row, name in enumerate(names):
        for kind, bars in rows[name].items():
            spans = [(1000 * start, 1000 * duration) for start, duration in bars]
            axes.broken_barh(spans, (row - 0.38, 0.76), color=colours.get(kind, "tab:blue"))
    axes.set_yticks(range(len(names)), names)
    return figure
