"""`cobali simulate`: how many engines a load needs, without computing anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
import yaml

from cobali_ray.command_line import assignment
from cobali_ray.errors import ConfigError
from cobali_ray.settings import read_settings
from cobali_workloads.commands.options import OUT, Out, numbers
from cobali_workloads.commands.serve import command_line, describe
from cobali_workloads.commands.serve_report import figures_of, samples_of, tables_of
from cobali_workloads.inside.asks import asks_of, chatting, replayed
from cobali_workloads.inside.policies import POLICIES
from cobali_workloads.inside.simulated import SimulatedRun, one_cache, play, timelines_of, with_limits
from cobali_workloads.load.jobs import LoadCase, cases_of
from cobali_workloads.load.options import DEFAULT, LoadOptions, Workload, parse_slo
from cobali_workloads.load.run import ServeResult, contender
from cobali_workloads.load.run import figures_of as numbers_of
from cobali_workloads.load.target import Target
from cobali_workloads.report.report import Report, Table, deliver
from cobali_workloads.report.rounds import Rounds
from cobali_workloads.simulate.fleet import SimulatedRequest
from cobali_workloads.simulate.ticks import TickProfile, read_times, write_times

NOTE = (
    "Simulated: the product's scheduler and router, ticks as long as the recorded ones. A client beside the "
    "engines: HTTP, the wire and tokenising are not in it."
)
ModelTime = Annotated[
    Path,
    typer.Option(
        help="Tick times, or a run recorded by cobali bench serve --record.", exists=True, dir_okay=False
    ),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Another limit of the engine, such as n_slots=32; repeatable."
    ),
]
Shrink = Annotated[int, typer.Option(min=1, help="Divide the lengths of a trace with hash_ids by this.")]


def simulate(
    model_time: ModelTime,
    engines: Annotated[str, typer.Option(help="Numbers of engines, such as 1,2,4.")] = "1",
    policy: Annotated[str, typer.Option(help=f"{', '.join(POLICIES)}, or all.")] = "router",
    shape: Annotated[Path | None, typer.Option(help="A load shape; the options below override it.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Replay CSV or JSONL, hash_ids too if it has them.")
    ] = None,
    speed: Annotated[float, typer.Option(min=0.001, help="Replay this many times as fast.")] = 1.0,
    shrink: Shrink = 1,
    chats: Annotated[
        float | None, typer.Option(min=0.001, help="Generated chats instead, this many beginning per second.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Minutes of generated chats.")] = 10.0,
    rate: Annotated[float | None, typer.Option(help="Open loop: requests per second.")] = None,
    n_requests: Annotated[int | None, typer.Option("--requests", min=1, help="Open loop: how many.")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Closed loop: levels, such as 1,2,4,8.")] = None,
    prompt_tokens: Annotated[str | None, typer.Option(help="Prompt length, such as 128 or 32-96.")] = None,
    output_tokens: Annotated[str | None, typer.Option(help="Answer length, such as 64 or 16-96.")] = None,
    slo: Annotated[
        str | None, typer.Option(help="Targets for goodput, seconds: ttft=0.5,tpot=0.05,itl=0.2.")
    ] = None,
    itl_target_ms: Annotated[str, typer.Option(help="The engines' setting: a number, auto or off.")] = "auto",
    limit: Limits = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of lengths, times and texts.")] = None,
    out: Out = OUT,
) -> None:
    """Play a load on so many engines without computing anything, and report as cobali bench serve does.

    Example: cobali simulate --model-time run.json --chats 0.5 --engines 1,2,4 --slo ttft=1,itl=0.1
    """
    times = with_limits(read_times(model_time), dict(assignment(text) for text in limit or []))
    settings = read_settings({"itl_target_ms": yaml.safe_load(itl_target_ms)})
    if policy != "all" and policy not in POLICIES:
        raise ConfigError("--policy", f"must be one of {', '.join(POLICIES)} or all, got {policy!r}")
    names = list(POLICIES) if policy == "all" else [policy]
    if chats is None:
        workload = LoadOptions(
            shape=shape, trace=trace, speed=speed, rate=rate, n_requests=n_requests, concurrency=concurrency,
            prompt_tokens=prompt_tokens, output_tokens=output_tokens, slo=slo, seed=seed,
        ).workload()  # fmt: skip
    else:
        workload = chat_load(chats, minutes, seed or 0, slo)
    rounds, rows = Rounds(), list[Sequence[str]]()
    cases, targets = cases_of(workload.shape), list[Target]()
    result = ServeResult(workload, targets, cases, rounds)
    for n_engines in numbers("--engines", engines):
        for name in names:
            who = f"{n_engines} x {name}" if len(names) > 1 else f"{n_engines} engine{'s' * (n_engines > 1)}"
            targets.append(_nobody(who))
            for case in cases:
                warmup, asks = load_of(workload, case, shrink=shrink, chats=chats, seconds=60 * minutes)
                played = play(times, n_engines, POLICIES[name], asks, warmup=warmup, settings=settings)
                timelines = timelines_of(played)
                result.timelines[who, case.label] = [timelines]
                rounds.figures[contender(who, case)] = [numbers_of(timelines, workload.shape.slo)]
                rows.append([who, case.label, *_columns(times, n_engines, played)])
    report = Report(
        name="simulate",
        title=f"Simulated: {workload.shape.name}",
        command=command_line(),
        config={"workload": describe(workload), "times": asdict(times), "seed": seed},
        tables=[_table(rows), *tables_of(result)],
        samples=samples_of(result),
        figures=figures_of(result),
        notes=[workload.shape.description, NOTE],
    )
    deliver(report, out)
    write_times(times, out / "model-time.json")


def chat_load(per_s: float, minutes: float, seed: int, slo: str | None) -> Workload:
    """Return what stands in a report for made-up chats."""
    shape = replace(
        DEFAULT,
        name="chats",
        description=f"Made-up chats and documents: {per_s:g} begin per second, for {minutes:g} minutes.",
        seed=seed,
        kind="open",
        rate_rps=per_s,
        concurrency=(),
    )
    return Workload(replace(shape, slo=parse_slo(slo)) if slo else shape)


def load_of(
    workload: Workload, case: LoadCase, *, shrink: int, chats: float | None, seconds: float
) -> tuple[list[SimulatedRequest], list[SimulatedRequest]]:
    """Return the warm-up and the load of one case."""
    if chats is not None:
        return [], chatting(seconds, workload.shape.seed, chats)
    if workload.trace and workload.trace[0].hash_ids:
        return [], replayed(workload.trace, workload.shape.seed, shrink)
    return asks_of(workload, case, case.label)


def _nobody(name: str) -> Target:
    """Return who stands in a report for engines to which nothing is sent."""
    return Target(name=name, url="", host="", port=0, address="", tls=False, model="simulated")


def _columns(times: TickProfile, n_engines: int, played: SimulatedRun) -> list[str]:
    best = one_cache([story.ask for story in played.stories], n_engines, times.limits)
    return [
        f"{played.hit_rate:.1%}",
        f"{best:.1%}",
        f"{played.virtual_s:,.0f}",
        f"{played.wall_s:.1f}",
        f"{played.n_ticks / max(played.wall_s, 1e-9):,.0f}",
    ]


def _table(rows: list[Sequence[str]]) -> Table:
    return Table(
        "What was simulated",
        [
            "target",
            "load",
            "hit rate",
            "of one big cache",
            "virtual s",
            "wall s",
            "ticks/s of wall",
        ],
        rows,
        note="One big cache: as large as all engines' slots and host memory, asked in the same order.",
    )
