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
    made = board("cobali-requests", "cobali_ray / Requests", "What clients asked and what became of it.")
    for add in (_now, _heat, _ends, _http, _life, _sizes):
        add(made)
    return made


def _now(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Now"))
    made.with_panel(number("Ended", "Requests that ended, per second.", "reqps", (ENDED, "ended"), PLAIN))
    good = f"sum({rate('cobali_requests_total', outcome='stop|length')}) / {ENDED}"
    text = "Share of ended requests that got their whole answer."
    made.with_panel(number("Answered", text, "percentunit", (good, "answered"), low_is_bad(0.9, 0.99)))
    turned_away = f"{REFUSED} / ({REFUSED} + {ENDED})"
    text = "Share of all requests that were refused at the door."
    made.with_panel(number("Refused", text, "percentunit", (turned_away, "refused"), high_is_bad(0.01, 0.05)))
    ttft = quantile(0.99, "cobali_ttft_seconds")
    text = "HTTP arrival to first text. Amber from half of 2 s, red from there, as CobaliTtftOverSlo."
    made.with_panel(number("TTFT p99", text, "s", (ttft, "p99"), high_is_bad(1, 2)))
    prompt = quantile(0.5, "cobali_request_prompt_tokens")
    made.with_panel(number("Prompt p50", "Tokens of ended requests.", TOKENS, (prompt, "p50"), PLAIN))
    output = quantile(0.5, "cobali_request_output_tokens")
    made.with_panel(number("Output p50", "Tokens of ended requests.", TOKENS, (output, "p50"), PLAIN))


def _heat(made: dashboard.Dashboard) -> None:
    made.with_row(Row("How long they took, all of them"))
    for title, text, name in (
        ("TTFT heatmap", "Requests per bucket of HTTP arrival to first text.", "cobali_ttft_seconds"),
        (
            "Engine's TTFT heatmap",
            "Requests per bucket of arrival at the engine to first output token.",
            "cobali_engine_ttft_seconds",
        ),
        ("ITL heatmap", "Gaps per bucket, between neighbouring tokens of one stream.", "cobali_itl_seconds"),
        (
            "Queue time heatmap",
            "Requests per bucket of arrival at the engine to slot.",
            "cobali_queue_seconds",
        ),
        (
            "Prefill time heatmap",
            "Requests per bucket of slot to first token.",
            "cobali_prefill_seconds",
        ),
        (
            "E2E heatmap",
            "Requests per bucket of HTTP arrival to the answer's last byte.",
            "cobali_e2e_seconds",
        ),
    ):
        made.with_panel(heat(title, text, "s", name))


def _ends(made: dashboard.Dashboard) -> None:
    made.with_row(Row("How they ended"))
    outcomes = [(f"sum by (outcome) ({rate('cobali_requests_total')})", "{{outcome}}")]
    text = "Ended requests per second: stop and length are answers."
    made.with_panel(painted(stacked("Outcomes", text, "reqps", outcomes, columns=3), OUTCOMES))
    unanswered = rate("cobali_requests_total", outcome="cancelled|deadline|bad_request|refused|error")
    failures = {name: color for name, color in OUTCOMES.items() if name not in {"stop", "length"}}
    shares = [(f"sum by (outcome) ({unanswered}) / scalar({ENDED})", "{{outcome}}")]
    text = "Share of ended requests: clients that left, deadlines, and errors, which the log explains."
    made.with_panel(painted(stacked("Not answered", text, "percentunit", shares, columns=3), failures))
    reasons = [(f"sum by (reason) ({rate('cobali_refusals_total')})", "{{reason}}")]
    text = "Refused at the door per second: queue_full is max_queue or max_queue_tokens."
    made.with_panel(stacked("Refusals by reason", text, "reqps", reasons, columns=3))


def _http(made: dashboard.Dashboard) -> None:
    made.with_row(Row("HTTP requests"))
    answers = rate("cobali_http_requests_total")
    text = "HTTP requests that ended, per second, whatever they asked for: 401 is a missing or wrong API key."
    by_status = [(f"sum by (status) ({answers})", "{{status}}")]
    made.with_panel(stacked("HTTP requests by status", text, "reqps", by_status))
    text = "Per second, by route: unmatched are unknown paths, and requests without a valid key."
    by_route = [(f"sum by (route, method) ({answers})", "{{method}} {{route}}")]
    made.with_panel(stacked("HTTP requests by route", text, "reqps", by_route))


def _life(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Where their time goes"))
    parts = [
        (per_request(f"cobali_{part}_seconds"), legend)
        for part, legend in (
            ("intake", "intake"),
            ("queue", "queue"),
            ("prefill", "prefill"),
            ("decode", "decode"),
        )
    ]
    text = "Mean seconds of an ended request: on its way in, waiting, its prompt, its answer."
    made.with_panel(stacked("Mean life of a request", text, "s", parts))
    speed = [
        (f"1 / {quantile(q, 'cobali_tpot_seconds')}", legend)
        for legend, q in (("median stream", 0.5), ("slowest 1 %", 0.99))
    ]
    text = "Output tokens per second that one stream gets after its first token."
    made.with_panel(lines("Speed of a stream", text, TOKEN_RATE, speed))


def _sizes(made: dashboard.Dashboard) -> None:
    made.with_row(Row("What they asked for"))
    prompts = percentiles("cobali_request_prompt_tokens")
    made.with_panel(lines("Prompt length", "Tokens of ended requests.", TOKENS, prompts, columns=3))
    outputs = percentiles("cobali_request_output_tokens")
    made.with_panel(lines("Output length", "Tokens of ended requests.", TOKENS, outputs, columns=3))
    cached, prompt = rate("cobali_cached_prompt_tokens_total"), rate("cobali_prompt_tokens_total")
    reused = [(f"sum({cached}) / sum({prompt})", "reused")]
    text = "Share of prompt tokens that a slot already held, so that they were not computed."
    made.with_panel(lines("Prefix reuse", text, "percentunit", reused, columns=3))
