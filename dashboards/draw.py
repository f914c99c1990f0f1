"""Draw the boards from a Prometheus: `python dashboards/draw.py --url http://127.0.0.1:9090 --last 300`.

Every panel's own queries are asked over the range, and what comes back is drawn in the panel's place, with
its unit, thresholds and legend. This is no Grafana: it shows whether a panel has data, a sensible scale and
readable names, not how Grafana would render it. Needs matplotlib, which `make install-dev` brings.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

HERE = Path(__file__).parent
COLUMN, UNIT, GAP = 68, 32, 8  # pixels of a grid's column, of its unit of height, and between panels
DPI = 100
PAGE, PANEL, INK, FAINT = "#111217", "#181b1f", "#ccccdc", "#6e7180"
COLORS = {
    "green": "#73bf69",
    "orange": "#ff9830",
    "red": "#f2495c",
    "blue": "#5794f2",
    "yellow": "#fade2a",
    "purple": "#b877d9",
    "text": INK,
}
PALETTE = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#96d98d", "#fade2a")
ANY = dict.fromkeys(("instance", "engine", "model_name", "node"), ".+")
SCALES = {
    "s": ((1, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "percentunit": ((0.01, "%"),),
    "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
    "reqps": ((1, "req/s"),),
    "ops": ((1, "ops/s"),),
}


@dataclass(frozen=True)
class Series:
    """One line: its name, its labels, and its values over time."""

    name: str
    labels: Mapping[str, str]
    times: np.ndarray
    values: np.ndarray

    @property
    def last(self) -> float:
        """Return the last value that is a number, NaN if there is none."""
        real = self.values[np.isfinite(self.values)]
        return float(real[-1]) if len(real) else math.nan


@dataclass(frozen=True)
class Source:
    """A Prometheus, and the range to look at, in Unix seconds."""

    url: str
    start: float
    end: float
    scrape_s: float
    variables: Mapping[str, str]

    def ask(self, query: str, step_s: float) -> list[dict[str, Any]]:
        """Return the series of a range query; ValueError with Prometheus's words if it does not take it."""
        names = {
            "__rate_interval": f"{math.ceil(4 * self.scrape_s + step_s)}s",
            "__interval": f"{math.ceil(step_s)}s",
            "__range": f"{math.ceil(self.end - self.start)}s",
            **self.variables,
        }
        text = re.sub(r"\$\{?(\w+)(?::\w+)?\}?", lambda found: names[found[1]], query)
        data = {"query": text, "start": self.start, "end": self.end, "step": step_s}
        request = urllib.request.Request(  # noqa: S310 - the caller's own Prometheus
            f"{self.url}/api/v1/query_range", urllib.parse.urlencode(data).encode()
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                return list(json.load(answer)["data"]["result"])
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error)["error"]) from error

    def lines(self, panel: Mapping[str, Any], step_s: float) -> Iterator[Series]:
        """Yield what the queries of a panel return, named as its legend would."""
        times = np.arange(self.start, self.end, step_s)
        for target in panel["targets"]:
            for one in self.ask(target["expr"], step_s):
                values = np.full(len(times), np.nan)
                for at, value in one["values"]:
                    if (index := round((at - self.start) / step_s)) < len(times):
                        values[index] = float(value)
                name = target["legendFormat"]
                for label, said in one["metric"].items():
                    name = name.replace(f"{{{{{label}}}}}", said)
                yield Series(name, one["metric"], times - self.start, values)


def written(value: float, unit: str) -> str:
    """Return a value with its unit, scaled as Grafana scales it."""
    if not math.isfinite(value):
        return "-"
    word = unit.removeprefix("count:")
    scales = SCALES.get(unit, ((1e6, f"M {word}"), (1e3, f"K {word}"), (1, word)))
    factor, name = next((one for one in scales if abs(value) >= one[0]), scales[0 if unit == "s" else -1])
    number = f"{value / factor:.3g}" if abs(value / factor) < 1000 else f"{value / factor:.0f}"
    return f"{number}{'' if name == '%' else ' '}{name}"


def draw(board: Mapping[str, Any], source: Source, height: int | None) -> Figure:
    """Draw a board, or its first `height` units."""
    panels = [one for one in board["panels"] if not height or _end(one) <= height]
    width_px, height_px = 24 * COLUMN + GAP, max(map(_end, panels)) * UNIT + 44
    figure = plt.figure(figsize=(width_px / DPI, height_px / DPI), dpi=DPI, facecolor=PAGE)
    figure.text(12 / width_px, 1 - 26 / height_px, board["title"], color=INK, size=13, weight="bold")
    (query,) = (one["expr"] for one in board["annotations"]["list"])
    found = source.ask(query, source.scrape_s)
    starts = {float(value) / 1000 - source.start for one in found for _, value in one["values"]}
    marks = sorted(at for at in starts if 0 < at < source.end - source.start)
    for panel in panels:
        at = panel["gridPos"]
        box = (at["x"] * COLUMN + GAP, at["y"] * UNIT + 44, at["w"] * COLUMN - GAP, at["h"] * UNIT - GAP)
        axes = figure.add_axes(
            (box[0] / width_px, 1 - (box[1] + box[3]) / height_px, box[2] / width_px, box[3] / height_px)
        )
        axes.set(xticks=[], yticks=[], facecolor=PANEL if panel["type"] != "row" else PAGE)
        axes.spines[:].set_visible(False)
        title = (8 / box[2], 1 - 16 / box[3]) if panel["type"] != "row" else (0, 0.3)
        axes.text(*title, panel["title"], transform=axes.transAxes, color=INK, size=9, weight="bold")
        if panel["type"] != "row":
            PAINTERS[panel["type"]](axes, panel, source, marks)
    return figure


def _end(panel: Mapping[str, Any]) -> int:
    return int(panel["gridPos"]["y"] + panel["gridPos"]["h"])


def _empty(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.45, text, transform=axes.transAxes, color=FAINT, size=8, ha="center", wrap=True)


def _stat(axes: Axes, panel: Mapping[str, Any], source: Source, _marks: list[float]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    found = list(source.lines(panel, source.scrape_s))
    if not found or not math.isfinite(found[0].last):
        return _empty(axes, defaults["noValue"])
    value = found[0].last
    steps = defaults["thresholds"]["steps"]
    color = COLORS[[one["color"] for one in steps if one["value"] is None or value >= one["value"]][-1]]
    inner = axes.inset_axes((0, 0, 1, 0.32))
    inner.axis("off")
    inner.fill_between(found[0].times, found[0].values, color=color, alpha=0.25)
    inner.set_ylim(0, max(float(np.nanmax(found[0].values)), 1e-9) * 1.05)
    text = written(value, defaults["unit"])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, color=color, size=19, ha="center", va="center")
    return None


def _plot(axes: Axes, source: Source, bottom: float) -> Axes:
    """Return the part of a panel from `bottom` up in which its lines are, with its axis of time."""
    inner = axes.inset_axes((0.12, bottom, 0.85, 0.85 - bottom))
    inner.set_facecolor(PANEL)
    inner.spines[:].set_visible(False)
    inner.tick_params(colors=FAINT, labelsize=7, length=0)
    inner.grid(color="#2c3235", linewidth=0.6)
    inner.set_xlim(0, source.end - source.start)
    inner.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at / 60:.0f}:{at % 60:02.0f}"))
    inner.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 3, 6]))
    return inner


def _timeseries(axes: Axes, panel: Mapping[str, Any], source: Source, marks: list[float]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    fixed = {
        one["matcher"]["options"]: {rule["id"]: rule["value"] for rule in one["properties"]}
        for one in panel["fieldConfig"]["overrides"]
    }
    found = list(source.lines(panel, max(source.scrape_s, (source.end - source.start) / 300)))
    if all("custom.lineStyle" in fixed.get(one.name, {}) for one in found):
        return _empty(axes, defaults["noValue"])
    inner, stack, top = _plot(axes, source, 0.34), None, 0.0
    stacks = defaults["custom"].get("stacking", {}).get("mode") == "normal"
    for index, one in enumerate(found):
        color, style = PALETTE[index % len(PALETTE)], "-"
        if one.name in fixed:
            color = COLORS[fixed[one.name].get("color", {}).get("fixedColor", "text")]
            style = "--" if "custom.lineStyle" in fixed[one.name] else "-"
        values = one.values
        if stacks and style == "-":
            below = np.zeros(len(values)) if stack is None else stack
            stack = values = below + np.nan_to_num(values)
            inner.fill_between(one.times, below, values, color=color, alpha=0.4, linewidth=0)
        inner.plot(one.times, values, color=color, linewidth=1.1, linestyle=style)
        top = max(top, float(np.max(values[np.isfinite(values)], initial=0)))
        n_columns = 2 if panel["gridPos"]["w"] >= 24 // 3 else 1
        if index < 3 * n_columns:
            at = (0.03 + 0.5 * (index % n_columns), 0.19 - 0.07 * (index // n_columns))
            room = panel["gridPos"]["w"] * 5 // n_columns
            name = one.name if len(one.name) <= room else f"…{one.name[-room:]}"
            peak = np.max(one.values[np.isfinite(one.values)], initial=-np.inf)
            said = f"{name}  {written(one.last, defaults['unit'])}, max {written(peak, defaults['unit'])}"
            axes.text(*at, "■", transform=axes.transAxes, color=color, size=7)
            axes.text(at[0] + 0.03, at[1], said, transform=axes.transAxes, color=INK, size=6.5)
    for at in marks:
        inner.axvline(at, color=COLORS["orange"], linewidth=1, linestyle=":")
    inner.set_ylim(0, top * 1.08 or 1)
    inner.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, defaults["unit"])))
    inner.yaxis.set_major_locator(MaxNLocator(4, integer=defaults.get("decimals") == 0))
    return None


def _heatmap(axes: Axes, panel: Mapping[str, Any], source: Source, marks: list[float]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    step_s = float(panel["interval"].removesuffix("s"))
    found = sorted(source.lines(panel, step_s), key=lambda one: float(one.labels["le"]))
    counts = np.nan_to_num(np.array([one.values for one in found]))
    if not counts.any():
        return _empty(axes, defaults["noValue"])
    counts = np.diff(counts, axis=0, prepend=0).clip(0)
    used = np.flatnonzero(counts.any(axis=1))
    low, high = max(used[0] - 1, 0), min(used[-1] + 2, len(found))
    inner = _plot(axes, source, 0.12)
    inner.grid(visible=False)
    edges = np.append(found[0].times, found[0].times[-1] + step_s) - step_s
    shown = np.where(counts[low:high] > 0.01, counts[low:high], np.nan)
    inner.pcolormesh(edges, np.arange(high - low + 1), np.sqrt(shown), cmap="plasma", edgecolor=PANEL)
    every = max((high - low) // 6, 1)
    names = [written(float(one.labels["le"]), defaults["unit"]) for one in found[low:high]]
    inner.set_yticks(np.arange(high - low)[::every] + 1, names[::every])
    for at in marks:
        inner.axvline(at, color=COLORS["orange"], linewidth=1, linestyle=":")
    return None


def _alertlist(axes: Axes, _panel: Mapping[str, Any], source: Source, _marks: list[float]) -> None:
    found = source.ask('ALERTS{job="cobali"}', source.scrape_s)
    latest = max((one["values"][-1][0] for one in found), default=0)
    now = [one["metric"] for one in found if one["values"][-1][0] >= max(latest, source.end - 5)]
    if not now:
        return _empty(axes, "no alerts")
    for index, one in enumerate(sorted(now, key=lambda one: (one["alertstate"], one["alertname"]))[:9]):
        color = COLORS["red" if one["alertstate"] == "firing" else "orange"]
        at = 0.78 - 0.085 * index
        said = f"{one['alertname']}  {one['severity']}, engine {one.get('engine', '-')}"
        axes.text(0.03, at, one["alertstate"], transform=axes.transAxes, color=color, size=8, weight="bold")
        axes.text(0.17, at, said, transform=axes.transAxes, color=INK, size=8)
    return None


PAINTERS: Mapping[str, Callable[[Axes, Mapping[str, Any], Source, list[float]], None]] = {
    "stat": _stat,
    "timeseries": _timeseries,
    "heatmap": _heatmap,
    "alertlist": _alertlist,
}


def main() -> None:
    """Draw what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:9090")
    parser.add_argument("--end", type=float, default=time.time(), help="Unix time, default: now")
    parser.add_argument("--last", type=float, default=900.0, help="seconds before it")
    parser.add_argument("--scrape", type=float, default=5.0, help="Prometheus's scrape interval, seconds")
    parser.add_argument("--height", type=int, help="draw only the first units of the grid")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("boards", nargs="*", type=Path, default=sorted(HERE.glob("*.json")))
    args = parser.parse_args()
    for path in args.boards:
        board = json.loads(path.read_text(encoding="utf-8"))
        texts = {one["name"]: one["query"] for one in board["templating"]["list"] if one["type"] == "textbox"}
        source = Source(args.url, args.end - args.last, args.end, args.scrape, {**ANY, **texts})
        figure = draw(board, source, args.height)
        file = args.out / f"board-{path.stem.replace('_', '-')}.png"
        figure.savefig(file, facecolor=PAGE)
        plt.close(figure)
        Image.open(file).convert("RGB").quantize(96).save(file, optimize=True)
        print(f"{file}: {file.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
