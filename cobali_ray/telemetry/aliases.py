"""The same values under the names that boards for vLLM ask for.

`vllm:*` carries the label model_name, and everything the label engine. Its histograms keep vLLM's bounds and
add our finer ones below the lowest of them. They move when a request ends, except TTFT, tokens per tick, ITL.
TTFT and E2E begin at the HTTP server, as vLLM's do.
The reasons of `admission_rejections_total` are our words.
Not filled, because nothing here measures it: everything about LoRA, speculative decoding, several engines,
sleep states, external caches and image inputs; `cache_config_info` (there are no blocks); `*_created`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from cobali_ray.telemetry import bounds
from cobali_ray.telemetry.families import buckets, counter, gauge
from cobali_ray.telemetry.snapshot import Snapshot

_TTFT = bounds.from_below(bounds.TTFT, bounds.VLLM_TTFT)
_ITL = bounds.from_below(bounds.ITL, bounds.VLLM_ITL)
_REQUEST = bounds.from_below(bounds.REQUEST, bounds.VLLM_REQUEST)
VLLM_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...] | None]] = {
    "time_to_first_token_seconds": ("ttft_seconds", _TTFT),
    "inter_token_latency_seconds": ("itl_seconds", _ITL),
    "request_time_per_output_token_seconds": ("tpot_seconds", _ITL),
    "e2e_request_latency_seconds": ("e2e_seconds", _REQUEST),
    "request_queue_time_seconds": ("queue_seconds", _REQUEST),
    "request_prefill_time_seconds": ("prefill_seconds", _REQUEST),
    "request_decode_time_seconds": ("decode_seconds", _REQUEST),
    "request_inference_time_seconds": ("inference_seconds", _REQUEST),
    "iteration_tokens_total": ("tick_batch_tokens", bounds.VLLM_TICK_TOKENS),
    "request_prompt_tokens": ("request_prompt_tokens", None),
    "request_generation_tokens": ("request_output_tokens", None),
}
"""vLLM's name -> our family and the bounds to show (None: all of ours)."""

VLLM_COUNTERS = {
    "prompt_tokens": "prompt_tokens",
    "prompt_tokens_cached": "cached_prompt_tokens",
    "generation_tokens": "output_tokens",
    "num_preemptions": "preemptions",
    "prefix_cache_queries": "prompt_tokens",
    "prefix_cache_hits": "cached_prompt_tokens",
}
"""vLLM's name -> our total. It counts prefix cache queries and hits in tokens."""

FINISHED_REASONS = {
    "stop": ("stop",),
    "length": ("length",),
    "abort": ("cancelled", "deadline"),
    "error": ("bad_request", "refused", "error"),
}
ADMISSION_REASONS = ("queue_full_requests", "queue_full_tokens", "draining", "loading")


def vllm_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield them as they are without the label model_name."""
    last = snapshot.last
    for name, value in (
        ("num_requests_running", last.n_running),
        ("num_requests_waiting", last.n_queued),
        ("kv_cache_usage_perc", last.kv_usage),
    ):
        yield GaugeMetricFamily(f"vllm:{name}", f"Alias: {name}.", value)
    text, waiting = (
        "Alias: waiting requests; all wait for capacity.",
        {"capacity": last.n_queued, "deferred": 0},
    )
    yield gauge("vllm:num_requests_waiting_by_reason", text, "reason", waiting)
    for name, ours in VLLM_COUNTERS.items():
        yield CounterMetricFamily(f"vllm:{name}", f"Alias of cobali_{ours}_total.", snapshot.totals[ours])
    ended = {
        reason: sum(snapshot.counters["requests"][outcome] for outcome in outcomes)
        for reason, outcomes in FINISHED_REASONS.items()
    }
    yield counter("vllm:request_success", "Alias of cobali_requests_total.", "finished_reason", ended)
    refused = {reason: snapshot.counters["refusals"][reason] for reason in ADMISSION_REASONS}
    yield counter("vllm:admission_rejections", "Alias of cobali_refusals_total.", "reason", refused)
    for name, (ours, theirs) in VLLM_HISTOGRAMS.items():
        view = snapshot.histogram(ours)
        view = view if theirs is None else view.resampled(theirs)
        yield HistogramMetricFamily(f"vllm:{name}", f"Alias of cobali_{ours}.", buckets(view), view.sum)
