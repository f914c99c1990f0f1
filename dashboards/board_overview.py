"""The overview: is it up, is it fast, is it full, and what went wrong."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.builders.dashboard import Row
from panels import (
    CELLS,
    CORES,
    DEVICES,
    EACH,
    EACH_LEGEND,
    ENGINES,
    OUTCOMES,
    PLAIN,
    REQUESTS,
    RESTARTS,
    SERVER,
    SLOTS,
    TOKEN_RATE,
    TOKENS,
    Query,
    against_slo,
    alerts,
    board,
    heat,
    high_is_bad,
    lines,
    low_is_bad,
    number,
    over,
    painted,
    percentiles,
    quantile,
    rate,
    series,
    stacked,
    with_info,
)

SLOS = {
    "cobali_ttft_seconds": "slo_ttft",
    "cobali_engine_ttft_seconds": "slo_ttft",
    "cobali_itl_seconds": "slo_itl",
    "cobali_tpot_seconds": "slo_itl",
}


def build() -> dashboard.Dashboard:
    """Return the board `overview.json`."""
    made = board("cobali-overview", "cobali_ray / Overview", "Latency, throughput, queue and cache.")
    for add in (
        _now,
        _trouble,
        _latency,
        _throughput,
        _engines,
        _processes,
        _devices,
        _sizes,
        _cache,
        _capacity,
        _tenants,
    ):
        add(made)
    return made


def _now(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Now"))
    up = f"avg({series('cobali_engine_up')})"
    made.with_panel(
        number("Engines up", "Share of engines that answer.", "percentunit", (up, "up"), low_is_bad(0.5, 1))
    )
    there = [series("cobali_slots", state="prefilling|generating"), series("cobali_queue_requests")]
    load = f"({' + '.join(f'sum({one})' for one in there)}) / sum({series('cobali_slots')})"
    text = "Running and waiting requests per slot: above 100 % some wait, at 200 % as many wait as run."
    made.with_panel(number("Load", text, "percentunit", (load, "load"), high_is_bad(1, 2)))
    text = "How full the queue is, of max_queue or max_queue_tokens: at 100 % new requests get 429."
    fill = " or ".join(query for query, _ in _queue_fill())
    made.with_panel(
        number("Queue fill", text, "percentunit", (f"max({fill})", "used"), high_is_bad(0.5, 0.8))
    )
    usage = f"max({series('cobali_kv_usage_ratio')})"
    text = "Share of KV cells used by running requests, of the fullest engine."
    made.with_panel(number("KV use", text, "percentunit", (usage, "used"), high_is_bad(0.75, 0.9)))
    output = f"sum({rate('cobali_output_tokens_total')})"
    made.with_panel(
        number(
            "Output",
            "Output tokens per second of all streams together.",
            TOKEN_RATE,
            (output, "tok/s"),
            PLAIN,
        )
    )
    opened = f"sum({over('changes', 'cobali_start_time_seconds', '$__range')})"
    text = "Engine restarts in this time range; three within an hour fire CobaliCrashLoop."
    made.with_panel(number("Restarts", text, RESTARTS, (opened, "restarts"), high_is_bad(1, 3)))
    ttft = quantile(0.9, "cobali_ttft_seconds")
    text = "From a request's arrival to its first text, for 9 of 10 requests. Amber from 1 s, red from 2 s."
    made.with_panel(number("TTFT p90", text, "s", (ttft, "p90"), high_is_bad(1, 2)))
    itl = quantile(0.99, "cobali_itl_seconds")
    text = "Time between two tokens of a stream, for 99 of 100 tokens. Amber from 0.05 s, red from 0.1 s."
    made.with_panel(number("ITL p99", text, "s", (itl, "p99"), high_is_bad(0.05, 0.1)))
    speed = f"1 / {quantile(0.5, 'cobali_tpot_seconds')}"
    text = "Tokens per second of the median stream after its first token: people read 5 to 10."
    made.with_panel(number("Stream speed", text, TOKEN_RATE, (speed, "median"), low_is_bad(5, 10)))
    ended, refused = (f"sum({rate(f'cobali_{what}_total')})" for what in ("requests", "refusals"))
    text = "Share of requests that were refused on arrival."
    share = f"{refused} / ({refused} + {ended})"
    made.with_panel(number("Refused", text, "percentunit", (share, "refused"), high_is_bad(0.01, 0.05)))
    errors = f"sum({rate('cobali_requests_total', outcome='error')}) / {ended}"
    text = "Share of requests that ended with an error of the server; CobaliErrors fires above 1 %."
    made.with_panel(number("Errors", text, "percentunit", (errors, "errors"), high_is_bad(0.001, 0.01)))
    age = f"max({series('cobali_last_tick_age_seconds')})"
    text = "Time since the last tick while there is work; CobaliEngineStalled fires above 8 s."
    made.with_panel(number("Tick age", text, "s", (age, "age"), high_is_bad(2, 8)))


def _latency(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Latency"))
    for title, text, name in (
        (
            "TTFT",
            "Time from a request's arrival to its first text: what a client waits for.",
            "cobali_ttft_seconds",
        ),
        (
            "Engine's TTFT",
            "Time from arrival at the engine to the first output token.",
            "cobali_engine_ttft_seconds",
        ),
        (
            "Intake",
            "Time from a request's arrival to the engine: reading the body, template, tokenising.",
            "cobali_intake_seconds",
        ),
        ("ITL", "Time between two neighbouring tokens of a stream.", "cobali_itl_seconds"),
        ("TPOT", "Seconds per output token after the first, one sample per request.", "cobali_tpot_seconds"),
        ("E2E", "Time from a request's arrival to the last byte of its answer.", "cobali_e2e_seconds"),
        ("Queue time", "Time from arrival at the engine to getting a slot.", "cobali_queue_seconds"),
        ("Prefill time", "Time from getting a slot to the first output token.", "cobali_prefill_seconds"),
        ("Decode time", "Time from the first to the last output token.", "cobali_decode_seconds"),
    ):
        if name in SLOS:
            made.with_panel(against_slo(title, text, percentiles(name), SLOS[name], columns=3))
        else:
            made.with_panel(lines(title, text, "s", percentiles(name), columns=3))


def _throughput(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Throughput"))
    prefill = rate("cobali_tokens_total", kind="prefill")
    tokens = [
        (f"sum({rate('cobali_output_tokens_total')})", "output"),
        (f"sum({prefill})", "prompts, computed"),
        (f"sum({rate('cobali_cached_prompt_tokens_total')})", "prompts, cached"),
    ]
    made.with_panel(
        lines(
            "Tokens per second",
            "Output tokens, prompt tokens computed, and prompt tokens found in the cache.",
            TOKEN_RATE,
            tokens,
            columns=3,
        )
    )
    ended = [(f"sum by (outcome) ({rate('cobali_requests_total')})", "{{outcome}}")]
    text = "Requests that ended, per second: stop and length are complete answers."
    made.with_panel(painted(stacked("Requests by outcome", text, "reqps", ended, columns=3), OUTCOMES))
    state = [
        (f"sum({series('cobali_slots', state='prefilling|generating')})", "running"),
        (f"sum({series('cobali_queue_requests')})", "waiting"),
    ]
    made.with_panel(
        lines(
            "Running and waiting",
            "Requests in slots, and requests waiting for one.",
            REQUESTS,
            state,
            columns=3,
        )
    )


def _engines(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Models and engines"))
    output = [(with_info(rate("cobali_output_tokens_total"), "model"), "{{model}}")]
    text = "Output tokens per second of all engines of a model."
    made.with_panel(stacked("Output by model", text, TOKEN_RATE, output, columns=4))
    waits = with_info(rate("cobali_ttft_seconds_bucket"), "model", "le")
    ttft = [(f"histogram_quantile(0.9, {waits})", "{{model}}")]
    text = "Time from a request's arrival to its first text, by model; nine of ten requests took less."
    made.with_panel(against_slo("TTFT p90 by model", text, ttft, "slo_ttft", columns=4))
    machines = [(f"count by (node) (group by (engine, node) ({series('cobali_info')}))", "{{node}}")]
    text = "Engines that have their model loaded, by the address of their machine."
    made.with_panel(stacked("Engines by node", text, ENGINES, machines, columns=4))
    away = [(f"max by (engine) (1 - {series('cobali_engine_up')})", "engine {{engine}}")]
    text = "1 while an engine does not answer; its requests continue on another engine, or wait."
    made.with_panel(lines("Engines down", text, ENGINES, away, columns=4))
    for title, text, unit, query in (
        ("Output by engine", "Output tokens per second.", TOKEN_RATE, rate("cobali_output_tokens_total")),
        ("Waiting by engine", "Requests waiting for a slot.", REQUESTS, series("cobali_queue_requests")),
        (
            "KV use by engine",
            "Share of KV cells used by running requests.",
            "percentunit",
            series("cobali_kv_usage_ratio"),
        ),
    ):
        named = [(with_info(query, "model", "engine", "node"), "{{model}}, engine {{engine}} on {{node}}")]
        made.with_panel(lines(title, text, unit, named, columns=3))


def _sizes(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Request sizes"))
    text = "Requests by prompt length."
    made.with_panel(heat("Prompt length", text, TOKENS, "cobali_request_prompt_tokens"))
    text = "Requests by output length."
    made.with_panel(heat("Output length", text, TOKENS, "cobali_request_output_tokens"))


def _cache(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Prefix cache"))
    for title, text, what in (
        (
            "Requests with a cached beginning",
            "Share of requests by where their beginning was cached",
            "requests",
        ),
        ("Cached prompt tokens", "Share of prompt tokens by where they were cached", "tokens"),
    ):
        name = f"cobali_prefix_{what}_total"
        found = f"sum by (tier) ({rate(name, tier='slot|copy|host|disk')})"
        hits = [(f"{found} / scalar(sum({rate(name)}))", "{{tier}}")]
        whole = f"{text}: the same slot, another slot, host memory, disk."
        made.with_panel(stacked(title, whole, "percentunit", hits))


def _capacity(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Capacity"))
    slots = [(f"sum by (state) ({series('cobali_slots')})", "{{state}}")]
    made.with_panel(
        stacked("Slots by state", "Slots that are idle, prefilling or generating.", SLOTS, slots, columns=3)
    )
    cells = [(f"sum by (state) ({series('cobali_kv_cells')})", "{{state}}")]
    text = "KV cells used by running requests, kept for prefix reuse, and free."
    made.with_panel(stacked("KV cells", text, CELLS, cells, columns=3))
    host = [(f"sum by (state) ({series('cobali_host_cache_bytes')})", "{{state}}")]
    text = "Host memory for prefixes that slots have no room for, used and free."
    made.with_panel(stacked("Host cache", text, "bytes", host, columns=3))
    disk = [(f"max {EACH} ({series('cobali_disk_cache_bytes', state='used')})", EACH_LEGEND)]
    text = "Disk space of cached prefixes, at most disk_cache_gib; engines that share a folder show the same."
    made.with_panel(lines("Disk cache", text, "bytes", disk, columns=3))
    moved = [
        (f"sum({rate(f'cobali_{what}_tokens_total')})", legend)
        for what, legend in (
            ("host_cache_restored", "from host memory"),
            ("disk_cache_read", "from disk"),
            ("host_cache_saved", "to host memory"),
            ("host_cache_evicted", "dropped from host memory"),
            ("disk_cache_written", "to disk"),
        )
    ]
    text = "Tokens moved per second between slots and host memory, and between host memory and disk."
    made.with_panel(lines("Tokens moved between tiers", text, TOKEN_RATE, moved, columns=3))
    shares = [(f"max({share})", legend) for share, legend in _queue_fill()]
    text = "Share of max_queue and max_queue_tokens in use, preempted requests included: 100 % means 429."
    made.with_panel(lines("Queue fill", text, "percentunit", shares, columns=3))
    left = [(f"max by (state) (cobali_batch_lines{{{SERVER}}})", "{{state}}")]
    text = "Lines of batches that have not ended: answered, failed and waiting."
    made.with_panel(stacked("Batch lines", text, "suffix: lines", left, columns=3).no_value("no batches"))


def _queue_fill() -> list[Query]:
    return [
        (f"{series(f'cobali_queue_{what}')} / {series(f'cobali_queue_limit_{what}')}", legend)
        for what, legend in (("requests", "requests"), ("tokens", "prompt tokens"))
    ]


def _processes(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Processes and GPUs"))
    server = f'{{{SERVER}, part=~"ingress|front_end"}}'
    memory, cpu = "cobali_process_memory_bytes", "cobali_process_cpu_seconds_total"
    engines = f"sum by (engine) ({series(memory, part='engine')})"
    others = f"sum by (part) ({memory}{server})"
    text = "Resident memory of engines, ingresses and front ends; pages of model files count."
    queries = [(engines, "engine {{engine}}"), (others, "{{part}}")]
    made.with_panel(stacked("Memory", text, "bytes", queries, columns=4))
    engines = f"sum by (engine) ({rate(cpu, part='engine')})"
    others = f"sum by (part) (rate({cpu}{server}[$__rate_interval]))"
    text = "CPU cores kept busy by each engine, by the ingresses and by the front ends."
    queries = [(engines, "engine {{engine}}"), (others, "{{part}}")]
    made.with_panel(stacked("CPU", text, CORES, queries, columns=4))
    text = "From Ray's own metrics, see prometheus.yml; a machine without a GPU has none."
    where, legend = '{ip=~"$node"}', "{{ip}} GPU {{GpuIndex}}"
    use = [(f"sum by (ip, GpuIndex) (ray_node_gpus_utilization{where}) / 100", legend)]
    made.with_panel(lines("GPU use", text, "percentunit", use, columns=4).no_value("no GPU"))
    held = [(f"sum by (ip, GpuIndex) (ray_node_gram_used{where}) * 1024 * 1024", legend)]
    made.with_panel(lines("GPU memory", text, "bytes", held, columns=4).no_value("no GPU"))


def _devices(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Devices of engines"))
    who, text = (
        "engine {{engine}}, {{device}}",
        "Memory of the devices that the setting devices names, used and free.",
    )
    memory = [
        (f"max by (engine, device, state) ({series('cobali_device_memory_bytes')})", f"{who}: {{{{state}}}}")
    ]
    made.with_panel(stacked("Device memory", text, "bytes", memory, columns=3).no_value("no devices"))
    busy = [(f"max by (engine, device) ({rate('cobali_device_busy_seconds_total')})", who)]
    text = "Share of the time in which a device computed; known only for workers that lend a CPU."
    made.with_panel(lines("Device use", text, "percentunit", busy, columns=3).no_value("not known"))
    away = [(f"max by (engine, device) (1 - {series('cobali_device_up')})", who)]
    text = "1 while an engine computes without a worker that does not answer (split_fallback)."
    made.with_panel(lines("Devices missing", text, DEVICES, away, columns=3).no_value("no devices"))


def _tenants(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Tenants"))
    computed, said = (rate(f"cobali_tenant_{what}_tokens_total") for what in ("prompt", "output"))
    served = [(f"sum by (tenant) ({computed}) + 2 * sum by (tenant) ({said})", "{{tenant}}")]
    text = "Tokens of ended requests per second; output tokens count twice, as in fair sharing."
    made.with_panel(stacked("Tokens by tenant", text, TOKEN_RATE, served, columns=3))
    waited, ended = (rate(f"cobali_tenant_{what}_total") for what in ("queue_seconds", "requests"))
    waits = [(f"sum by (tenant) ({waited}) / sum by (tenant) ({ended})", "{{tenant}}")]
    text = "Mean time that requests waited for their first slot."
    made.with_panel(lines("Wait by tenant", text, "s", waits, columns=3))
    parked = [(f"sum by (priority) ({rate('cobali_class_preemptions_total')})", "{{priority}}")]
    text = "Preemptions per second by priority class: requests of lower priority make room for others."
    made.with_panel(lines("Preemptions by class", text, "ops", parked, columns=3))


def _trouble(made: dashboard.Dashboard) -> None:
    made.with_row(Row("Trouble"))
    made.with_panel(alerts())
    refused = [(f"sum by (reason) ({rate('cobali_refusals_total')})", "{{reason}}")]
    text = "Requests refused on arrival, per second."
    made.with_panel(stacked("Refusals by reason", text, "reqps", refused, columns=3))
    preempted = [(f"sum {EACH} ({rate('cobali_preemptions_total')})", EACH_LEGEND)]
    text = "Sequences sent back to the queue, per second: the KV cache was full, or others had priority."
    made.with_panel(lines("Preemptions", text, "ops", preempted, columns=3))
    continued = [(f"sum {EACH} ({rate('cobali_continued_total')})", EACH_LEGEND)]
    text = "Requests that an engine took over from one that died, per second."
    made.with_panel(lines("Continued requests", text, "reqps", continued, columns=3))
    age = [(f"max {EACH} ({series('cobali_last_tick_age_seconds')})", EACH_LEGEND)]
    text = "Seconds since the last tick while there is work: more than a few mean that the engine hangs."
    made.with_panel(lines("Age of the last tick", text, "s", age, columns=3))
    up = [(f"max {EACH} (time() - {series('cobali_start_time_seconds')})", EACH_LEGEND)]
    text = "Seconds since the engine's process began: a drop to zero is a restart."
    made.with_panel(lines("Engine uptime", text, "s", up, columns=3))
