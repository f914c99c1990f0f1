"""`cobali run`: the command line of the offline runner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from cobali_ray.cli import Model, Setting
from cobali_ray.command_line import given_settings
from cobali_ray.core.request.limits import MAX_SLOTS
from cobali_workloads.run import RunOptions, run_command


def run(
    prompts: Annotated[
        Path, typer.Option(help="File of prompts, separated by blank lines.", exists=True, dir_okay=False)
    ],
    model: Model = None,
    mode: Annotated[
        Literal["seq", "cont"], typer.Option(help="One request at a time, or continuous batching.")
    ] = "cont",
    max_slots: Annotated[int, typer.Option(min=1, max=MAX_SLOTS, help="Requests computed together.")] = 16,
    ctx: Annotated[
        int, typer.Option(help="KV cells in total; a request gets ctx / max-slots tokens.")
    ] = 16384,
    prefill_chunk_tokens: Annotated[
        int, typer.Option(min=0, help="Most prompt tokens of one request in one tick; 0: whole prompts.")
    ] = 512,
    max_new: Annotated[int, typer.Option(min=1, help="Most new tokens per prompt.")] = 64,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Run sequentially first and print the speed-up.")
    ] = False,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Let every answer run to --max-new tokens.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only this many prompts, the first ones.")
    ] = None,
    setting: Setting = None,
    show: Annotated[bool, typer.Option("--show", help="Print the answers.")] = False,
    json_out: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; tables go to stderr.")
    ] = False,
) -> None:
    """Run a file of prompts through the engine in process, with greedy sampling, and report times.

    Examples:
      cobali run --prompts workloads/prompts_16.txt --baseline --ignore-eos
      cobali run --prompts mine.txt --model qwen2.5:0.5b --max-new 32 --show
    """
    options = RunOptions(
        prompts=prompts,
        sequential=mode == "seq",
        max_slots=max_slots,
        ctx=ctx,
        prefill_chunk=prefill_chunk_tokens,
        max_new=max_new,
        baseline=baseline,
        ignore_eos=ignore_eos,
        limit=limit,
        settings=given_settings(setting, model=model),
    )
    report = run_command(options, Console(stderr=json_out), show=show)
    if json_out:
        typer.echo(json.dumps(report, indent=2))
