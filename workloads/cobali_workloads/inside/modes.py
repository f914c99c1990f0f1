"""CoBaLI's experiment in our engine: one request at a time against slots, and how long a chunk should be."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from cobali_ray.backend.port import Backend
from cobali_ray.settings import EngineSettings
from cobali_workloads.inside.runs import EngineRun, greedy_requests, opened, run_once
from cobali_workloads.offline import ARRIVAL, SEQUENTIAL
from cobali_workloads.report.rounds import Figures, Rounds, run_rounds

STATIC = {"itl_target_ms": "off"}
"""As the original: chunks of one size, with `ARRIVAL` in the order of arrival."""


class PublishedResult(NamedTuple):
    """One row of CoBaLI's Table 2."""

    wall_s: float
    user_s: float
    speed_up: float


PUBLISHED = {
    "SEQ": PublishedResult(154.17, 34.68, 1.0),
    "CONT-SPLIT512": PublishedResult(32.64, 17.64, 4.72),
    "CONT-SPLIT128": PublishedResult(43.00, 20.08, 3.59),
    "CONT-SPLIT256": PublishedResult(24.69, 16.47, 6.24),
}
"""Qwen2.5-0.5B-Instruct Q5_K_M, RTX 4070 12 GB, 186 prompts, 16 slots, context 16,384, greedy, 64 new."""
CHUNKS = {"CONT-SPLIT512": 512, "CONT-SPLIT128": 128, "CONT-SPLIT256": 256}


class ModesResult(NamedTuple):
    """Figures round by round, and every measured run of each contender."""

    rounds: Rounds
    runs: dict[str, list[EngineRun]]
    lengths: list[int]
    """Prompt tokens of each request."""


class OfflineLoad(NamedTuple):
    """What is computed: texts, and how they are answered."""

    texts: Sequence[str]
    n_slots: int
    max_new: int
    ignore_eos: bool


def measure_modes(model: str, load: OfflineLoad, *, ctx: int, n_rounds: int, n_warmup: int) -> ModesResult:
    """Run the rows of the table. All CONT rows have one token budget, so that only the chunk differs.

    `ctx` is the KV cells of all slots together, as in the original.
    """
    n_ctx = ctx // load.n_slots
    budget = min(max(CHUNKS.values()) + load.n_slots, ctx)
    with (
        opened(model, **STATIC, **SEQUENTIAL, n_ctx=n_ctx) as (alone, alone_settings),
        opened(model, **STATIC, n_slots=load.n_slots, n_ctx=n_ctx, token_budget=budget) as (shared, settings),
    ):
        prompts = [shared.words.tokenize(text) for text in load.texts]
        requests = greedy_requests(prompts, max_tokens=load.max_new, ignore_eos=load.ignore_eos)
        runs: dict[str, list[EngineRun]] = {}

        def run(name: str, backend: Backend, settings: EngineSettings) -> Figures:
            runs.setdefault(name, []).append(run_once(backend, settings, requests, ARRIVAL))
            return runs[name][-1].figures()

        contenders = {"SEQ": partial(run, "SEQ", alone, alone_settings)}
        for name, chunk in CHUNKS.items():
            chunked = settings.replaced(prefill_chunk=chunk)
            contenders[name] = partial(run, name, shared, chunked)
        rounds = run_rounds(contenders, n_rounds=n_rounds, n_warmup=n_warmup)
    return ModesResult(rounds, _counted(runs, n_warmup), [len(prompt) for prompt in prompts])


def measure_chunks(
    model: str,
    load: OfflineLoad,
    *,
    chunks: Sequence[int],
    n_rounds: int,
    n_warmup: int,
) -> ModesResult:
    """Run one file with every chunk size; the budget is one chunk beside one token of every slot.

    Slots are as large as the longest prompt and its answer need.
    """
    with opened(model, n_slots=1, n_ctx=64) as (backend, _):
        prompts = [backend.words.tokenize(text) for text in load.texts]
    n_ctx = -(-(max(map(len, prompts)) + load.max_new) // 256) * 256
    most = min(max(chunks) + load.n_slots, load.n_slots * n_ctx)
    requests = greedy_requests(prompts, max_tokens=load.max_new, ignore_eos=load.ignore_eos)
    runs: dict[str, list[EngineRun]] = {}
    with opened(model, **STATIC, n_slots=load.n_slots, n_ctx=n_ctx, token_budget=most) as (backend, settings):

        def run(chunk: int) -> Figures:
            bounds = settings.replaced(prefill_chunk=chunk, token_budget=min(chunk + load.n_slots, most))
            runs.setdefault(str(chunk), []).append(run_once(backend, bounds, requests, ARRIVAL))
            return runs[str(chunk)][-1].figures()

        contenders = {str(chunk): partial(run, chunk) for chunk in chunks}
        rounds = run_rounds(contenders, n_rounds=n_rounds, n_warmup=n_warmup)
    return ModesResult(rounds, _counted(runs, n_warmup), [len(prompt) for prompt in prompts])


def _counted(runs: dict[str, list[EngineRun]], n_warmup: int) -> dict[str, list[EngineRun]]:
    return {name: made[n_warmup:] for name, made in runs.items()}


def same_work(lengths: Sequence[int]) -> str:
    """Say whether chunk sizes can matter to the CONT rows at all."""
    longest, least = max(lengths), min(CHUNKS.values())
    if longest <= least:
        return (
            f"The longest prompt has {longest} tokens and the smallest chunk {least}: no prompt is ever "
            "split, so the CONT rows do the same work and their differences are noise. With this file the "
            "spread of the published rows is not chunking either; the long prompts show what chunks do."
        )
    n_split = sum(length > least for length in lengths)
    return f"{n_split} of {len(lengths)} prompts are longer than the smallest chunk ({least}) and are split."


def best(measured: ModesResult) -> tuple[int, int]:
    """Return the chunk with the highest median throughput and the one with the lowest median p99 ITL."""
    rounds = measured.rounds
    fastest = max(rounds.figures, key=lambda name: rounds.median(name, "output_tokens_per_s"))
    smoothest = min(rounds.figures, key=lambda name: rounds.median(name, "itl_p99_s"))
    return int(fastest), int(smoothest)


def within_noise(measured: ModesResult, figure: str, winner: int, *, highest: bool) -> list[int]:
    """Return the chunks whose range over the rounds overlaps the winner's, the winner left out."""
    rounds = measured.rounds
    low, high = rounds.spread(str(winner), figure)
    names = [name for name in rounds.figures if name != str(winner)]
    spreads = {name: rounds.spread(name, figure) for name in names}
    return [int(n) for n, (least, most) in spreads.items() if (most >= low if highest else least <= high)]
