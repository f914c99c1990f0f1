"""`cobali bench pace`: whether ITL targets are held, and what holding them costs the prompts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Annotated

import typer

from cobali_ray.core.plan.pace import Pacer
from cobali_ray.engine.opening import limits_of
from cobali_workloads.commands.options import OUT, Model, NRounds, Out, Quick, numbers, reals, spell
from cobali_workloads.inside.pace import PaceExperiment
from cobali_workloads.inside.runs import opened
from cobali_workloads.report import plots
from cobali_workloads.report.report import Report, Table, deliver, with_range
from cobali_workloads.report.rounds import Figures, Rounds, run_rounds

HELD = 1.1
"""A target is held if the 99th percentile of the gaps is at most this many times as long."""
QUICK_PROMPT = 512


def pace(
    model: Model = "builtin:synthetic-tiny-152k",
    streams: Annotated[int, typer.Option(min=1, help="Running streams.")] = 15,
    prompt_tokens: Annotated[int, typer.Option(min=64, help="Length of the long prompts.")] = 4096,
    n_prompts: Annotated[int, typer.Option(min=1, help="Long prompts, one after another.")] = 3,
    targets: Annotated[str, typer.Option(help="ITL targets, as multiples of a decode tick.")] = "1.5,2,4",
    chunks: Annotated[
        str, typer.Option(help="Static chunk sizes to compare with.")
    ] = "4,8,16,32,64,128,256,512",
    rounds: NRounds = 3,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Hold ITL targets beside long prompts, and compare with every static chunk size that holds them."""
    factors = reals("--targets", targets)
    sizes = numbers("--chunks", chunks)
    if quick:
        prompt_tokens, n_prompts, rounds, sizes = QUICK_PROMPT, 1, 1, sizes[-1:]
    n_slots, n_ctx = streams + 1, prompt_tokens + 512
    with opened(model, n_slots=n_slots, n_ctx=n_ctx, prefill_chunk=512) as (
        backend,
        settings,
    ):
        limits = limits_of(backend, settings)
        scene = PaceExperiment(
            backend, limits, n_streams=streams, n_prompt=prompt_tokens, n_prompts=n_prompts
        )
        decode_s = scene.run(Pacer(None), sizes[-1]).decode_s
        contenders: dict[str, Callable[[], Figures]] = {}
        for factor in factors:
            contenders[f"target {factor:g}x"] = partial(
                lambda pacer: scene.run(pacer).figures(), Pacer(factor * decode_s, grain=limits.grain)
            )
        for size in sizes:
            contenders[f"chunk {size}"] = partial(
                lambda size: scene.run(Pacer(None, grain=limits.grain), size).figures(), size
            )
        found = run_rounds(contenders, n_rounds=rounds, n_warmup=0 if quick else 1)
    command = spell(
        "pace", model=model, streams=streams, prompt_tokens=prompt_tokens, n_prompts=n_prompts,
        targets=targets, chunks=chunks, rounds=rounds,
    )  # fmt: skip
    deliver(_report(command, found, decode_s, factors, sizes), out)


def _report(command: str, found: Rounds, decode_s: float, factors: list[float], sizes: list[int]) -> Report:
    target_table = Table(
        "ITL targets",
        ["target", "target ms", "ITL p99 ms", "p99 / target", "prefill tok/s", "best static chunk",
         "its tok/s", "prefill / best static", "prediction error"],
        note=f"Gaps beside prefill only. The best static chunk is the fastest whose p99 is at most {HELD:g} "
        "times the target; medians of the rounds, ratios within each round: median (least to largest).",
    )  # fmt: skip
    for factor in factors:
        name, target_s = f"target {factor:g}x", factor * decode_s
        holds = [n for n in sizes if found.median(f"chunk {n}", "itl_p99_s") <= HELD * target_s]
        rate = found.median(name, "prefill_tokens_per_s")
        best = max(holds, key=lambda n: found.median(f"chunk {n}", "prefill_tokens_per_s"), default=None)
        static = ("none holds it", "-", "-")
        if best is not None:
            ratios = found.ratios(name, f"chunk {best}", "prefill_tokens_per_s")
            best_rate = found.median(f"chunk {best}", "prefill_tokens_per_s")
            static = (str(best), f"{best_rate:.0f}", with_range(ratios, ""))
        p99 = found.median(name, "itl_p99_s")
        held = with_range([v / target_s for v in found.values(name, "itl_p99_s")], "")
        error = f"{found.median(name, 'error'):.1%}"
        row = (f"{factor:g}x", f"{1e3 * target_s:.1f}", f"{1e3 * p99:.1f}", held, f"{rate:.0f}")
        target_table.rows.append((*row, *static, error))
    chunk_table = Table("Static chunks", ["chunk", "ITL p50 ms", "ITL p99 ms", "prefill tok/s"])
    for size in sizes:
        values = [found.median(f"chunk {size}", k) for k in ("itl_p50_s", "itl_p99_s")]
        rate = found.median(f"chunk {size}", "prefill_tokens_per_s")
        chunk_table.rows.append((str(size), *(f"{1e3 * v:.1f}" for v in values), f"{rate:.0f}"))
    series = {
        kind: [
            (1e3 * found.median(name, "itl_p99_s"), found.median(name, "prefill_tokens_per_s"))
            for name in found.figures
            if name.startswith(kind)
        ]
        for kind in ("chunk", "target")
    }
    p99_s = median(found.median(name, "decode_p99_s") for name in found.figures)
    note = (
        f"A decode tick takes {1e3 * decode_s:.1f} ms, its 99th percentile is {1e3 * p99_s:.1f} ms. As in a "
        "server, a pacer goes on learning from round to round; the first round does not count."
    )
    return Report(
        name="pace",
        title="ITL targets beside long prompts",
        command=command,
        config={"decode_tick_s": decode_s, "targets_s": [factor * decode_s for factor in factors]},
        tables=[target_table, chunk_table],
        samples=found.as_json(),
        figures={"tradeoff": plots.dots("What gaps buy", "ITL p99 ms", "prefill tokens/s", series)},
        notes=[note, *found.notes()],
    )  # fmt: skip
