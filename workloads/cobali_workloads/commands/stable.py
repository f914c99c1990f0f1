"""`cobali bench stable`: whether batches of a stable shape pay."""

from __future__ import annotations

import time
from array import array
from functools import partial
from typing import Annotated

import typer

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.port import Backend
from cobali_ray.core.plan.plan import Span
from cobali_workloads.commands.options import OUT, Model, NRounds, Out, numbers, spell
from cobali_workloads.inside.runs import empty, opened
from cobali_workloads.report.report import Report, Table, deliver
from cobali_workloads.report.rounds import Figures, run_rounds

N_PROMPT = 64
NOTE = (
    "llama.cpp reuses its compute graph (and CUDA its captured one) while rows and slots stay the same. What "
    "alternating costs over the mean of both is what a dummy row could save at most; it costs a row."
)


def stable(
    model: Model = "builtin:synthetic-tiny-152k",
    slots: Annotated[str, typer.Option(help="Rows of a full tick.")] = "4,16,32",
    ticks: Annotated[int, typer.Option(min=2, help="Ticks of one run.")] = 200,
    rounds: NRounds = 5,
    out: Out = OUT,
) -> None:
    """Time decode ticks of n rows, of n - 1 rows, and of both in turn."""
    columns = (
        "rows",
        "n rows",
        "n - 1 rows",
        "in turn",
        "reused in turn",
        "alternating adds",
        "a row adds",
    )
    table = Table("Stable and changing batches, ms per tick", columns, note=NOTE)
    samples, notes = {}, []
    for n in numbers("--slots", slots, least=2):
        n_ctx = N_PROMPT + ticks + 8
        with opened(model, n_slots=n, n_ctx=n_ctx, token_budget=max(256, n)) as (backend, _):
            shapes = {"full": (n, n), "less": (n - 1, n - 1), "turn": (n, n - 1)}
            runs = {name: partial(decode, backend, rows, ticks) for name, rows in shapes.items()}
            found = run_rounds(runs, n_rounds=rounds)
        full, less, turn = (1e3 * found.median(name, "tick_s") for name in shapes)
        table.rows.append((
            str(n), f"{full:.2f}", f"{less:.2f}", f"{turn:.2f}", f"{found.median('turn', 'reused'):.0%}",
            f"{turn - (full + less) / 2:+.2f}", f"{full - less:+.2f}",
        ))  # fmt: skip
        samples[str(n)] = found.as_json()
        notes += found.notes()
    command = spell("stable", model=model, slots=slots, ticks=ticks, rounds=rounds)
    report = Report(
        name="stable", title="Batches of a stable shape", command=command, config={"model": model},
        tables=[table], samples=samples, notes=notes,
    )  # fmt: skip
    deliver(report, out)


def decode(backend: Backend, rows: tuple[int, int], n_ticks: int) -> Figures:
    """Decode `n_ticks` with `rows[0]` and `rows[1]` slots in turn; return seconds per tick and reuse."""
    empty(backend)
    batch, tokens = TickBatch(backend.n_batch), array("i", [5] * (N_PROMPT + n_ticks + 1))
    for slot_id in range(max(rows)):
        batch.fill((Span(slot_id, 0, N_PROMPT, sample=False),), [tokens])
        backend.forward(batch)
    lengths = [N_PROMPT] * max(rows)
    spent, reused = 0.0, backend.n_reused()
    for tick in range(n_ticks):
        n = rows[tick % 2]
        batch.fill(tuple(Span(i, lengths[i], 1, sample=True) for i in range(n)), [tokens] * n)
        began = time.perf_counter()
        backend.forward(batch)
        backend.wait()
        spent += time.perf_counter() - began
        for i in range(n):
            lengths[i] += 1
    return {"tick_s": spent / n_ticks, "reused": (backend.n_reused() - reused) / n_ticks}
