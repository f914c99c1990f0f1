"""Measure what sampling costs a tick: `python -m cobali_ray.bench.sampling`. No model takes part."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from cobali_ray.backend.sampling import RowSampler, sample_rows
from cobali_ray.core.request import GREEDY, SamplingParams

if TYPE_CHECKING:
    from numpy.typing import NDArray

VOCABULARIES = (4_096, 151_936)
ROWS = (1, 16, 64, 128)
SPREAD = 3.0
"""Standard deviation of the normal logits: flatter than a trained model's, which is the hard case."""
END_TOKENS = frozenset({2, 7})
N_PROMPT = 256
REPEAT_S = 0.25
MIN_REPEATS = 5

CASES = {
    "greedy": GREEDY,
    "greedy, end tokens masked": SamplingParams(temperature=0, ignore_eos=True),
    "top_k 40, top_p 0.95, T 0.8": SamplingParams(top_k=40, top_p=0.95, temperature=0.8, seed=1),
    "temperature 1": SamplingParams(seed=1),
    "top_p 0.9": SamplingParams(top_p=0.9, seed=1),
    "min_p 0.05": SamplingParams(min_p=0.05, seed=1),
    "typical_p 0.9": SamplingParams(typical_p=0.9, seed=1),
    "greedy, all penalties": SamplingParams(
        temperature=0, repetition_penalty=1.1, frequency_penalty=0.5, presence_penalty=0.5
    ),
    "greedy, logprobs 5": SamplingParams(temperature=0, n_logprobs=5),
}


def measure(logits: NDArray[np.float32], params: SamplingParams) -> float:
    """Return the median seconds of one tick, over at least `MIN_REPEATS` ticks."""
    n_rows, n_vocab = logits.shape
    prompts = np.random.default_rng(0).integers(0, n_vocab, (n_rows, N_PROMPT)).tolist()
    rows = [RowSampler(params, prompt, end_tokens=END_TOKENS, n_vocab=n_vocab) for prompt in prompts]
    spent: list[float] = []
    sample_rows(logits, rows)
    while len(spent) < MIN_REPEATS or sum(spent) < REPEAT_S:
        began = time.perf_counter()
        sample_rows(logits, rows)
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


def main() -> None:
    """Print microseconds per tick and per row, for every case, vocabulary and number of rows."""
    for n_vocab in VOCABULARIES:
        table = Table(title=f"us per tick (us per row), {n_vocab:,} tokens", title_justify="left")
        table.add_column("")
        for n_rows in ROWS:
            table.add_column(f"{n_rows} rows" if n_rows > 1 else "1 row", justify="right")
        rng = np.random.default_rng(0)
        logits = rng.standard_normal((max(ROWS), n_vocab), dtype=np.float32) * np.float32(SPREAD)
        for name, params in CASES.items():
            cells = []
            for n_rows in ROWS:
                tick_us = measure(logits[:n_rows].copy(), params) * 1e6
                cells.append(f"{tick_us:,.0f} ({tick_us / n_rows:,.1f})")
            table.add_row(name, *cells)
        Console().print(table)


if __name__ == "__main__":
    main()
