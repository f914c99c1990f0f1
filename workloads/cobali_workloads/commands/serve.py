"""`cobali bench serve`: load against any OpenAI-compatible servers, closed or open loop."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cobali_ray.command_line import Key
from cobali_ray.errors import ConfigError
from cobali_workloads.commands.options import OUT, NRounds, Out, Quick
from cobali_workloads.commands.serve_report import figures_of, samples_of, tables_of
from cobali_workloads.inside.record import RunRecord
from cobali_workloads.load.options import LoadOptions, Workload
from cobali_workloads.load.run import ServeResult, run_serve
from cobali_workloads.load.target import connect, parse_target
from cobali_workloads.report.report import Report, deliver

Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        "--url",
        metavar="NAME=URL",
        help="A server to measure, optionally with a name for its column in the report; repeatable.",
    ),
]


def serve(
    target: Targets = None,
    shape: Annotated[
        Path | None, typer.Option(help="A load shape, workloads/NAME.yaml; the options below override it.")
    ] = None,
    loop: Annotated[
        str | None, typer.Option(help="closed: clients that wait; open: sent by the clock.")
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(help="Closed loop: levels, such as 1,2,4,8.  [default: 1 to 128]")
    ] = None,
    requests_per_client: Annotated[
        int | None, typer.Option(min=1, help="Closed loop: waves per level.  [default: 4]")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop: requests per second.")] = None,
    burstiness: Annotated[
        float | None, typer.Option(help="Open loop: 1 is Poisson, less is burstier.")
    ] = None,
    n_requests: Annotated[
        int | None, typer.Option("--requests", min=1, help="Open loop: how many.  [default: 100]")
    ] = None,
    prompt_tokens: Annotated[
        str | None, typer.Option(help="Prompt length, such as 128 or 32-96.  [default: 128]")
    ] = None,
    output_tokens: Annotated[
        str | None, typer.Option(help="Answer length, such as 64 or 16-96.  [default: 64]")
    ] = None,
    prompts_file: Annotated[
        Path | None, typer.Option(help="Prompts from a file, separated by blank lines.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Replay CSV or JSONL: timestamp, input_length, output_length.")
    ] = None,
    speed: Annotated[float, typer.Option(min=0.01, help="Replay this many times as fast.")] = 1.0,
    prefix: Annotated[
        str | None,
        typer.Option(metavar="TOKENSxGROUPS", help="Shared prefixes before the prompts, such as 1024x8."),
    ] = None,
    turns: Annotated[
        int | None, typer.Option(min=2, help="Conversations of this many turns (closed loop).")
    ] = None,
    intruder: Annotated[
        str | None, typer.Option(help="A long prompt beside the load: every=2,prompt=4096,output=16.")
    ] = None,
    slo: Annotated[
        str | None, typer.Option(help="Targets for goodput, seconds: ttft=0.5,tpot=0.05,itl=0.2.")
    ] = None,
    endpoint: Annotated[str, typer.Option(help="completions or chat.")] = "completions",
    model: Annotated[
        str | None, typer.Option(help="Model name to ask for.  [default: the first a server lists]")
    ] = None,
    key: Key = None,
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Requests before each run that do not count.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of lengths, times and texts.")] = None,
    timeout_s: Annotated[float, typer.Option(help="Longest wait for one answer.")] = 600.0,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Keep the first target's ticks in this file, for cobali simulate and cobali trace."
        ),
    ] = None,
    rounds: NRounds = 3,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Measure TTFT, ITL, TPOT, E2E, throughput and goodput over HTTP, targets in turn.

    Example: cobali bench serve --target ours=http://127.0.0.1:8000 --concurrency 1,4,16
    """
    if endpoint not in {"completions", "chat"}:
        raise ConfigError("--endpoint", f"must be completions or chat, got {endpoint!r}")
    workload = LoadOptions(
        shape=shape, loop=loop, concurrency=concurrency, requests_per_client=requests_per_client,
        n_requests=n_requests, rate=rate, burstiness=burstiness, prompt_tokens=prompt_tokens,
        output_tokens=output_tokens, prompts_file=prompts_file, trace=trace, speed=speed, prefix=prefix,
        turns=turns, intruder=intruder, slo=slo, warmup=warmup, seed=seed, quick=quick,
    ).workload()  # fmt: skip
    named = [parse_target(text) for text in target or ["cobali=http://127.0.0.1:8000"]]
    if len({name for name, _ in named}) < len(named):
        raise ConfigError("--target", "two targets have the same name")
    targets = [
        connect(name, url, endpoint=endpoint, model=model, api_key=key)  # type: ignore[arg-type]
        for name, url in named
    ]
    recording = RunRecord(record, targets[0].url, key) if record else nullcontext()
    with recording:
        result = run_serve(workload, targets, n_rounds=1 if quick else rounds, timeout_s=timeout_s)
    report = report_of(result, f"serve-{workload.shape.name}", f"Serving {workload.shape.name}")
    deliver(report, out)


def report_of(result: ServeResult, name: str, title: str) -> Report:
    """Return the report of a load run."""
    return Report(
        name=name,
        title=title,
        command=command_line(),
        config={
            "workload": describe(result.workload),
            "targets": [
                {"name": t.name, "url": t.url, "model": t.model, "endpoint": t.endpoint}
                for t in result.targets
            ],
        },
        tables=tables_of(result),
        samples=samples_of(result),
        figures=figures_of(result),
        notes=[result.workload.shape.description, *result.notes],
    )


def describe(workload: Workload) -> dict[str, object]:
    """Return the shape JSON-ready."""
    return asdict(workload.shape) | {"n_texts": len(workload.texts), "n_trace": len(workload.trace)}


def command_line() -> str:
    """Return how this process was called, its key left out."""
    words = ["cobali", *sys.argv[1:]]
    for i, word in enumerate(words):
        if word == "--key" or word.startswith("--key="):
            words[i : i + 1 if "=" in word else i + 2] = ["--key", "..."]
    return shlex.join(words)
