"""The overview: is it up, is it fast, is it full, and what went wrong."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.builders.dashboard import Row
from panels import board, heat, lines, number, percentiles, quantile, rate, series, stacked


def build() -> dashboard.Dashboard:
    """Return the board `overview.json`."""
    made = board("cobali-overview", "cobali_ray / Overview", "Latency, throughput, queue and cache.")
    for add in (_now, _latency, _heat, _throughput, _capacity, _trouble):
        add(made)
    return made


def _now(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Now"))
    busy = series("cobali_slots", state="prefilling|generating")
    running = f"sum({busy})"
    made.with_panel(number("Running", "Requests in slots.", "short", (running, "running")))
    queued = f"sum({series('cobali_queue_requests')})"
    made.with_panel(number("Queued", "Requests waiting for a slot.", "short", (queued, "queued")))
    output = f"sum({rate('cobali_output_tokens_total')})"
    made.with_panel(number("Output", "Output tokens per second.", "short", (output, "tokens/s")))
    ttft = quantile(0.9, "cobali_ttft_seconds")
    made.with_panel(number("TTFT p90", "Arrival to first output token.", "s", (ttft, "p90")))
    itl = quantile(0.99, "cobali_itl_seconds")
    made.with_panel(number("ITL p99", "Gap between neighbouring tokens of a stream.", "s", (itl, "p99")))
    usage = f"max({series('cobali_kv_usage_ratio')})"
    made.with_panel(number("KV use", "KV cells held by requests.", "percentunit", (usage, "used")))


def _latency(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Latency"))
    for title, text, name in (
        ("TTFT", "Arrival to first output token.", "cobali_ttft_seconds"),
        ("ITL", "Gap between neighbouring tokens of one stream.", "cobali_itl_seconds"),
        ("TPOT", "Seconds per output token after the first, one sample per request.", "cobali_tpot_seconds"),
        ("E2E", "Arrival to end event.", "cobali_e2e_seconds"),
        ("Queue time", "Arrival to slot.", "cobali_queue_seconds"),
        ("Prefill time", "Slot to first output token.", "cobali_prefill_seconds"),
    ):
        made.with_panel(lines(title, text, "s", percentiles(name), columns=3))


def _heat(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Latency, all of it"))
    made.with_panel(heat("TTFT heatmap", "Requests per bucket of TTFT.", "s", "cobali_ttft_seconds"))
    made.with_panel(heat("ITL heatmap", "Gaps per bucket of ITL.", "s", "cobali_itl_seconds"))


def _throughput(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Throughput"))
    prefill = rate("cobali_tokens_total", kind="prefill")
    tokens = [
        (f"sum({rate('cobali_output_tokens_total')})", "output"),
        (f"sum({prefill})", "prefill computed"),
        (f"sum({rate('cobali_cached_prompt_tokens_total')})", "prefill reused"),
    ]
    made.with_panel(lines("Tokens per second", "Sampled, computed, reused.", "short", tokens, columns=3))
    ended = [(f"sum by (outcome) ({rate('cobali_requests_total')})", "{{outcome}}")]
    made.with_panel(stacked("Requests by outcome", "Ended requests per second.", "reqps", ended, columns=3))
    sizes = [
        *((expr, f"prompt {p}") for expr, p in percentiles("cobali_request_prompt_tokens")),
        *((expr, f"output {p}") for expr, p in percentiles("cobali_request_output_tokens")),
    ]
    made.with_panel(lines("Request sizes", "Tokens of ended requests.", "short", sizes, columns=3))


def _capacity(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Capacity"))
    slots = [(f"sum by (state) ({series('cobali_slots')})", "{{state}}")]
    made.with_panel(stacked("Slots by state", "What the slots do.", "short", slots, columns=3))
    cells = [(f"sum by (state) ({series('cobali_kv_cells')})", "{{state}}")]
    text = "Held by requests, kept for prefix reuse, empty."
    made.with_panel(stacked("KV cells", text, "short", cells, columns=3))
    queue = [
        (f"sum({series('cobali_queue_requests')})", "requests"),
        (f"sum({series('cobali_queue_tokens')})", "prompt tokens"),
    ]
    made.with_panel(lines("Queue", "Waiting requests and their prompt tokens.", "short", queue, columns=3))


def _trouble(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Trouble"))
    refused = [(f"sum by (reason) ({rate('cobali_refusals_total')})", "{{reason}}")]
    text = "Requests refused at the door, per second."
    made.with_panel(stacked("Refusals by reason", text, "reqps", refused, columns=3))
    preempted = [(f"sum by (instance) ({rate('cobali_preemptions_total')})", "{{instance}}")]
    text = "Sequences sent back to the queue because the KV cache was full, per second."
    made.with_panel(lines("Preemptions", text, "ops", preempted, columns=3))
    age = [(f"max by (instance) ({series('cobali_last_tick_age_seconds')})", "{{instance}}")]
    text = "Seconds since the last tick while there is work: above a few, the engine hangs."
    made.with_panel(lines("Age of the last tick", text, "s", age, columns=3))
