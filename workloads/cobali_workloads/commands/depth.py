"""`cobali bench depth`: what decode tokens and chunks take beside how many cached ones."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Annotated

import typer

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.port import Backend
from cobali_ray.core.plan.plan import Span
from cobali_workloads.commands.options import OUT, Model, NRounds, Out, Quick, numbers, spell
from cobali_workloads.inside.micro import Step, time_step
from cobali_workloads.inside.runs import empty, opened
from cobali_workloads.report import plots
from cobali_workloads.report.report import Report, Table, deliver, with_range
from cobali_workloads.report.rounds import Figures, run_rounds

KINDS = ("on", "off")
MAX_PREFILL = 512
STEP_S, QUICK_STEP_S = 0.2, 0.001


def depth(
    model: Model = "builtin:synthetic-tiny-152k",
    rows: Annotated[str, typer.Option(help="Streams that decode together.")] = "1,16",
    chunks: Annotated[str, typer.Option(help="Lengths of chunks.")] = "16,32,64,128,256",
    depths: Annotated[str, typer.Option(help="Tokens already cached.")] = "256,1024,4096",
    rounds: NRounds = 3,
    quick: Quick = False,
    out: Out = OUT,
) -> None:
    """Time decode ticks and chunks at several depths, with and without flash attention, in turn."""
    counts, lengths = numbers("--rows", rows), numbers("--chunks", chunks)
    places, step_s = sorted(numbers("--depths", depths)), STEP_S
    if quick:
        counts, lengths, places, rounds, step_s = counts[:1], lengths[:1], [64], 1, QUICK_STEP_S
    table = Table(
        "Milliseconds of a pass",
        ("cached before", "computed", "on", "off", "off / on"),
        note="Medians of the rounds; the ratio within each round: median (least to largest).",
    )
    series: dict[str, list[tuple[float, float]]] = {}
    samples, notes = {}, []
    with ExitStack() as stack:
        scenes = {}
        for kind in KINDS:
            n_ctx = max(places) + max(lengths)
            asked = {"n_slots": max(counts), "n_ctx": n_ctx, "prefill_chunk": MAX_PREFILL}
            backend, _ = stack.enter_context(opened(model, flash_attn=kind, kv="split", **asked))
            scenes[kind] = _FilledBackend(backend)
        for n_cached in places:
            contenders: dict[str, Callable[[], Figures]] = {}
            for kind, scene in scenes.items():
                scene.fill(n_cached)
                for n in counts:
                    contenders[f"{kind} {n} x 1"] = partial(scene.time, [1] * n, step_s)
                for length in lengths:
                    contenders[f"{kind} 1 x {length}"] = partial(scene.time, [length], step_s)
            found = run_rounds(contenders, n_rounds=rounds, n_warmup=0 if quick else 1)
            for what in [f"{n} x 1" for n in counts] + [f"1 x {length}" for length in lengths]:
                on, off = (1e3 * found.median(f"{kind} {what}", "pass_s") for kind in KINDS)
                ratio = with_range(found.ratios(f"off {what}", f"on {what}", "pass_s"), "")
                table.rows.append((str(n_cached), what, f"{on:.1f}", f"{off:.1f}", ratio))
                if what in {f"{max(counts)} x 1", f"1 x {min(lengths)}"}:
                    for kind, value in zip(KINDS, (on, off), strict=True):
                        series.setdefault(f"{what}, {kind}", []).append((n_cached, value))
            samples[str(n_cached)] = found.as_json()
            notes += found.notes()
    report = Report(
        name="depth",
        title="Decode and prefill over depth, with and without flash attention",
        command=spell("depth", model=model, rows=rows, chunks=chunks, depths=depths, rounds=rounds),
        config={"model": model},
        tables=[table],
        samples=samples,
        figures={"passes": plots.lines("A pass over depth", "tokens cached", "ms", series, log_x=True)},
        notes=["`16 x 1` are 16 streams with a token each, `1 x 64` is a chunk of 64 tokens.", *notes],
    )
    deliver(report, out)


class _FilledBackend:
    """A backend all of whose slots hold the same tokens."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._batch = TickBatch(backend.n_batch)
        self._tokens = array("i", [5 + i * 7919 % (backend.n_vocab // 2) for i in range(backend.n_ctx_slot)])
        self._n_held = 0

    def fill(self, n_cached: int) -> None:
        """Compute up to `n_cached` tokens in the first slot and copy them to the others."""
        backend = self._backend
        for slot_id in range(1, backend.n_slots):
            backend.truncate(slot_id, 0)
        if n_cached < self._n_held:
            empty(backend)
            self._n_held = 0
        while self._n_held < n_cached:
            length = min(MAX_PREFILL, n_cached - self._n_held)
            self._forward([length], self._n_held)
            self._n_held += length
        for slot_id in range(1, backend.n_slots):
            backend.copy(0, slot_id, n_cached)

    def time(self, lengths: list[int], step_s: float) -> Figures:
        """Time a pass of so many tokens in the first slots, again and again; nothing of it is kept."""

        def forget() -> None:
            for slot_id in range(len(lengths)):
                self._backend.truncate(slot_id, self._n_held)

        call = partial(self._forward, lengths, self._n_held)
        cost = time_step(Step("pass", call, reset=forget), seconds=step_s)
        forget()
        return {"pass_s": cost.p50_us / 1e6, "n": float(cost.n)}

    def _forward(self, lengths: list[int], start: int) -> None:
        spans = tuple(Span(i, start, length, sample=True) for i, length in enumerate(lengths))
        self._batch.fill(spans, [self._tokens] * len(spans))
        self._backend.forward(self._batch)
        self._backend.wait()
