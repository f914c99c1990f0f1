"""The series of `cobali_*`, as tables: what exists, and what its label may say."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from cobali_ray.core.events import End, FinishReason
from cobali_ray.errors import Outcome
from cobali_ray.telemetry import bounds

ONLY_ENGINE: Final = "0"
"""The id of the engine where there is one: the value of the label `engine`, as vLLM counts its engines."""
PHASES = ("plan", "forward", "sample", "publish")
KINDS = ("decode", "prefill")
OUTCOMES = (*get_args(FinishReason), *get_args(Outcome))
REFUSALS = (
    "queue_full_requests",
    "queue_full_tokens",
    "wait_too_long",
    "draining",
    "loading",
    "context_length_exceeded",
    "invalid_value",
    "other",
)
"""What the engine's door refuses for: the `reason` of an error. One that is not here counts as `other`."""

HttpTime: TypeAlias = Literal["ttft_seconds", "e2e_seconds"]
"""The histograms that the HTTP side fills: what a client waits for."""


class HistogramSpec(NamedTuple):
    """One histogram family; with a label it has one member per value."""

    name: str
    help: str
    bounds: tuple[float, ...]
    label: str = ""
    values: tuple[str, ...] = ("",)


HISTOGRAMS = (
    HistogramSpec("tick_seconds", "One tick, start to end.", bounds.TICK),
    HistogramSpec(
        "tick_phase_seconds",
        "One phase of one tick; with overlap, forward contains the previous tick's publish.",
        bounds.TICK,
        "phase",
        PHASES,
    ),
    HistogramSpec(
        "tick_gap_seconds", "End of one forward pass to the start of the next, while busy.", bounds.TICK
    ),
    HistogramSpec("tick_tokens", "Tokens of one kind in one tick.", bounds.TICK_TOKENS, "kind", KINDS),
    HistogramSpec(
        "tick_batch_tokens", "Tokens in one tick, decode and prefill together.", bounds.TICK_TOKENS
    ),
    HistogramSpec(
        "tick_prediction_error_ratio",
        "|predicted - real| / real of a tick's time, once the model knows enough.",
        bounds.RATIO,
    ),
    HistogramSpec(
        "prefill_chunk_tokens", "Tokens of one prompt computed in one tick.", bounds.TICK_TOKENS[1:]
    ),
    HistogramSpec("batch_sequences", "Sequences in the batch of one tick.", bounds.SEQUENCES),
    HistogramSpec("itl_seconds", "Gap between two neighbouring tokens of one stream.", bounds.ITL),
    HistogramSpec(
        "ttft_seconds",
        "HTTP arrival to the first text ready to be sent, of an answer in one piece: to its being here.",
        bounds.TTFT,
    ),
    HistogramSpec("intake_seconds", "HTTP arrival to arrival at the engine.", bounds.REQUEST),
    HistogramSpec("queue_seconds", "Arrival at the engine to slot.", bounds.REQUEST),
    HistogramSpec("engine_ttft_seconds", "Arrival at the engine to first output token.", bounds.TTFT),
    HistogramSpec("prefill_seconds", "Slot to first output token.", bounds.REQUEST),
    HistogramSpec("decode_seconds", "First to last output token.", bounds.REQUEST),
    HistogramSpec("inference_seconds", "Slot to last output token.", bounds.REQUEST),
    HistogramSpec("tpot_seconds", "Seconds per output token after the first, per request.", bounds.ITL),
    HistogramSpec(
        "e2e_seconds", "HTTP arrival to the last byte sent, per answered HTTP request.", bounds.REQUEST
    ),
    HistogramSpec("engine_e2e_seconds", "Arrival at the engine to end event.", bounds.REQUEST),
    HistogramSpec("embedding_pass_seconds", "One pass of texts to embed, before a tick.", bounds.TICK),
    HistogramSpec("embedding_pass_tokens", "Tokens of one such pass.", bounds.TICK_TOKENS[1:]),
    HistogramSpec(
        "embedding_queue_seconds", "Arrival at the engine to a request's first text.", bounds.REQUEST
    ),
    HistogramSpec(
        "embedding_e2e_seconds", "Arrival at the engine to a request's last vector.", bounds.REQUEST
    ),
    HistogramSpec("request_prompt_tokens", "Prompt tokens of an ended request.", bounds.REQUEST_TOKENS),
    HistogramSpec("request_output_tokens", "Output tokens of an ended request.", bounds.REQUEST_TOKENS),
)
"""Every histogram family. No bound depends on an engine's settings: boards add engines up by bucket."""


def outcome_of(end: End) -> str:
    """Return which of OUTCOMES an end event is."""
    if end.finish_reason is not None:
        return end.finish_reason
    return "error" if end.error is None else end.error.outcome
