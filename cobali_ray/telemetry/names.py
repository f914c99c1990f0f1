"""The series of `cobali_*`, as tables: what exists, and what its label may say."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from cobali_ray.core.request.events import TIERS, End, FinishReason
from cobali_ray.core.request.request import TraceLink
from cobali_ray.errors import Outcome
from cobali_ray.telemetry import bounds

ONLY_ENGINE: Final = "0"
"""The id of the engine where there is one: the value of the label `engine`, as vLLM counts its engines."""
PHASES = ("plan", "forward", "sample", "publish")
KINDS = ("decode", "prefill")
OUTCOMES = (*get_args(FinishReason), *get_args(Outcome))
REFUSALS = (
    "queue_full_requests", "queue_full_tokens", "wait_too_long", "draining", "loading",
    "context_length_exceeded", "invalid_value", "other",
)  # fmt: skip
"""What the engine's door refuses for: the `reason` of an error. One that is not here counts as `other`."""
MAX_TENANTS = 50
"""Names that have series of their own; tenants that come later are counted together."""
ANYONE, OTHERS = "anyone", "others"
"""Names in series: for requests without a key, and for tenants beyond MAX_TENANTS."""

HttpTime: TypeAlias = Literal["ttft_seconds", "e2e_seconds"]
"""The histograms that the HTTP side fills: what a client waits for."""


SAMPLED: Final = 1
"""The flag in a `traceparent` of a trace that is sent to the collector."""


class HttpAnswer(NamedTuple):
    """What is counted of an HTTP request once it has ended: labels of few values, whatever clients send."""

    route: str
    """As declared; `unmatched` for paths that no route has, and for requests that were refused before."""
    method: str
    status: int


def exemplar_labels(answer_id: str, trace: TraceLink | None) -> dict[str, str]:
    """Return what leads from a bucket to one of its requests: the answer's id and, if any, its trace."""
    labels = {"answer_id": answer_id}
    if trace is not None:
        _, trace_id, _, flags = trace.traceparent.split("-")
        if int(flags, 16) & SAMPLED:
            labels["trace_id"] = trace_id
    return labels


class Spec(NamedTuple):
    """One histogram family; with a label it has one member per value."""

    name: str
    help: str
    bounds: tuple[float, ...]
    label: str = ""
    values: tuple[str, ...] = ("",)


HISTOGRAMS = (
    Spec("tick_seconds", "Duration of a tick.", bounds.TICK),
    Spec(
        "tick_phase_seconds",
        "Duration of a phase of a tick; on a GPU, forward includes publishing the tick before.",
        bounds.TICK,
        "phase",
        PHASES,
    ),
    Spec(
        "tick_gap_seconds",
        "Time from the end of a forward pass to the start of the next, while busy.",
        bounds.TICK,
    ),
    Spec("tick_tokens", "Decode or prefill tokens in a tick.", bounds.TICK_TOKENS, "kind", KINDS),
    Spec("tick_batch_tokens", "Tokens in a tick, decode and prefill together.", bounds.TICK_TOKENS),
    Spec(
        "tick_prediction_error_ratio",
        "Relative error of the predicted duration of a tick.",
        bounds.RATIO,
    ),
    Spec("prefill_chunk_tokens", "Prompt tokens of one request computed in a tick.", bounds.TICK_TOKENS[1:]),
    Spec("batch_sequences", "Sequences in the batch of a tick.", bounds.SEQUENCES),
    Spec("itl_seconds", "Inter-token latency: time between two neighbouring tokens of a stream.", bounds.ITL),
    Spec(
        "ttft_seconds",
        "Time to first token: from the arrival of the HTTP request to the first text of its answer.",
        bounds.TTFT,
    ),
    Spec("intake_seconds", "Time from the arrival of the HTTP request to the engine.", bounds.REQUEST),
    Spec("queue_seconds", "Time from arrival at the engine to getting a slot.", bounds.REQUEST),
    Spec("engine_ttft_seconds", "Time from arrival at the engine to the first output token.", bounds.TTFT),
    Spec("prefill_seconds", "Time from getting a slot to the first output token.", bounds.REQUEST),
    Spec("decode_seconds", "Time from the first to the last output token.", bounds.REQUEST),
    Spec("inference_seconds", "Time from getting a slot to the last output token.", bounds.REQUEST),
    Spec("tpot_seconds", "Seconds per output token after the first, per request.", bounds.ITL),
    Spec(
        "e2e_seconds",
        "Time from the arrival of the HTTP request to the last byte of its answer.",
        bounds.REQUEST,
    ),
    Spec("engine_e2e_seconds", "Time from arrival at the engine to the end of the request.", bounds.REQUEST),
    Spec("embedding_pass_seconds", "Duration of a pass over texts to embed.", bounds.TICK),
    Spec("embedding_pass_tokens", "Tokens in a pass over texts to embed.", bounds.TICK_TOKENS[1:]),
    Spec(
        "embedding_queue_seconds",
        "Time from arrival at the engine to the pass with the request's first text.",
        bounds.REQUEST,
    ),
    Spec(
        "embedding_e2e_seconds",
        "Time from arrival at the engine to the request's last vector.",
        bounds.REQUEST,
    ),
    Spec("request_prompt_tokens", "Prompt tokens of a request.", bounds.REQUEST_TOKENS),
    Spec("request_output_tokens", "Output tokens of a request.", bounds.REQUEST_TOKENS),
)
"""Every histogram family. No bound depends on an engine's settings: boards add engines up by bucket."""


class CounterSpec(NamedTuple):
    """A counter with one label."""

    label: str
    help: str
    values: tuple[str, ...] = ()
    """Those that are there from the beginning, at 0."""


COUNTERS = {
    "tick_prediction_seconds": CounterSpec(
        "kind",
        "Seconds of the ticks that had a prediction: predicted, and real (measured).",
        ("predicted", "real"),
    ),
    "prefix_requests": CounterSpec(
        "tier", "Requests that got a first token, by where the beginning of their prompt was cached.", TIERS
    ),
    "prefix_tokens": CounterSpec("tier", "Prompt tokens by where they were cached; none: computed.", TIERS),
    "requests": CounterSpec("outcome", "Requests that have ended, by how they ended.", OUTCOMES),
    "refusals": CounterSpec("reason", "Requests refused on arrival, by reason.", REFUSALS),
    "tenant_requests": CounterSpec("tenant", "Requests that have ended, by tenant."),
    "tenant_prompt_tokens": CounterSpec("tenant", "Prompt tokens computed, cached ones left out, by tenant."),
    "tenant_output_tokens": CounterSpec("tenant", "Output tokens, by tenant."),
    "tenant_queue_seconds": CounterSpec(
        "tenant", "Seconds that requests waited for their first slot, by tenant."
    ),
    "class_preemptions": CounterSpec(
        "priority", "Preemptions by priority class, counted when the request ends.", ("0",)
    ),
}
"""Every counter with a label, by its name without `cobali_` and `_total`."""
TOTALS = {
    "prompt_tokens": "Prompt tokens of requests that got a first token, including those found in the cache.",
    "cached_prompt_tokens": "Prompt tokens found in the cache: in a slot, in host memory or on disk.",
    "output_tokens": "Output tokens sampled.",
    "adapter_changes": "Forward passes that used another LoRA adapter than the pass before.",
    "drafted_tokens": "Tokens computed speculatively, as a guess at the next tokens of a stream.",
    "accepted_tokens": "Speculative tokens that turned out right.",
    "host_cache_hits": "Requests that continued from a prefix in host memory, including preempted ones.",
    "host_cache_restored_tokens": "Tokens restored from host memory to a slot.",
    "host_cache_saved_tokens": "Tokens saved from a slot to host memory.",
    "host_cache_evicted_tokens": "Tokens dropped from host memory to make room.",
    "disk_cache_hits": "Requests whose prefix was read from disk.",
    "disk_cache_read_tokens": "Tokens read from disk into host memory.",
    "disk_cache_written_tokens": "Tokens written to disk.",
    "continued": "Requests that this engine took over from one that died.",
    "preemptions": "Sequences that lost their slot and continue later.",
    "graphs_reused": "Forward passes that reused llama.cpp's compute graph.",
    "embedded_texts": "Texts embedded or scored.",
    "embedded_tokens": "Tokens of texts embedded or scored.",
    "idle_seconds": "Seconds in which the engine had no work.",
}
"""And every one without a label."""


def outcome_of(end: End) -> str:
    """Return which of OUTCOMES an end event is."""
    if end.finish_reason is not None:
        return end.finish_reason
    return "error" if end.error is None else end.error.outcome
