"""Whether batches of a stable shape pay: `python -m cobali_ray.bench.stable`.

llama.cpp reuses its compute graph (and CUDA its captured one) while rows and slots stay the same. Decode
ticks of n rows, of n - 1 rows, and of both in turn are timed in turn: what alternating costs over the mean
of the two is what a dummy row could save at most, and it costs what n rows take over n - 1.
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.table import Table

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.port import Backend
from cobali_ray.bench.inprocess import empty, opened
from cobali_ray.bench.rounds import Figures, run_rounds
from cobali_ray.core.plan import Span

N_PROMPT = 64


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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="builtin:synthetic-tiny-152k", help="a model")
    parser.add_argument("--slots", type=int, nargs="+", default=[4, 16, 32], help="rows of a full tick")
    parser.add_argument("--ticks", type=int, default=200, help="ticks of one run")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; the runs take turns in each")
    options = parser.parse_args()
    table = Table(title=f"Stable and changing batches, {options.model}, ms per tick, medians")
    for column in (
        "rows",
        "n rows",
        "n - 1 rows",
        "in turn",
        "reused in turn",
        "alternating costs",
        "a row costs",
    ):
        table.add_column(column, justify="right")
    n_ctx = N_PROMPT + options.ticks + 8
    for n in options.slots:
        with opened(options.model, n_slots=n, n_ctx=n_ctx, token_budget=max(256, n)) as (backend, _):
            shapes = {"full": (n, n), "less": (n - 1, n - 1), "turn": (n, n - 1)}
            runs: dict[str, Callable[[], Figures]] = {
                name: partial(decode, backend, rows, options.ticks) for name, rows in shapes.items()
            }
            found = run_rounds(runs, n_rounds=options.rounds)
        full, less, turn = (1e3 * found.median(name, "tick_s") for name in shapes)
        table.add_row(
            str(n), f"{full:.2f}", f"{less:.2f}", f"{turn:.2f}", f"{found.median('turn', 'reused'):.0%}",
            f"{turn - (full + less) / 2:+.2f}", f"{full - less:+.2f}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
