"""The requests: how long they took, how they ended, who was turned away and why, what they asked for."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.builders.dashboard import Row
from panels import (
    OUTCOMES,
    PLAIN,
    TOKEN_RATE,
    TOKENS,
    board,
    heat,
    high_is_bad,
    lines,
    low_is_bad,
    number,
    painted,
    per_request,
    percentiles,
    quantile,
    rate,
    stacked,
)

ENDED = f"sum({rate('cobali_requests_total')})"
REFUSED = f"sum({rate('cobali_refusals_total')})"


def build() -> dashboard.Dashboard:
    """Return the board `requests.json`."""
    made = board(
        "cobali-requests", "cobali_ray / Requests", "What clients asked for, and how their requests ended."
    )
    for add in (_now, _heat, _ends, _http, _life, _sizes):
        add(made)
    return made


def _now(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Now"))
    made.with_panel(number("Ended", "Requests that ended, per second.", "reqps", (ENDED, "ended"), PLAIN))
    good = f"sum({rate('cobali_requests_total', outcome='stop|length')}) / {ENDED}"
    text = "Share of requests that got a complete answer."
    made.with_panel(number("Answered", text, "percentunit", (good, "answered"), low_is_bad(0.9, 0.99)))
    turned_away = f"{REFUSED} / ({REFUSED} + {ENDED})"
    text = "Share of requests that were refused on arrival."
    made.with_panel(number("Refused", text, "percentunit", (turned_away, "refused"), high_is_bad(0.01, 0.05)))
    ttft = quantile(0.99, "cobali_ttft_seconds")
    text = "From a request's arrival to its first text. Amber from 1 s, red from 2 s, as CobaliTtftOverSlo."
    made.with_panel(number("TTFT p99", text, "s", (ttft, "p99"), high_is_bad(1, 2)))
    prompt = quantile(0.5, "cobali_request_prompt_tokens")
    made.with_panel(number("Prompt p50", "Tokens per request.", TOKENS, (prompt, "p50"), PLAIN))
    output = quantile(0.5, "cobali_request_output_tokens")
    made.with_panel(number("Output p50", "Tokens per request.", TOKENS, (output, "p50"), PLAIN))


def _heat(made: dashboard.Dashboard) -> None:
    made.with_row(Row("How long requests took"))
    for title, text, name in (
        (
            "TTFT heatmap",
            "Requests by the time from their arrival to their first text.",
            "cobali_ttft_seconds",
        ),
        (
            "Engine's TTFT heatmap",
            "Requests by the time from their arrival at the engine to their first output token.",
            "cobali_engine_ttft_seconds",
        ),
        ("ITL heatmap", "Gaps between neighbouring tokens of a stream, by length.", "cobali_itl_seconds"),
        (
            "Queue time heatmap",
            "Requests by the time from their arrival at the engine to getting a slot.",
            "cobali_queue_seconds",
        ),
        (
            "Prefill time heatmap",
            "Requests by the time from getting a slot to their first token.",
            "cobali_prefill_seconds",
        ),
        (
            "E2E heatmap",
            "Requests by the time from their arrival to the last byte of the answer.",
            "cobali_e2e_seconds",
        ),
    ):
        made.with_panel(heat(title, text, "s", name))


def _ends(made: dashboard.Dashboard) -> None:
    made.with_row(Row("How requests ended"))
    outcomes = [(f"sum by (outcome) ({rate('cobali_requests_total')})", "{{outcome}}")]
    text = "Requests that ended, per second: stop and length are complete answers."
    made.with_panel(painted(stacked("Outcomes", text, "reqps", outcomes, columns=3), OUTCOMES))
    unanswered = rate("cobali_requests_total", outcome="cancelled|deadline|bad_request|refused|error")
    failures = {name: color for name, color in OUTCOMES.items() if name not in {"stop", "length"}}
    shares = [(f"sum by (outcome) ({unanswered}) / scalar({ENDED})", "{{outcome}}")]
    text = "Share of requests without a complete answer; the log explains the errors."
    made.with_panel(painted(stacked("Not answered", text, "percentunit", shares, columns=3), failures))
    reasons = [(f"sum by (reason) ({rate('cobali_refusals_total')})", "{{reason}}")]
    text = "Requests refused on arrival, per second: queue_full means max_queue or max_queue_tokens."
    made.with_panel(stacked("Refusals by reason", text, "reqps", reasons, columns=3))


def _http(made: dashboard.Dashboard) -> None:
    made.with_row(Row("HTTP requests"))
    answers = rate("cobali_http_requests_total")
    text = "All HTTP requests that ended, per second; 401 is a missing or wrong API key."
    by_status = [(f"sum by (status) ({answers})", "{{status}}")]
    made.with_panel(stacked("HTTP requests by status", text, "reqps", by_status))
    text = "HTTP requests per second by route; unmatched: unknown paths, and requests without a valid key."
    by_route = [(f"sum by (route, method) ({answers})", "{{method}} {{route}}")]
    made.with_panel(stacked("HTTP requests by route", text, "reqps", by_route))


def _life(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Where the time goes"))
    parts = [
        (per_request(f"cobali_{part}_seconds"), legend)
        for part, legend in (
            ("intake", "intake"),
            ("queue", "queue"),
            ("prefill", "prefill"),
            ("decode", "decode"),
        )
    ]
    text = "Mean seconds per request: intake, waiting, computing the prompt, writing the answer."
    made.with_panel(stacked("Mean time of a request by stage", text, "s", parts))
    speed = [
        (f"1 / {quantile(q, 'cobali_tpot_seconds')}", legend)
        for legend, q in (("median stream", 0.5), ("slowest 1 %", 0.99))
    ]
    text = "Output tokens per second of one stream after its first token."
    made.with_panel(lines("Speed of a stream", text, TOKEN_RATE, speed))


def _sizes(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Sizes"))
    prompts = percentiles("cobali_request_prompt_tokens")
    made.with_panel(lines("Prompt length", "Tokens per request.", TOKENS, prompts, columns=3))
    outputs = percentiles("cobali_request_output_tokens")
    made.with_panel(lines("Output length", "Tokens per request.", TOKENS, outputs, columns=3))
    cached, prompt = rate("cobali_cached_prompt_tokens_total"), rate("cobali_prompt_tokens_total")
    # Prometheus extrapolates each counter by itself, so that the first minutes' quotient can exceed 1.
    reused = [(f"clamp_max(sum({cached}) / sum({prompt}), 1)", "reused")]
    text = "Share of prompt tokens found in the cache, which were not computed again."
    made.with_panel(lines("Prefix reuse", text, "percentunit", reused, columns=3))
