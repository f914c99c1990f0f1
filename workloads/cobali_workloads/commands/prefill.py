"""`cobali bench prefill`: Prepacking's experiment; what padding costs and what packing saves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from statistics import fmean
from typing import Annotated

import typer

from cobali_ray.errors import ConfigError
from cobali_workloads.commands.options import DEFAULT_MODEL, OUT, Model, NRounds, Out, Quick, numbers, spell
from cobali_workloads.commands.prefill_report import PrefillCase, report_of
from cobali_workloads.inside.handles import held_bytes
from cobali_workloads.inside.lengths import SPREADS, LengthSpread
from cobali_workloads.inside.prefill import PrefillRunner, Prompts, batches_of
from cobali_workloads.inside.runs import opened
from cobali_workloads.report.report import deliver
from cobali_workloads.report.rounds import Rounds, run_rounds

NAMES = {spread.name: spread for spread in SPREADS}
QUICK_POOL, QUICK_BATCHES, QUICK_SETS = 8, "4", "mmlu"


def prefill(
    model: Model = DEFAULT_MODEL,
    datasets: Annotated[str, typer.Option(help="Length distributions to draw from.")] = ",".join(NAMES),
    batch_sizes: Annotated[str, typer.Option(help="Prompts per batch.")] = "1,4,16,64",
    pool: Annotated[
        int, typer.Option(help="Prompts per data set, cut into batches; at least one batch.")
    ] = 128,
    token_budget: Annotated[int, typer.Option(help="Most tokens of one tick, for every contender.")] = 512,
    kv: Annotated[str, typer.Option(help="Cache of the slots: split or unified.")] = "split",
    seed: Annotated[int, typer.Option(help="Seed of lengths and tokens.")] = 0,
    rounds: NRounds = 3,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Prefill batches padded, length-ordered, one by one, in order of arrival and packed."""
    command = spell("prefill", model=model, datasets=datasets, batch_sizes=batch_sizes, pool=pool,
                    token_budget=token_budget, kv=kv, seed=seed, rounds=rounds, quick=quick)  # fmt: skip
    if quick:
        rounds, pool, batch_sizes, datasets = 1, QUICK_POOL, QUICK_BATCHES, QUICK_SETS
    sizes = numbers("--batch-sizes", batch_sizes)
    spreads = _spreads(datasets)
    lengths = {spread.name: spread.draw(max(pool, *sizes), seed) for spread in spreads}
    n_ctx = -(-(max(map(max, lengths.values())) + 1) // 256) * 256
    cases: list[PrefillCase] = []
    with opened(
        model,
        n_slots=max(sizes),
        n_ctx=n_ctx,
        kv=kv,
        token_budget=token_budget,
        prefill_chunk=token_budget,
        itl_target_ms="off",
    ) as (backend, settings):
        filler = _filler(backend.n_vocab, backend.end_tokens)
        runner = PrefillRunner(backend, settings, filler=filler)
        for spread in spreads:
            prompts = _prompts(lengths[spread.name], backend.n_vocab, backend.end_tokens, seed)
            for size in sizes:
                whole = prompts[: len(prompts) // size * size]
                measured, seconds = _measure(runner, whole, size, rounds, n_warmup=0 if quick else 1)
                batches = batches_of(whole, size, by_length=False)
                runner.padded(batches[0])
                held = held_bytes(backend)
                per_cell = None if held is None else held / (size * max(map(len, batches[0])))
                cases.append(PrefillCase(spread, size, measured, batches, seconds, per_cell))
    config = {"model": model, "token_budget": token_budget, "kv": kv, "seed": seed}
    deliver(report_of(command, cases, config), out)


def _spreads(text: str) -> list[LengthSpread]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        raise ConfigError("--datasets", f"must be among {', '.join(NAMES)}, got {text!r}")
    return [NAMES[name] for name in names]


def _filler(n_vocab: int, end_tokens: frozenset[int]) -> int:
    return next(token for token in range(n_vocab) if token not in end_tokens)


def _prompts(lengths: Sequence[int], n_vocab: int, end_tokens: frozenset[int], seed: int) -> list[list[int]]:
    rng = Random(f"{seed} tokens")
    plain = [token for token in range(min(n_vocab, 4096)) if token not in end_tokens]
    return [rng.choices(plain, k=length) for length in lengths]


def _measure(
    runner: PrefillRunner, prompts: Prompts, size: int, n_rounds: int, *, n_warmup: int
) -> tuple[Rounds, dict[str, list[list[float]]]]:
    seconds: dict[str, list[list[float]]] = {}
    ways = runner.ways()

    def run(name: str) -> dict[str, float]:
        batches = batches_of(prompts, size, by_length=name == "length-ordered")
        done = [ways[name](batch) for batch in batches]
        seconds.setdefault(name, []).append([batch.seconds for batch in done])
        return {
            "batch_s": fmean(batch.seconds for batch in done),
            "ttft_s": fmean(ttft for batch in done for ttft in batch.ttfts_s),
            "n_tokens": float(sum(batch.n_tokens for batch in done)),
            "n_ticks": float(sum(batch.n_ticks for batch in done)),
            "n_cells": float(max(batch.n_cells for batch in done)),
        }

    contenders = {name: partial(run, name) for name in ways}
    rounds = run_rounds(contenders, n_rounds=n_rounds, n_warmup=n_warmup)
    return rounds, {name: made[n_warmup:] for name, made in seconds.items()}
