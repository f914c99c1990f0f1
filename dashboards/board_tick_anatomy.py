"""The tick anatomy: where each millisecond of a tick goes."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.builders.dashboard import Row
from panels import (
    EACH,
    EACH_LEGEND,
    SEQUENCES,
    TOKENS,
    against_slo,
    board,
    heat,
    limit_line,
    lines,
    per_tick,
    percentiles,
    rate,
    series,
    stacked,
)

PHASES = ("plan", "forward", "sample", "publish")


def build() -> dashboard.Dashboard:
    """Return the board `tick_anatomy.json`."""
    made = board(
        "cobali-tick", "cobali_ray / Tick anatomy", "Where the time of a tick, one round of the engine, goes."
    )
    for add in (_time, _phases, _work, _pace, _rhythm):
        add(made)
    return made


def _time(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Where the time goes"))
    ticks = f"sum {EACH} ({rate('cobali_tick_seconds_sum')})"
    phases = f"sum {EACH} ({rate('cobali_phase_seconds_total')})"
    # Where publish hides behind the next pass, both phases count that time: the phases exceed their tick.
    parts = {phase: f"sum({rate('cobali_phase_seconds_total', phase=phase)})" for phase in PHASES}
    parts["forward"] = f"({parts['forward']} - sum(clamp_min({phases} - {ticks}, 0)))"
    parts["other"] = f"sum(clamp_min({ticks} - {phases}, 0))"
    stack = [(per_tick(total), name) for name, total in parts.items()]
    text = (
        "Mean seconds of a tick by phase; on a GPU, forward is shown without the publishing that overlaps it."
    )
    made.with_panel(stacked("Phases of a mean tick", text, "s", stack, columns=3))
    times = percentiles("cobali_tick_seconds")
    made.with_panel(lines("Tick time", "Duration of a tick.", "s", times, columns=3))
    text = "Ticks by duration: two bands are decode ticks, and ticks with prefill."
    made.with_panel(heat("Tick time heatmap", text, "s", "cobali_tick_seconds", columns=3))


def _phases(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Each phase"))
    for phase, text in zip(
        PHASES,
        (
            "Reading new requests, ending expired ones, assigning slots, planning.",
            "From handing over the batch until the logits are ready.",
            "From logits to token ids.",
            "Detokenising, finding stop strings, sending events.",
        ),
        strict=True,
    ):
        queries = percentiles("cobali_tick_phase_seconds", phase=phase)
        made.with_panel(lines(phase.capitalize(), text, "s", queries, columns=4))


def _work(made: dashboard.Dashboard) -> None:
    made.with_row(Row("What a tick computes"))
    kinds = per_tick(f"sum by (kind) ({rate('cobali_tokens_total')})")
    budget = f"max({series('cobali_token_budget')})"
    text = "Mean decode and prefill tokens of a tick."
    made.with_panel(stacked("Tokens per tick", text, TOKENS, [(kinds, "{{kind}}")], columns=4))
    sizes = percentiles("cobali_tick_batch_tokens")
    last = (f"max({series('cobali_batch_tokens')})", "last tick")
    text = "Decode and prefill tokens of a tick together, against the token budget."
    tokens = lines("Batch tokens", text, TOKENS, [*sizes, last, (budget, "budget")], columns=4)
    made.with_panel(limit_line(tokens, "budget"))
    chunks = percentiles("cobali_prefill_chunk_tokens")
    text = "Prompt tokens of one request in a tick: chunks get shorter beside running streams."
    made.with_panel(lines("Chunk sizes", text, TOKENS, chunks, columns=4))
    sequences = percentiles("cobali_batch_sequences")
    made.with_panel(lines("Batch sequences", "Sequences in a tick.", SEQUENCES, sequences, columns=4))


def _pace(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Pacing: prefill within the ITL target"))
    n_predicted = f"sum({rate('cobali_tick_prediction_error_ratio_count')})"
    predicted, real = (
        f"sum({rate('cobali_tick_prediction_seconds_total', kind=kind)}) / {n_predicted}"
        for kind in ("predicted", "real")
    )
    target = f"max({series('cobali_itl_target_seconds')}) > 0"  # 0 when idle
    text = "Mean duration of a tick as predicted and as measured, and the target that bounds prefill."
    queries = [(predicted, "predicted"), (real, "real"), (target, "target")]
    panel = against_slo("Predicted and real tick time", text, queries, "slo_itl")
    made.with_panel(limit_line(panel, "target", "orange"))
    errors = percentiles("cobali_tick_prediction_error_ratio")
    text = "How far predictions are off, as a share of the measured time; 1,000 % means 1,000 % or more."
    made.with_panel(lines("Prediction error", text, "percentunit", errors))


def _rhythm(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Rhythm"))
    gaps = percentiles("cobali_tick_gap_seconds")
    text = "Time from a forward pass to the next, while busy: the device waits for the host."
    made.with_panel(lines("Gap between forward passes", text, "s", gaps))
    forward, ticks, idle = (
        f"sum {EACH} ({one})"
        for one in (
            rate("cobali_phase_seconds_total", phase="forward"),
            rate("cobali_tick_seconds_sum"),
            rate("cobali_idle_seconds_total"),
        )
    )
    # Of the time that the engine counted: a tick that ends after a scrape is counted whole in the next.
    shares = [
        (f"{part} / ({ticks} + {idle})", f"{name} {EACH_LEGEND}")
        for part, name in ((forward, "forward"), (idle, "idle"))
    ]
    text = "Share of time inside forward passes, and share without any work; the rest is the host's work."
    made.with_panel(lines("Device busy share", text, "percentunit", shares))
    pace = [(f"sum {EACH} ({rate('cobali_ticks_total')})", EACH_LEGEND)]
    made.with_panel(lines("Tick rate", "Ticks per second.", "ops", pace))
    reused = f"sum {EACH} ({rate('cobali_graphs_reused_total')})"
    share = f"{reused} / sum {EACH} ({rate('cobali_ticks_total')})"
    text = "Share of ticks that reused llama.cpp's compute graph; changing batch shapes lower it."
    made.with_panel(lines("Graph reuse", text, "percentunit", [(share, EACH_LEGEND)]))
