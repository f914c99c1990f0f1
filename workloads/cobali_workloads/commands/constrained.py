"""`cobali bench constrained`: what structured output adds to a tick, and compiling to the gaps of streams."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from cobali_ray.engine.opening import engine_on
from cobali_workloads.commands.options import OUT, Model, NRounds, Out, Quick, spell
from cobali_workloads.inside.constrained import CASES, Bound, CompileGaps, Draws, FreeStreams, StrayCase
from cobali_workloads.inside.runs import opened
from cobali_workloads.report import plots
from cobali_workloads.report.report import Report, Table, deliver, with_range
from cobali_workloads.report.rounds import Figures, Rounds, run_rounds

TARGET_P50_S, TARGET_P95_S = 0.2e-3, 2e-3
QUICK_TICKS = 6
ALONE, COMPILING = "none", "compiling"
DRAW_NOTE = (
    "Each tick is drawn twice on the same logits, free and bound, in processor time. Rows answer by four "
    "schemas in turn: a person, an order with a list, a call's arguments, any object. `refused` is the share "
    "of rows whose likeliest token the schema refused. The targets are for a model that mostly fits by "
    f"itself, as one does that was asked for JSON: {1e3 * TARGET_P50_S:g} ms at the median, "
    f"{1e3 * TARGET_P95_S:g} ms at p95."
)


def constrained(
    model: Model = "builtin:synthetic-tiny-152k",
    slots: Annotated[
        int, typer.Option(min=1, help="Rows per tick, and streams while grammars compile.")
    ] = 16,
    ticks: Annotated[int, typer.Option(min=2, help="Ticks of one run.")] = 400,
    threads: Annotated[
        int, typer.Option(min=0, help="The model's threads while grammars compile; 0: as the server chooses.")
    ] = 0,
    rounds: NRounds = 5,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Measure what schemas add to a tick's sampling, and what compiling grammars adds to others' gaps.

    First, rows are sampled with and without schemas, in process; the model's part is scripted, so that the
    share of tokens that a schema refuses is known. Then free streams generate on the engine's own thread,
    alone and while one large grammar after another is compiled.
    """
    if quick:
        rounds, ticks = 1, QUICK_TICKS
    draws: dict[str, list[Draws]] = {case.name: [] for case in CASES}
    gaps: dict[str, list[CompileGaps]] = {ALONE: [], COMPILING: []}

    def draw(bound: Bound, case: StrayCase) -> Figures:
        draws[case.name].append(bound.measure(case, ticks))
        return draws[case.name][-1].figures()

    def stream(streams: FreeStreams, name: str) -> Figures:
        gaps[name].append(streams.run(ticks, compiling=name == COMPILING))
        return gaps[name][-1].figures()

    n_warmup = 0 if quick else 1
    n_ctx = 2 * ticks + 64
    more = {"n_threads": threads} if threads else {}
    with opened(model, n_slots=slots, n_ctx=n_ctx, **more) as (backend, settings):
        bound = Bound(backend, engine_on(backend, settings, lambda _: None).samplers.grammars, slots)
        drawn = run_rounds(
            {case.name: partial(draw, bound, case) for case in CASES}, n_rounds=rounds, n_warmup=n_warmup
        )
        n_vocab = backend.n_vocab
    streams = FreeStreams(settings, n_streams=slots)
    with streams.open():
        beside = run_rounds(
            {name: partial(stream, streams, name) for name in gaps}, n_rounds=rounds, n_warmup=n_warmup
        )
    command = spell(
        "constrained", model=model, slots=slots, ticks=ticks, threads=threads or None, rounds=rounds
    )
    report = Report(
        name="constrained", title="What structured output costs", command=command,
        config={"model": model, "n_vocab": n_vocab, "slots": slots, "ticks": ticks},
        tables=[_draws_table(drawn, slots, n_vocab), _gaps_table(beside)],
        samples={"draws": drawn.as_json(), "gaps": beside.as_json()},
        figures={
            "draws": plots.shares(
                f"Sampling a tick of {slots} rows", "ms",
                {"free": [1e3 * s for s in draws[CASES[0].name][-1].free_s]}
                | {name: [1e3 * s for s in runs[-1].bound_s] for name, runs in draws.items()},
                log=True,
            ),
            "gaps": plots.shares(
                "Gaps of free streams", "ms",
                {name: [1e3 * s for s in runs[-1].gaps_s] for name, runs in gaps.items()},
                log=True,
            ),
        },
        notes=[DRAW_NOTE, *drawn.notes(), *beside.notes()],
    )  # fmt: skip
    deliver(report, out)


def _draws_table(drawn: Rounds, slots: int, n_vocab: int) -> Table:
    table = Table(
        f"Host time of a tick's sampling, {slots} greedy rows of {n_vocab:,} logits, ms",
        ("the model", "refused", "free p50", "added p50", "added p95", "added p99"),
    )
    for case in drawn.figures:
        added = (_ms(drawn, case, f"added_{share}_s") for share in ("p50", "p95", "p99"))
        free = f"{1e3 * drawn.median(case, 'free_p50_s'):.2f}"
        table.rows.append((case, f"{drawn.median(case, 'refused'):.1%}", free, *added))
    return table


def _gaps_table(beside: Rounds) -> Table:
    table = Table(
        "ITL of free streams, ms",
        ("grammars", "p50", "p99", "p99 / alone", "compiled", "each took, ms"),
        note="By the engine's clock. Each grammar is new, that of a schema of 50 kB; one is compiled after "
        "the other, without a pause.",
    )
    for name in beside.figures:
        more = ["-"] * 3
        if name == COMPILING:
            ratios = with_range(beside.ratios(name, ALONE, "itl_p99_s"), "")
            n, took_s = (beside.median(name, figure) for figure in ("compiled", "compile_s"))
            more = [ratios, f"{n:.0f}", f"{1e3 * took_s:.0f}"]
        table.rows.append((name, _ms(beside, name, "itl_p50_s"), _ms(beside, name, "itl_p99_s"), *more))
    return table


def _ms(rounds: Rounds, contender: str, figure: str) -> str:
    return with_range([1e3 * value for value in rounds.values(contender, figure)], "")
