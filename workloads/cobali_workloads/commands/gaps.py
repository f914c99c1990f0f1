"""`cobali bench gaps`: the time between two pieces of device work, as in CoBaLI's Tables 3, 4, 8 and 9."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cobali_workloads.commands.options import DEFAULT_MODEL, OUT, NRounds, Out, Quick, spell, texts_of
from cobali_workloads.inside.gap_sources import read_nsight, read_tick_log
from cobali_workloads.inside.gaps import Busy, GapStats, gaps_of, passes_of, sampled, window
from cobali_workloads.inside.runs import EngineRun, greedy_requests, opened, run_once
from cobali_workloads.report import plots
from cobali_workloads.report.report import Report, Table, deliver, with_range
from cobali_workloads.report.rounds import Rounds, run_rounds

N_WINDOW = 10
N_TIMELINE = 400
QUICK_PROMPTS, QUICK_NEW = 6, 12
FORWARD_NOTE = (
    "A gap lies between the end of one forward pass and the start of the next; waiting for requests is "
    "left out. The end is when the host has seen the pass end, so on a GPU a gap is what the host "
    "still does by itself."
)
KERNEL_NOTE = "A gap lies between the end of one CUDA kernel and the start of the next on the same device."


def gaps(
    nsight: Annotated[
        list[Path] | None, typer.Option(help="SQLite export of Nsight Systems; repeatable.")
    ] = None,
    kernel: Annotated[str, typer.Option(help="Only kernels whose name contains this.")] = "",
    ticks: Annotated[
        list[Path] | None, typer.Option(help="A file written by the setting log_ticks; repeatable.")
    ] = None,
    model: Annotated[str, typer.Option(help="Model of the live run, if no file is given.")] = DEFAULT_MODEL,
    prompts: Annotated[Path, typer.Option(help="Prompts of the live run.")] = Path(
        "workloads/prompts_186.txt"
    ),
    slots: Annotated[int, typer.Option(min=1, help="Slots of the live run's continuous mode.")] = 16,
    max_new: Annotated[int, typer.Option(min=1, help="Most new tokens per prompt.")] = 64,
    limit: Annotated[int, typer.Option(min=1, help="Prompts of the live run.")] = 48,
    rounds: NRounds = 3,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Measure the gaps between forward passes or kernels: from files, or from a run in this process."""
    files = "".join(f" --nsight {p}" for p in nsight or []) + "".join(f" --ticks {p}" for p in ticks or [])
    if files:
        sources = {f"{p.name}, device {i}": s for p in nsight or [] for i, s in _kernels(p, kernel)}
        sources |= {path.name: read_tick_log(path) for path in ticks or []}
        notes = [*([KERNEL_NOTE] if nsight else []), *([FORWARD_NOTE] if ticks else [])]
        command = spell("gaps", kernel=kernel or None) + files
        deliver(_report(command, sources, notes, {"files": files.split()}), out)
        return
    if quick:
        rounds, limit, max_new = 1, QUICK_PROMPTS, QUICK_NEW
    texts = texts_of(prompts, limit)
    measured, runs = _live(model, texts, slots, max_new, rounds, n_warmup=0 if quick else 1)
    command = spell(
        "gaps", model=model, prompts=prompts, slots=slots, max_new=max_new, limit=limit, rounds=rounds
    )
    config = {"model": model, "prompts": len(texts), "slots": slots, "max_new": max_new}
    sources = {name: passes_of(found[-1].ticks) for name, found in runs.items()}
    report = _report(command, sources, [FORWARD_NOTE, *measured.notes()], config)
    report.tables.append(_rounds_table(measured))
    report.samples["rounds"] = measured.as_json()
    deliver(report, out)


def _kernels(path: Path, kernel: str) -> list[tuple[int, list[Busy]]]:
    return list(read_nsight(path, kernel=kernel).items())


def _live(
    model: str, texts: list[str], slots: int, max_new: int, n_rounds: int, *, n_warmup: int
) -> tuple[Rounds, dict[str, list[EngineRun]]]:
    runs: dict[str, list[EngineRun]] = {}
    with opened(model, n_slots=slots, n_ctx=1024) as (backend, settings):
        prompts = [backend.words.tokenize(text) for text in texts]

        def run(name: str) -> dict[str, float]:
            requests = greedy_requests(prompts, max_tokens=max_new, ignore_eos=True)
            if name == "SEQ":  # one request after the other, on the same context
                done = [run_once(backend, settings, [request]) for request in requests]
                runs.setdefault(name, []).append(done[0])
                for more in done[1:]:
                    _join(done[0], more)
            else:
                runs.setdefault(name, []).append(run_once(backend, settings, requests))
            stats = GapStats.of(passes_of(runs[name][-1].ticks))
            if stats is None:
                return dict.fromkeys(("median_s", "busy_share"), float("nan"))
            return {"median_s": stats.median_s, "busy_share": stats.busy_share}

        contenders = {name: partial(run, name) for name in ("SEQ", "CONT")}
        rounds = run_rounds(contenders, n_rounds=n_rounds, n_warmup=n_warmup)
    return rounds, runs


def _join(run: EngineRun, more: EngineRun) -> None:
    # Every run counts its ticks from 0, which is what marks the wait between two requests.
    run.ticks.extend(more.ticks)


def _report(
    command: str, sources: dict[str, list[Busy]], notes: list[str], config: dict[str, object]
) -> Report:
    columns = (
        "source",
        "gaps",
        "mean us",
        "median us",
        "p75 us",
        "p90 us",
        "p95 us",
        "max us",
        "device busy",
    )
    table = Table("Gaps between device work", columns)
    found = {name: gaps_of(spans) for name, spans in sources.items()}
    for name, spans in sources.items():
        stats = GapStats.of(spans)
        if stats is None:
            table.rows.append((name, "0", *("-",) * 7))
            continue
        values = (stats.mean_s, stats.median_s, stats.p75_s, stats.p90_s, stats.p95_s, stats.max_s)
        table.rows.append(
            (name, str(stats.n), *(f"{1e6 * v:.1f}" for v in values), f"{stats.busy_share:.2%}")
        )
    zeros = {name: min((s.start_s for s in spans), default=0.0) for name, spans in sources.items()}
    over_time = {
        name: [(gap.start_s - zeros[name], 1e6 * gap.length_s) for gap in sampled(gaps, N_TIMELINE)]
        for name, gaps in found.items()
    }
    rows = {
        name: {"device": [(s.start_s, s.end_s - s.start_s) for s in window(spans, N_WINDOW)]}
        for name, spans in sources.items()
    }
    return Report(
        name="gaps",
        title="Gaps between device work",
        command=command,
        config=dict(config),
        tables=[table],
        samples={"gaps_s": {name: [gap.length_s for gap in gaps] for name, gaps in found.items()}},
        figures={
            "histogram": plots.histogram(
                "Gaps", "us", {n: [1e6 * g.length_s for g in gaps] for n, gaps in found.items()}
            ),
            "over-time": plots.dots("Gaps over time", "s", "us", over_time),
            "timeline": plots.timeline(f"{N_WINDOW} neighbouring spans of device work", rows),
        },
        notes=notes,
    )


def _rounds_table(rounds: Rounds) -> Table:
    table = Table("Round by round: median (min..max)", ("mode", "median gap us", "device busy %"))
    for name in rounds.figures:
        gaps_us = [1e6 * value for value in rounds.values(name, "median_s")]
        busy = [100 * value for value in rounds.values(name, "busy_share")]
        table.rows.append((name, with_range(gaps_us, ""), with_range(busy, "")))
    return table
