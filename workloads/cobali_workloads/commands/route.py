"""`cobali bench route`: the router beside other ways to choose an engine, simulated at rising load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cobali_ray.errors import ConfigError
from cobali_workloads.commands.options import OUT, Out, numbers, reals, spell
from cobali_workloads.commands.simulate import NOTE, ModelTime, Shrink
from cobali_workloads.inside.asks import chain_of, chatting, replayed
from cobali_workloads.inside.policies import POLICIES
from cobali_workloads.inside.simulated import most_rps, one_cache, play, timelines_of
from cobali_workloads.load.shape import Slo
from cobali_workloads.load.timeline import summarise
from cobali_workloads.load.trace import read_trace
from cobali_workloads.report.plots import lines
from cobali_workloads.report.report import Report, Table, deliver, ms
from cobali_workloads.simulate.fleet import SimulatedRequest
from cobali_workloads.simulate.ticks import TickProfile, read_times

SAMPLE_S = 60.0
"""Of made-up chats, one a second, that tell what an engine can do."""
FIGURES = ("ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "itl_p99_s", "n_refused", "output_tokens_per_s")


def route(
    model_time: ModelTime,
    engines: Annotated[str, typer.Option(help="Numbers of engines, such as 2,4,8.")] = "2,4,8",
    load: Annotated[
        str, typer.Option(help="Loads, as shares of what the engines can handle.")
    ] = "0.3,0.6,0.9",
    minutes: Annotated[float, typer.Option(min=0.1, help="Minutes of generated chats.")] = 5.0,
    trace: Annotated[
        Path | None, typer.Option(help="A trace with hash_ids instead, its speed adjusted.")
    ] = None,
    shrink: Shrink = 1,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Out = OUT,
) -> None:
    """Compare the router with three others by hit rate and time to first token, in simulation."""
    times = read_times(model_time)
    rows, bars = list[Sequence[str]](), list[Sequence[str]]()
    samples: dict[str, dict[str, float]] = {}
    figures = {}
    for n_engines in numbers("--engines", engines):
        p99: dict[str, list[tuple[float, float]]] = {name: [] for name in POLICIES}
        for share in reals("--load", load):
            asks = _asks(times, n_engines, share, minutes, trace, shrink, seed)
            by_policy = {}
            for name, policy in POLICIES.items():
                played = play(times, n_engines, policy, asks)
                if name == "router":
                    best = one_cache([story.ask for story in played.stories], n_engines, times.limits)
                summary = summarise(timelines_of(played), Slo()).figures()
                by_policy[name] = {"hit_rate": played.hit_rate, **{name: summary[name] for name in FIGURES}}
                p99[name].append((share, by_policy[name]["ttft_p99_s"]))
                samples[f"{n_engines} engines, load {share:g}, {name}"] = by_policy[name]
                rows.append(_row(n_engines, share, name, best, by_policy[name]))
            bars.append(_bar(n_engines, share, best, by_policy))
        title = f"{n_engines} engines: p99 TTFT, s"
        figures[f"{n_engines}"] = lines(title, "load, of what the engines can do", "seconds", p99)
    report = Report(
        name="route",
        title="The router beside other ways to choose an engine",
        command=spell(
            "route", model_time=model_time, engines=engines, load=load, minutes=None if trace else minutes,
            trace=trace, shrink=shrink, seed=seed,
        ),
        config={"times": asdict(times), "seed": seed},
        tables=[_bars(bars), _all(rows)],
        samples=samples,
        figures=figures,
        notes=[NOTE],
    )  # fmt: skip
    deliver(report, out)


def _asks(
    times: TickProfile,
    n_engines: int,
    share: float,
    minutes: float,
    trace: Path | None,
    shrink: int,
    seed: int,
) -> list[SimulatedRequest]:
    """Return a load that is this share of what so many engines can do."""
    if trace is None:
        sample = chatting(SAMPLE_S, seed, 1.0)
        rps = len([ask for first in sample for ask in chain_of(first)]) / SAMPLE_S
        return chatting(60 * minutes, seed, share * n_engines * most_rps(times, sample) / rps)
    try:
        arrivals = read_trace(trace.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--trace", f"{trace} cannot be read: {error}") from error
    asks = replayed(arrivals, seed, shrink)
    n_most = times.limits.n_most
    asks = [ask for ask in asks if len(ask.prompt) + len(ask.answer) <= n_most]
    speed = share * n_engines * most_rps(times, asks) * asks[-1].at_s / len(asks)
    for ask in asks:
        ask.at_s /= speed
    return asks


def _row(n_engines: int, share: float, name: str, best: float, figures: dict[str, float]) -> list[str]:
    return [
        f"{n_engines}", f"{share:g}", name, f"{figures['hit_rate']:.1%}", f"{figures['hit_rate'] / best:.2f}",
        *(ms(figures[figure]) for figure in FIGURES[:4]), f"{figures['n_refused']:.0f}",
        f"{figures['output_tokens_per_s']:,.0f}",
    ]  # fmt: skip


def _all(rows: list[Sequence[str]]) -> Table:
    return Table(
        "All",
        ["engines", "load", "policy", "hit rate", "of one big cache", "TTFT mean ms", "p50", "p99",
         "ITL p99 ms", "refused", "tokens/s"],
        rows,
        note="One big cache: one as large as all engines' slots and host memory, asked in the same order.",
    )  # fmt: skip


def _bar(n_engines: int, share: float, best: float, by_policy: dict[str, dict[str, float]]) -> list[str]:
    ours = by_policy["router"]
    others = {name: figures for name, figures in by_policy.items() if name != "router"}
    ratios = [
        f"{ours[figure] / other[figure]:.2f}"
        for figure in ("ttft_mean_s", "ttft_p99_s")
        for other in others.values()
    ]
    return [f"{n_engines}", f"{share:g}", f"{ours['hit_rate'] / best:.2f}", *ratios]


def _bars(bars: list[Sequence[str]]) -> Table:
    others = [name for name in POLICIES if name != "router"]
    return Table(
        "The router over others",
        ["engines", "load", "hit rate / one big cache",
         *(f"TTFT {part} / {name}" for part in ("mean", "p99") for name in others)],
        bars,
        note="Below 1 the router is better. A load of 1 is as many requests per second and engine as one "
        "answers when all come at once.",
    )  # fmt: skip
