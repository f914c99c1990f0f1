"""From a load run to tables and plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import isnan
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from cobali_workloads.load.jobs import LoadCase
from cobali_workloads.load.run import ServeResult, contender
from cobali_workloads.load.timeline import RequestTimeline, as_samples
from cobali_workloads.report.plots import blank
from cobali_workloads.report.report import Table

if TYPE_CHECKING:  # an extra, which --help does without
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PARTS = ("mean", "p50", "p90", "p99")
CLIENT_NOTE = (
    "Client TTFT: send to first delta with text. ITL: gap between neighbouring deltas. "
    "TPOT: (E2E - TTFT) / (output tokens - 1). Medians of the rounds."
)


def tables_of(result: ServeResult) -> list[Table]:
    """Return what was sent and answered, latencies, ratios, and the intruder's table where there is one."""
    tables = [_throughput(result), _latencies(result)]
    if len(result.targets) > 1:
        tables.append(_ratios(result))
    if any(case.intruded for case in result.cases):
        tables.append(_intruders(result))
    return tables


def _throughput(result: ServeResult) -> Table:
    slo = result.workload.shape.slo
    targets = ", ".join(f"{name.removesuffix('_s')} {v:g} s" for name, v in asdict(slo).items() if v)
    table = Table(
        "Throughput and goodput",
        ["target", "load", "sent / ok / refused / failed", "prompt tok", "computed", "output tok/s",
         "goodput /s", "attainment", "mean concurrency"],
        note="Computed: share of the prompt tokens that were not cached. "
        f"Goodput and attainment (share of requests sent) under {targets}. Medians of the rounds.",
    )  # fmt: skip
    for case in result.cases:
        for target in result.targets:
            number = _getter(result, target.name, case)
            counts = " / ".join(f"{number(n):.0f}" for n in ("n_sent", "n_ok", "n_refused", "n_failed"))
            computed = number("n_computed")
            share = "-" if isnan(computed) else f"{computed / max(number('n_prompt'), 1):.1%}"
            rates = [share, f"{number('output_tokens_per_s'):.1f}", f"{number('goodput_rps'):.2f}"]
            rest = [f"{number('attainment'):.0%}", f"{number('mean_concurrency'):.1f}"]
            table.rows.append([target.name, case.label, counts, f"{number('n_prompt'):.0f}", *rates, *rest])
    return table


def _latencies(result: ServeResult) -> Table:
    names = ("ttft", "itl", "tpot", "e2e")
    heads = [f"{'client TTFT' if n == 'ttft' else n.upper()} ms" for n in names]
    table = Table("Latency, mean / p50 / p90 / p99", ["target", "load", *heads], note=CLIENT_NOTE)
    for case in result.cases:
        for target in result.targets:
            number = _getter(result, target.name, case)
            cells = [" / ".join(_ms(number(f"{name}_{part}_s")) for part in PARTS) for name in names]
            table.rows.append([target.name, case.label, *cells])
    return table


def _ratios(result: ServeResult) -> Table:
    first, *others = result.targets
    names = {"output tok/s": "output_tokens_per_s", "client TTFT p50": "ttft_p50_s", "ITL p50": "itl_p50_s",
             "ITL p99": "itl_p99_s", "E2E p50": "e2e_p50_s"}  # fmt: skip
    table = Table(
        f"{first.name} / other",
        ["other", "load", *names],
        note="Each ratio within its own round: median (least to largest).",
    )
    for case in result.cases:
        for other in others:
            cells = [spread_of(result.ratios(first.name, other.name, case, name)) for name in names.values()]
            table.rows.append([other.name, case.label, *cells])
    return table


def _intruders(result: ServeResult) -> Table:
    it = result.workload.shape.intruder
    assert it is not None
    table = Table(
        f"A prompt of {it.prompt_tokens:,} tokens every {it.every_s:g} s beside the streams",
        ["target", "ITL p50 / p99 ms alone", "ITL p99 ms beside", "p99 / p50 alone", "ITL max ms beside",
         "intruders", "TTFT ms of one alone", "beside, p50", "p50 / alone", "max"],
        note="Gaps of the streams only; all of the run counts, not only the seconds after an intruder. "
        "Ratios within each round: median (least to largest).",
    )  # fmt: skip
    for before, beside in zip(result.cases[::2], result.cases[1::2], strict=True):
        for target in result.targets:
            quiet, loud = _getter(result, target.name, before), _getter(result, target.name, beside)
            table.rows.append([
                target.name, f"{_ms(quiet('itl_p50_s'))} / {_ms(quiet('itl_p99_s'))}", _ms(loud("itl_p99_s")),
                _times(result, target.name, (beside, "itl_p99_s"), (before, "itl_p50_s")),
                _ms(loud("itl_highest_s")), f"{loud('intruder_n_sent'):.0f}",
                _ms(quiet("intruder_ttft_p50_s")), _ms(loud("intruder_ttft_p50_s")),
                _times(result, target.name, (beside, "intruder_ttft_p50_s"), (before, "intruder_ttft_p50_s")),
                _ms(loud("intruder_ttft_highest_s")),
            ])  # fmt: skip
    return table


def _times(result: ServeResult, target: str, figure: tuple[LoadCase, str], base: tuple[LoadCase, str]) -> str:
    """Return one figure over another of the same target, round by round."""
    values = [result.rounds.values(contender(target, case), name) for case, name in (figure, base)]
    return spread_of([a / b if b else float("nan") for a, b in zip(*values, strict=True)])


def figures_of(result: ServeResult) -> dict[str, Figure]:
    """Return plots: throughput and latency over concurrency, and distributions at the last case."""
    figures = {}
    levels = [case for case in result.cases if case.clients and not case.intruded]
    if len(levels) > 1:
        figures["throughput"] = _lines(
            result, levels, "output tokens/s", {"": lambda number: number("output_tokens_per_s")}
        )
        for name, title in (("ttft", "client TTFT, ms"), ("itl", "ITL, ms")):
            figures[name] = _lines(
                result, levels, title,
                {p: _in_ms(f"{name}_{p}_s") for p in ("p50", "p99")}, log=True,
            )  # fmt: skip
    figures["cdf"] = _cdf(result, result.cases[-1])
    return figures


def _lines(
    result: ServeResult,
    cases: Sequence[LoadCase],
    title: str,
    series: dict[str, Callable[[Callable[[str], float]], float]],
    *,
    log: bool = False,
) -> Figure:
    figure = blank((6.4, 4.0))
    axes = figure.add_subplot()
    for i, target in enumerate(result.targets):
        for (name, value), style in zip(series.items(), ("-", "--"), strict=False):
            points = [value(_getter(result, target.name, case)) for case in cases]
            label = f"{target.name} {name}".strip()
            axes.plot([c.clients for c in cases], points, style, marker="o", color=f"C{i}", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks([c.clients for c in cases], [c.label for c in cases])
    if log:
        axes.set_yscale("log")
        plain(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel("clients")
    axes.set_ylabel(title)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _cdf(result: ServeResult, case: LoadCase) -> Figure:
    figure = blank((9.6, 3.8))
    kinds: dict[str, Callable[[RequestTimeline], list[float]]] = {
        "client TTFT": lambda t: [] if t.ttft_s is None else [t.ttft_s],
        "ITL": lambda t: t.gaps_s,
    }
    for place, (name, values_of) in enumerate(kinds.items(), start=1):
        axes = figure.add_subplot(1, 2, place)
        for i, target in enumerate(result.targets):
            values = np.sort([1000 * v for t in result.pooled(target.name, case) for v in values_of(t)])
            if len(values):
                shares = np.arange(1, len(values) + 1) / len(values)
                axes.plot(values, shares, color=f"C{i}", label=target.name)
        axes.set_xscale("log")
        plain(axes.xaxis)
        axes.set_xlabel(f"{name}, ms (load {case.label})")
        axes.set_ylabel("share of samples")
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def plain(axis: Axis) -> None:
    """Write the numbers of a logarithmic axis as people say them, at 1, 2 and 5; of a long one at 1."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def samples_of(result: ServeResult) -> dict[str, object]:
    """Return the rounds' figures and every timeline, JSON-ready."""
    timelines = {
        f"{target} @ {label}": [as_samples(run) for run in runs]
        for (target, label), runs in result.timelines.items()
    }
    return {**result.rounds.as_json(), "timelines": timelines}


def spread_of(ratios: Sequence[float]) -> str:
    """Write ratios as median (least to largest)."""
    if len(ratios) == 1:
        return f"{ratios[0]:.2f}"
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _in_ms(name: str) -> Callable[[Callable[[str], float]], float]:
    return lambda number: 1000 * number(name)


def _getter(result: ServeResult, target: str, case: LoadCase) -> Callable[[str], float]:
    return lambda name: result.figure(target, case, name)


def _ms(seconds: float) -> str:
    return "-" if np.isnan(seconds) else f"{1000 * seconds:.1f}"
