"""What a scrape returns: it parses, adds up, and says the same under every name."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from math import inf

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from telemetry_records import LIFE, STOPPED, fed_collector, make_collector, make_tick, render, waited

from cobali_ray import __version__
from cobali_ray.core.request.request import Request, TraceLink
from cobali_ray.core.request.sequence import Sequence
from cobali_ray.telemetry import bounds
from cobali_ray.telemetry.aliases import VLLM_COUNTERS, VLLM_HISTOGRAMS
from cobali_ray.telemetry.exposition import EngineMetrics, Presence, openmetrics, render_all
from tools.monitoring import find

PROMTOOL = find("promtool")
ENGINE = {"engine": "0"}
WHO = {"model_name": "tiny"} | ENGINE


def samples_of(text):
    """Return (name, labels) -> value."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def text():
    return render(replace(fed_collector().snapshot(), last_tick_age_s=1.5))


@pytest.fixture(scope="module")
def value(text):
    samples = samples_of(text)
    return lambda name, **labels: samples[name, frozenset((ENGINE | labels).items())]


def test_every_histogram_is_cumulative_and_adds_up(text):
    histograms = [f for f in text_string_to_metric_families(text) if f.type == "histogram"]
    assert len(histograms) >= 27
    for family in histograms:
        members = {}
        for sample in family.samples:
            rest = frozenset((k, v) for k, v in sample.labels.items() if k != "le")
            members.setdefault(rest, []).append(sample)
        for samples in members.values():
            buckets = [(float(s.labels["le"]), s.value) for s in samples if s.name == f"{family.name}_bucket"]
            assert buckets == sorted(buckets), family.name
            assert len(dict(buckets)) == len(buckets), "each bound is there once"
            assert buckets[-1][0] == inf
            total = next(s.value for s in samples if s.name == f"{family.name}_count")
            assert buckets[-1][1] == total, family.name
            assert next(s.value for s in samples if s.name == f"{family.name}_sum") >= 0


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("cobali_ticks_total", {}, 4),
        ("cobali_tokens_total", {"kind": "decode"}, 12),
        ("cobali_tokens_total", {"kind": "prefill"}, 128),
        ("cobali_prompt_tokens_total", {}, 120),
        ("cobali_cached_prompt_tokens_total", {}, 30),
        ("cobali_output_tokens_total", {}, 12),
        ("cobali_requests_total", {"outcome": "stop"}, 1),
        ("cobali_requests_total", {"outcome": "length"}, 1),
        ("cobali_requests_total", {"outcome": "cancelled"}, 1),
        ("cobali_requests_total", {"outcome": "deadline"}, 1),
        ("cobali_requests_total", {"outcome": "error"}, 1),
        ("cobali_queue_seconds_count", {}, 3),  # who never got a slot has no queue time
        ("cobali_itl_seconds_count", {}, 12),
        ("cobali_requests_total", {"outcome": "bad_request"}, 0),
        ("cobali_refusals_total", {"reason": "other"}, 1),
        ("cobali_graphs_reused_total", {}, 4),
        ("cobali_preemptions_total", {}, 0),
        ("cobali_phase_seconds_total", {"phase": "forward"}, 0.064),
        ("cobali_idle_seconds_total", {}, 0),
        ("cobali_slots", {"state": "idle"}, 4),
        ("cobali_slots", {"state": "prefilling"}, 1),
        ("cobali_slots", {"state": "generating"}, 3),
        ("cobali_queue_requests", {}, 2),
        ("cobali_queue_tokens", {}, 77),
        ("cobali_kv_cells", {"state": "used"}, 250),
        ("cobali_kv_cells", {"state": "idle_prefix"}, 50),
        ("cobali_kv_cells", {"state": "free"}, 700),
        ("cobali_kv_usage_ratio", {}, 0.25),
        ("cobali_batch_tokens", {}, 35),
        ("cobali_token_budget", {}, 64),
        ("cobali_slot_context_tokens", {}, 125),
        ("cobali_queue_limit_requests", {}, 16),
        ("cobali_queue_limit_tokens", {}, 2000),
        ("cobali_start_time_seconds", {}, 1.7e9),
        ("cobali_prefill_chunk_tokens_bucket", {"le": "8.0"}, 4),
        ("cobali_prefill_chunk_tokens_sum", {}, 128),
        ("cobali_last_tick_age_seconds", {}, 1.5),
        ("cobali_ttft_seconds_count", {}, 2),
        ("cobali_ttft_seconds_sum", {}, 0.13),
        ("cobali_intake_seconds_sum", {}, 3 * 0.02),
        ("cobali_e2e_seconds_sum", {}, 0.14),
        ("cobali_info", {"model": "tiny", "version": __version__, "node": "10.0.0.1"}, 1),
        ("cobali_itl_seconds_bucket", {"le": "0.02"}, 4),  # 0.02 itself belongs to it
        ("cobali_itl_seconds_sum", {}, 4 * 0.341),
        ("cobali_request_prompt_tokens_bucket", {"le": "50.0"}, 3),
    ],
)
def test_values(value, name, labels, expected):
    assert value(name, **labels) == pytest.approx(expected)


@pytest.mark.parametrize(("theirs", "ours"), VLLM_COUNTERS.items())
def test_vllm_counters_are_ours(value, theirs, ours):
    assert value(f"vllm:{theirs}_total", **WHO) == value(f"cobali_{ours}_total")


@pytest.mark.parametrize("theirs", VLLM_HISTOGRAMS)
def test_vllm_histograms_are_ours(text, theirs):
    ours = VLLM_HISTOGRAMS[theirs][0]
    samples, seen = samples_of(text), 0
    for (name, labels), n in samples.items():
        if name in {f"vllm:{theirs}_{end}" for end in ("bucket", "sum", "count")}:
            seen += 1
            twin = name.replace(f"vllm:{theirs}", f"cobali_{ours}")
            assert n == samples[twin, labels - {("model_name", "tiny")}], (name, labels)
    assert seen >= 10
    assert samples[f"vllm:{theirs}_count", frozenset(WHO.items())] > 0


def test_vllm_histograms_keep_their_bounds_and_add_finer_ones(text):
    found = {
        float(dict(labels)["le"])
        for name, labels in samples_of(text)
        if name == "vllm:time_to_first_token_seconds_bucket"
    }
    assert found == {*bounds.VLLM_TTFT, 0.0005, inf}


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("num_requests_running", {}, 4),
        ("num_requests_waiting", {}, 2),
        ("num_requests_waiting_by_reason", {"reason": "capacity"}, 2),
        ("kv_cache_usage_perc", {}, 0.25),
        ("request_success_total", {"finished_reason": "stop"}, 1),
        ("request_success_total", {"finished_reason": "abort"}, 2),
        ("request_success_total", {"finished_reason": "error"}, 1),
        ("admission_rejections_total", {"reason": "queue_full_requests"}, 1),
    ],
)
def test_other_vllm_values(value, name, labels, expected):
    assert value(f"vllm:{name}", **WHO, **labels) == expected


def test_a_scrape_before_the_first_tick_has_every_family(text):
    names = {family.name for family in text_string_to_metric_families(render(make_collector().snapshot()))}
    assert names == {family.name for family in text_string_to_metric_families(text)}


def test_engines_of_any_size_have_the_same_buckets():
    """Sums over instances would not be cumulative otherwise."""
    small, large = (
        set(
            samples_of(render(make_collector(n_slots=n_slots, n_ctx_slot=n_ctx, token_budget=256).snapshot()))
        )
        for n_slots, n_ctx in ((1, 90), (256, 131_072))
    )
    assert small == large


def test_a_model_name_cannot_break_the_format():
    name = 'a"b\\c\nd'
    samples = samples_of(render(make_collector(model_name=name).snapshot()))
    labels = ENGINE | {"model": name, "version": __version__, "node": "10.0.0.1"}
    assert ("cobali_info", frozenset(labels.items())) in samples


def test_every_sample_says_whose_it_is():
    presence = Presence(engine_id="7", up=True, down_s=0.0, n_restarts=0)
    families = text_string_to_metric_families(render(make_collector(engine_id="7").snapshot(), presence))
    samples = [sample for family in families for sample in family.samples]
    assert {sample.labels["engine"] for sample in samples} == {"7"}
    assert {sample.name.split("_")[0].split(":")[0] for sample in samples} == {"cobali", "vllm"}


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not here; `make monitoring-tools` fetches it")
@pytest.mark.parametrize(
    ("prefix", "complaints_allowed"),
    [
        pytest.param("cobali_", False, id="ours-follow-the-naming-rules"),
        pytest.param("", True, id="all-parse"),  # names of others break the rules: colons, _total
    ],
)
def test_promtool(text, prefix, complaints_allowed):
    lines = [
        line
        for line in text.splitlines()
        if line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(prefix)
    ]
    checked = subprocess.run(
        [PROMTOOL, "check", "metrics"], input="\n".join(lines) + "\n", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    # 1: cannot be parsed, 3: parsed, with complaints
    assert checked.returncode in ({0, 3} if complaints_allowed else {0}), checked.stderr


def test_openmetrics_names_a_request_for_each_bucket_that_has_one():
    collector = make_collector()
    trace = TraceLink(f"00-{'a' * 32}-{'b' * 16}-03", "", "chat", "tiny")
    request = Request(request_id="r1", prompt=(1,), max_tokens=1, trace=trace)
    collector.on_submit(Sequence(request, arrived_s=0.0))
    collector.on_end(STOPPED)
    collector.on_http({"e2e_seconds": [waited(0.14), waited(0.141)]})
    text = render_all([EngineMetrics(collector.snapshot())], encode=openmetrics).decode()
    samples = [sample for family in parse_openmetrics(text) for sample in family.samples]
    assert {one.name for one in samples} == {name for name, _ in samples_of(render(collector.snapshot()))}
    exemplars = {
        sample.name.removesuffix("_bucket"): (sample.exemplar, float(sample.labels["le"]))
        for sample in samples
        if sample.exemplar is not None
    }
    asked = {"cobali_queue_seconds", "cobali_prefill_seconds", "cobali_tpot_seconds", "cobali_e2e_seconds"}
    assert asked < exemplars.keys()
    queued, le = exemplars["cobali_queue_seconds"]
    assert queued.labels == {"answer_id": "r1", "trace_id": "a" * 32}
    assert queued.value == LIFE.queue_s <= le
    assert exemplars["cobali_e2e_seconds"][0] == waited(0.141), "the last one of its bucket"
    assert " # {" not in render(collector.snapshot()), "which the older format has no place for"


def test_drafts_are_counted_and_gain_no_first_token():
    collector = make_collector()
    collector.on_tick(
        make_tick(0, n_sampled=4, gaps_s=[0.01], n_drafted=7, n_accepted=3, n_adapter_changes=1)
    )
    lines = render(collector.snapshot()).splitlines()
    assert 'cobali_drafted_tokens_total{engine="0"} 7.0' in lines
    assert 'cobali_adapter_changes_total{engine="0"} 1.0' in lines
    assert 'cobali_accepted_tokens_total{engine="0"} 3.0' in lines
    assert 'cobali_output_tokens_total{engine="0"} 4.0' in lines


def test_host_memory_is_shown_in_bytes_and_its_traffic_in_tokens():
    collector = make_collector(n_host_cells=1000, cell_bytes=2048)
    moved = {"n_host_hits": 2, "n_restored": 300, "n_saved": 500, "n_evicted": 40}
    collector.on_tick(make_tick(0, n_host_cells=600, **moved))
    collector.on_tick(make_tick(1, n_host_cells=700, **moved))
    collector.on_idle(0)
    lines = render(collector.snapshot()).splitlines()
    for line in (
        'cobali_host_cache_bytes{engine="0",state="used"} 1.4336e+06',
        'cobali_host_cache_bytes{engine="0",state="free"} 614400.0',
        'cobali_host_cache_hits_total{engine="0"} 4.0',
        'cobali_host_cache_restored_tokens_total{engine="0"} 600.0',
        'cobali_host_cache_saved_tokens_total{engine="0"} 1000.0',
        'cobali_host_cache_evicted_tokens_total{engine="0"} 80.0',
    ):
        assert line in lines


def test_the_disk_is_shown_in_bytes_and_its_traffic_in_tokens():
    collector = make_collector(disk_bytes=5000)
    moved = {"n_disk_hits": 1, "n_loaded": 128, "n_written": 64}
    collector.on_tick(make_tick(0, n_disk_bytes=1000, **moved))
    collector.on_tick(make_tick(1, n_disk_bytes=3000, **moved))
    collector.on_idle(0)
    lines = render(collector.snapshot()).splitlines()
    for line in (
        'cobali_disk_cache_bytes{engine="0",state="used"} 3000.0',
        'cobali_disk_cache_bytes{engine="0",state="free"} 2000.0',
        'cobali_disk_cache_hits_total{engine="0"} 2.0',
        'cobali_disk_cache_read_tokens_total{engine="0"} 256.0',
        'cobali_disk_cache_written_tokens_total{engine="0"} 128.0',
    ):
        assert line in lines
