"""`cobali run`: a prompts file through the engine in this process, as CoBaLI's runner does it."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cobali_ray import __version__
from cobali_ray.backend.port import Backend
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.engine.opening import engine_on, model_path, open_backend
from cobali_ray.errors import ConfigError
from cobali_ray.models.commands import progress_bars
from cobali_ray.settings import EngineSettings, read_settings, read_text
from cobali_workloads.load.prompts import read_prompts
from cobali_workloads.offline import ARRIVAL, SEQUENTIAL, RunReport, run_offline

SHARES = (0.5, 0.9, 0.99)
LATENCIES = ("queue_s", "ttft_s", "tpot_s", "e2e_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of `cobali run`. Counts are tokens unless the name says otherwise."""

    prompts: Path
    sequential: bool
    max_slots: int
    ctx: int
    """KV cells of all slots together, as CoBaLI's --ctx."""
    prefill_chunk: int
    max_new: int
    baseline: bool = False
    ignore_eos: bool = False
    limit: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def engine_settings(self, *, sequential: bool) -> EngineSettings:
        """Return the engine's settings for one run. A sequential run has one slot of the same size."""
        n_ctx = self.ctx // self.max_slots
        if n_ctx < 16:
            raise ConfigError("--ctx", f"{self.ctx} cells / {self.max_slots} slots = {n_ctx} tokens each")
        values: dict[str, Any] = {
            "n_slots": self.max_slots,
            "n_ctx": n_ctx,
            "prefill_chunk": self.prefill_chunk,
            "itl_target_ms": "off",
        }
        return read_settings(values | self.settings | (SEQUENTIAL if sequential else {}))


def run_command(options: RunOptions, console: Console, *, show: bool = False) -> dict[str, Any]:
    """Run once, or twice with a baseline; print tables and return everything as one JSON-ready dict."""
    texts = read_prompts(read_text("--prompts", options.prompts))[: options.limit]
    runs = {"sequential": True} if options.baseline or options.sequential else {}
    if not options.sequential:
        runs["continuous"] = False
    reports: dict[str, RunReport] = {}
    for name, sequential in runs.items():
        reports[name] = _run(options, texts, console, name, sequential=sequential)
    _print(console, options, reports)
    if show:
        last = list(reports.values())[-1]
        for i, text in enumerate(texts):
            console.rule(f"prompt {i}")
            console.print(text, style="dim", markup=False, highlight=False)
            console.print(last.texts[f"{i}"] or last.failed.get(f"{i}", ""), markup=False, highlight=False)
    return _as_json(options, reports)


def _run(
    options: RunOptions, texts: list[str], console: Console, name: str, *, sequential: bool
) -> RunReport:
    settings = options.engine_settings(sequential=sequential)
    with progress_bars() as progress:
        path = model_path(settings, progress)
    backend = open_backend(settings, path)
    try:
        requests = _requests(options, texts, backend)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(name, total=len(requests))
            make = partial(engine_on, backend, settings, prefill_order=ARRIVAL)
            return run_offline(make, requests, on_end=lambda _: bar.advance(task))
    finally:
        backend.close()


def _requests(options: RunOptions, texts: list[str], backend: Backend) -> list[Request]:
    sampling = SamplingParams(temperature=0.0, ignore_eos=options.ignore_eos)
    return [
        Request(
            request_id=str(i),
            prompt=tuple(backend.words.tokenize(text)),
            max_tokens=options.max_new,
            sampling=sampling,
        )
        for i, text in enumerate(texts)
    ]


def _print(console: Console, options: RunOptions, reports: dict[str, RunReport]) -> None:
    first = next(iter(reports.values()))
    model = options.engine_settings(sequential=options.sequential).model
    table = Table(title=f"{options.prompts.name} on {model}: {len(first.texts)} prompts")
    for column in (
        "mode",
        "wall s",
        "user s",
        "prompt",
        "output",
        "tok/s",
        "ticks",
        "speed-up",
    ):
        table.add_column(column, justify="left" if column == "mode" else "right")
    for name, report in reports.items():
        speed_up = f"{first.wall_s / report.wall_s:.2f}x" if len(reports) > 1 else "-"
        table.add_row(
            name,
            f"{report.wall_s:.2f}",
            f"{report.user_s:.2f}",
            str(report.n_prompt),
            str(report.n_output),
            f"{report.output_tokens_per_s:.1f}",
            str(report.n_ticks),
            speed_up,
        )
    console.print(table)
    latencies = Table(title="Per request, milliseconds (p50 / p90 / p99)")
    for column in ("mode", "queue", "TTFT", "TPOT", "E2E"):
        latencies.add_column(column, justify="left" if column == "mode" else "right")
    for name, report in reports.items():
        latencies.add_row(name, *(_in_ms(report.percentiles(what, SHARES)) for what in LATENCIES))
    console.print(latencies)
    for name, report in reports.items():
        console.print(f"{name}: {report.n_computed:,} tokens computed, {report.n_preempted:,} preemptions")
        for request_id, reason in report.failed.items():
            console.print(f"[yellow]{name}: prompt {request_id} failed:[/yellow] {reason}")


def _in_ms(percentiles: tuple[float, ...] | None) -> str:
    if percentiles is None:
        return "-"
    return " / ".join(f"{1000 * value:.1f}" for value in percentiles)


def _as_json(options: RunOptions, reports: dict[str, RunReport]) -> dict[str, Any]:
    runs = {}
    for name, report in reports.items():
        runs[name] = {
            "wall_s": report.wall_s,
            "user_s": report.user_s,
            "n_prompt": report.n_prompt,
            "n_output": report.n_output,
            "output_tokens_per_s": report.output_tokens_per_s,
            "n_ticks": report.n_ticks,
            "n_preempted": report.n_preempted,
            "n_computed": report.n_computed,
            "host_s_per_tick": report.host_s / max(report.n_ticks, 1),
            "percentiles_s": {
                what: dict(zip(map(str, SHARES), values, strict=True))
                for what in LATENCIES
                if (values := report.percentiles(what, SHARES))
            },
            "requests": {i: stats._asdict() for i, stats in report.requests.items()},
            "texts": report.texts,
            "failed": report.failed,
        }
    settings = options.engine_settings(sequential=options.sequential).model_dump(mode="json")
    walls = [report.wall_s for report in reports.values()]
    return {
        "cobali_ray": __version__,
        "machine": platform.platform(),
        "model": settings["model"],
        "prompts": options.prompts.name,
        "settings": settings,
        "runs": runs,
        "speed_up": walls[0] / walls[1] if len(walls) > 1 else None,
    }
