"""Whole decode ticks, sampled from whole rows and from the device's candidates, for `cobali bench micro`."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.port import Backend
from cobali_ray.backend.sampling import RowSampler
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.request import GREEDY, SamplingParams
from cobali_workloads.inside.handles import picks_on_device
from cobali_workloads.inside.micro import TOP_K, Step
from cobali_workloads.inside.runs import empty, opened
from cobali_workloads.report.report import Table, with_range
from cobali_workloads.report.rounds import Rounds

KINDS: dict[str, SamplingParams] = {"greedy": GREEDY, "top_k 40": TOP_K}
SIZES, QUICK_SIZES = (1, 4, 16, 64, 128), (1, 4)


@contextmanager
def tick_steps(model: str, sizes: Sequence[int]) -> Iterator[list[Step]]:
    """Open the model twice; give a tick of each size and kind on both, nothing where no device can pick."""
    settings = {"n_slots": max(sizes), "n_ctx": 256, "token_budget": 256}
    with (
        opened(model, device_sampling="off", **settings) as (host, _),
        opened(model, device_sampling="on", **settings) as (device, _),
    ):
        backends = {"host": host, "device": device} if picks_on_device(device) else {}
        yield [
            _tick(name(n, kind, where), backends[where], n, KINDS[kind])
            for n, kind, where in product(sizes, KINDS, backends)
        ]


def name(n_slots: int, kind: str, where: str) -> str:
    """Name a step."""
    return f"tick of {n_slots} slots, {kind}, {where}"


def _tick(title: str, backend: Backend, n_slots: int, params: SamplingParams) -> Step:
    batch, spans = TickBatch(n_slots), tuple(Span(slot, 0, 1, sample=True) for slot in range(n_slots))
    tokens = [array("i", [1 + slot]) for slot in range(n_slots)]
    rows = [RowSampler(params, (1,), end_tokens=backend.end_tokens, n_vocab=backend.n_vocab) for _ in spans]

    def call() -> None:
        backend.forward(batch)
        backend.wait()
        backend.sample(rows)

    def reset() -> None:
        empty(backend)
        batch.fill(spans, tokens)
        for slot, row in enumerate(rows):
            backend.expect(slot, row)

    return Step(title, call, reset=reset)


def tick_table(measured: Rounds, sizes: Sequence[int]) -> Table:
    """Lay the ticks side by side."""
    table = Table(
        "A decode tick with its sampling, us",
        ("slots", "requests", "host", "device", "device / host"),
        note="Host: all rows are copied and sampled. Device: it picks 128 tokens of each, we sample those.",
    )
    for n, kind in product(sizes, KINDS):
        host, device = name(n, kind, "host"), name(n, kind, "device")
        ratio = with_range(measured.ratios(device, host, "p50_us"))
        medians = (f"{measured.median(step, 'p50_us'):.0f}" for step in (host, device))
        table.rows.append((str(n), kind, *medians, ratio))
    return table
