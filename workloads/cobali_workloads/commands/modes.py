"""`cobali bench modes`: CoBaLI's Table 2 beside ours, latency distributions, and the best chunk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from cobali_workloads.commands.options import (
    DEFAULT_MODEL,
    OUT,
    Model,
    NRounds,
    Out,
    Quick,
    numbers,
    spell,
    texts_of,
)
from cobali_workloads.inside.modes import (
    PUBLISHED,
    ModesResult,
    OfflineLoad,
    best,
    measure_chunks,
    measure_modes,
    same_work,
    within_noise,
)
from cobali_workloads.report import plots
from cobali_workloads.report.report import Report, Table, deliver, ms, with_range

if TYPE_CHECKING:  # an extra, which --help does without
    from matplotlib.figure import Figure

LATENCIES = (("queue", "queue_s"), ("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("E2E", "e2e_s"))
PUBLISHED_NOTE = (
    "Published: Qwen2.5-0.5B-Instruct Q5_K_M on an RTX 4070. Its walls may include loading the model, "
    "ours do not: compare the ratios."
)
QUICK_PROMPTS, QUICK_LONG, QUICK_NEW, QUICK_CHUNKS = 8, 2, 8, "64,256"


def modes(
    model: Model = DEFAULT_MODEL,
    prompts: Annotated[Path, typer.Option(help="Prompts of the table, separated by blank lines.")] = Path(
        "workloads/prompts_186.txt"
    ),
    long_prompts: Annotated[Path, typer.Option(help="Prompts of the chunk sweep.")] = Path(
        "workloads/prompts_long_32.txt"
    ),
    slots: Annotated[int, typer.Option(min=1, help="Requests computed together in the CONT rows.")] = 16,
    ctx: Annotated[int, typer.Option(help="KV cells of all slots together, for the table.")] = 16384,
    max_new: Annotated[int, typer.Option(min=1, help="Most new tokens per prompt.")] = 64,
    chunks: Annotated[str, typer.Option(help="Chunk sizes to sweep.")] = "32,64,128,256,512,1024,2048",
    rounds: NRounds = 3,
    ignore_eos: Annotated[bool, typer.Option(help="Let every answer run to --max-new tokens.")] = False,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Compare one request at a time with continuous batching, and find the best prefill chunk."""
    files = {"prompts": prompts, "long_prompts": long_prompts}
    command = spell("modes", model=model, slots=slots, ctx=ctx, max_new=max_new, chunks=chunks,
                    rounds=rounds, ignore_eos=ignore_eos, quick=quick, **files)  # fmt: skip
    n_warmup = 0 if quick else 1
    if quick:
        rounds, max_new, chunks = 1, min(max_new, QUICK_NEW), QUICK_CHUNKS
    short = OfflineLoad(texts_of(prompts, QUICK_PROMPTS if quick else None), slots, max_new, ignore_eos)
    long = OfflineLoad(texts_of(long_prompts, QUICK_LONG if quick else None), slots, max_new, ignore_eos)
    sizes = numbers("--chunks", chunks)
    table = measure_modes(model, short, ctx=ctx, n_rounds=rounds, n_warmup=n_warmup)
    sweep = measure_chunks(model, long, chunks=sizes, n_rounds=rounds, n_warmup=n_warmup)
    deliver(_report(command, model, table, sweep, {"slots": slots, "ctx": ctx, "max_new": max_new}), out)


def _report(
    command: str, model: str, table: ModesResult, sweep: ModesResult, config: dict[str, int | str]
) -> Report:
    return Report(
        name="modes",
        title="Sequential and continuous batching (CoBaLI, Table 2)",
        command=command,
        config=config | {"model": model, "lengths": _lengths(table), "long_lengths": _lengths(sweep)},
        tables=[_modes_table(table), _latency_table(table), _chunks_table(sweep)],
        samples={
            "modes": table.rounds.as_json(),
            "chunks": sweep.rounds.as_json(),
            "requests": {"modes": _per_request(table), "chunks": _per_request(sweep)},
        },
        figures=_figures(table, sweep),
        notes=[
            PUBLISHED_NOTE,
            same_work(table.lengths),
            *_best_notes(sweep),
            *table.rounds.notes(),
            *sweep.rounds.notes(),
        ],
    )


def _lengths(measured: ModesResult) -> str:
    lengths = measured.lengths
    return f"{len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens, mean {np.mean(lengths):.1f}"


def _modes_table(measured: ModesResult) -> Table:
    rounds = measured.rounds
    columns = ("mode", "wall s", "user s", "output tok/s", "ITL p99 ms", "speed-up (min..max)",
               "published wall s", "user s", "speed-up")  # fmt: skip
    table = Table("Table 2: modes", columns, note=f"{_lengths(measured)}.")
    for name, published in PUBLISHED.items():
        table.rows.append(
            (
                name,
                f"{rounds.median(name, 'wall_s'):.2f}",
                f"{rounds.median(name, 'user_s'):.2f}",
                f"{rounds.median(name, 'output_tokens_per_s'):.1f}",
                ms(rounds.median(name, "itl_p99_s")),
                with_range(rounds.ratios("SEQ", name, "wall_s")),
                f"{published.wall_s:.2f}",
                f"{published.user_s:.2f}",
                f"{published.speed_up:.2f}x",
            )
        )
    return table


def _latency_table(measured: ModesResult) -> Table:
    columns = ("mode", *(f"{name} p50 / p90 / p99" for name, _ in LATENCIES))
    note = (
        "All requests are submitted at once, so queue time is most of E2E; milliseconds, all rounds together."
    )
    table = Table("Per request, ms", columns, note=note)
    for mode in measured.runs:
        cells = [_shares(_values(measured, mode, field)) for _, field in LATENCIES]
        table.rows.append((mode, *cells))
    return table


def _values(measured: ModesResult, name: str, field: str) -> list[float]:
    requests = [stats for run in measured.runs[name] for stats in run.report.requests.values()]
    return [value for stats in requests if (value := getattr(stats, field)) is not None]


def _shares(values: list[float]) -> str:
    return " / ".join(ms(float(v)) for v in np.quantile(values, (0.5, 0.9, 0.99))) if values else "-"


def _chunks_table(measured: ModesResult) -> Table:
    rounds = measured.rounds
    columns = ("chunk", "wall s", "output tok/s (min..max)", "ITL p50 ms", "ITL p99 ms (min..max)",
               "ITL max ms", "TTFT p50 ms")  # fmt: skip
    table = Table("Chunk size on long prompts", columns, note=f"{_lengths(measured)}.")
    for name in rounds.figures:
        p99 = [1000 * value for value in rounds.values(name, "itl_p99_s")]
        table.rows.append(
            (
                name,
                f"{rounds.median(name, 'wall_s'):.2f}",
                with_range(rounds.values(name, "output_tokens_per_s"), ""),
                ms(rounds.median(name, "itl_p50_s")),
                with_range(p99, ""),
                ms(rounds.median(name, "itl_max_s")),
                ms(rounds.median(name, "ttft_p50_s")),
            )
        )
    return table


def _best_notes(sweep: ModesResult) -> list[str]:
    fastest, smoothest = best(sweep)
    notes = []
    for what, figure, winner, highest in (
        ("throughput", "output_tokens_per_s", fastest, True),
        ("p99 ITL", "itl_p99_s", smoothest, False),
    ):
        ties = within_noise(sweep, figure, winner, highest=highest)
        also = f"; not told apart from it by the rounds: {', '.join(map(str, ties))}" if ties else ""
        notes.append(f"Best chunk for {what}: {winner}{also}.")
    return notes


def _per_request(measured: ModesResult) -> dict[str, list[list[dict[str, object]]]]:
    return {
        name: [[stats._asdict() for stats in run.report.requests.values()] for run in runs]
        for name, runs in measured.runs.items()
    }


def _figures(table: ModesResult, sweep: ModesResult) -> dict[str, Figure]:
    figures = {}
    for label, field in LATENCIES[1:]:
        series = {name: [1000 * v for v in _values(table, name, field)] for name in table.runs}
        figures[label.lower()] = plots.shares(f"{label} per request", "ms", series, log=True)
    gaps = {name: [1000 * g for run in runs for g in run.gaps_s] for name, runs in sweep.runs.items()}
    figures["itl-by-chunk"] = plots.shares("ITL by chunk size, long prompts", "ms", gaps, log=True)
    rounds = sweep.rounds
    figures["chunks"] = plots.two_scales(
        "Chunk size: throughput against the longest gaps",
        "chunk, tokens",
        ("output tok/s", [(int(n), rounds.median(n, "output_tokens_per_s")) for n in rounds.figures]),
        ("p99 ITL, ms", [(int(n), 1000 * rounds.median(n, "itl_p99_s")) for n in rounds.figures]),
    )
    return figures
