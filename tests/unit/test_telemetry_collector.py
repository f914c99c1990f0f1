"""Collector: exact counters, a ring that wraps, idle time, consistent reads."""

from __future__ import annotations

import pickle

import pytest
from telemetry_records import N_SLOTS, STOPPED, fed_collector, make_collector, make_tick

from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.core.request.events import End, RequestStats
from cobali_ray.telemetry.collector import READ_ATTEMPTS
from cobali_ray.telemetry.names import REFUSALS

DONE = {"n_idle": N_SLOTS, "n_prefilling": 0, "n_generating": 0, "n_queued": 0, "n_queued_tokens": 0}


def test_refusal_reasons_are_a_fixed_set():
    collector = make_collector()
    for reason in (*REFUSALS, "model-from-a-fuzzer", "", "other"):
        collector.on_refusal(reason)
    assert collector.snapshot().counters["refusals"] == {**dict.fromkeys(REFUSALS, 1), "other": 4}


def test_ring_wraps_and_keeps_the_newest():
    collector = make_collector(ring=4)
    assert collector.seen(3).ticks == []
    for tick_id in range(6):
        collector.on_tick(make_tick(tick_id))
    assert [tick.tick_id for tick in collector.seen(3).ticks] == [3, 4, 5]
    assert [tick.tick_id for tick in collector.seen(99).ticks] == [2, 3, 4, 5]
    assert collector.seen(0).ticks == []
    assert collector.snapshot().histogram("tick_seconds").count == 6, "counters do not wrap"


def test_gauges_follow_the_last_tick_and_fall_when_idle():
    collector = fed_collector()
    busy = collector.snapshot().last
    assert (busy.n_running, busy.n_queued, busy.n_tokens, busy.n_queued_tokens) == (4, 2, 35, 77)
    assert busy.kv_usage == 0.25
    collector.on_idle(80)
    idle = collector.snapshot().last
    assert (idle.n_idle, idle.n_running, idle.n_queued) == (N_SLOTS, 0, 0)
    assert (idle.n_queued_tokens, idle.n_tokens, idle.kv_usage, idle.n_cells_idle) == (0, 0, 0.0, 80)
    collector.on_idle(80, 3, 40, 2)
    paused = collector.snapshot().last
    assert (paused.n_queued, paused.n_queued_tokens, paused.n_texts_queued) == (3, 40, 2), (
        "they wait all the same"
    )
    collector.on_tick(make_tick(busy.tick_id))
    assert collector.snapshot().last == busy


def test_idle_time_and_gaps_between_forward_passes():
    collector = make_collector(now=lambda: 1.0)
    collector.on_tick(make_tick(started_s=1.0))
    collector.on_tick(make_tick(started_s=1.03, **DONE))  # forward ended at 1.017, starts again at 1.031
    collector.on_tick(make_tick(started_s=5.05))  # nothing to do since 1.05
    snapshot = collector.snapshot()
    gap = snapshot.histogram("tick_gap_seconds")
    assert (gap.count, gap.sum) == (1, pytest.approx(0.014))
    assert snapshot.totals["idle_seconds"] == pytest.approx(4.0)


def test_on_idle_starts_idle_time_too():
    collector = make_collector(now=lambda: 1.0)
    collector.on_tick(make_tick(started_s=1.0))  # its queued requests were then cancelled
    collector.on_idle(0)
    collector.on_tick(make_tick(started_s=3.02))
    snapshot = collector.snapshot()
    assert snapshot.totals["idle_seconds"] == pytest.approx(2.0)
    assert snapshot.histogram("tick_gap_seconds").count == 0


def test_idle_seconds_never_fall():
    """A scrape during the first tick after a pause sees it as idle; the record then says otherwise."""
    at = [0.0]
    collector = make_collector(now=lambda: at[0])
    at[0] = 2.5
    assert collector.snapshot().totals["idle_seconds"] == 2.5
    collector.on_tick(make_tick(started_s=2.0, total_s=1.0))
    assert collector.snapshot().totals["idle_seconds"] == 2.5
    collector.on_idle(0)
    at[0] = 4.0
    assert collector.snapshot().totals["idle_seconds"] == 3.0


def test_a_snapshot_travels_between_processes():
    snapshot = fed_collector().snapshot()
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot


def test_a_failing_record_leaves_reads_possible():
    collector = make_collector()
    with pytest.raises(TypeError):
        collector.on_tick(make_tick(gaps_s=None))
    assert collector.snapshot().histogram("tick_seconds").count == 1


def test_a_copy_that_a_write_disturbed_is_made_again():
    n_asked = 0

    def now() -> float:  # asked once at the start, then in the middle of every copy
        nonlocal n_asked
        n_asked += 1
        if 1 < n_asked <= 4:
            collector.on_tick(make_tick(n_asked, gaps_s=[0.01, 0.02]))
            collector.on_end(STOPPED)
        return 1000.0

    collector = make_collector(now=now)
    collector.on_tick(make_tick(0, gaps_s=[0.01, 0.02]))
    collector.on_end(STOPPED)
    seen = collector.snapshot()
    assert n_asked == 5
    assert seen.histogram("tick_seconds").count == seen.histogram("engine_e2e_seconds").count == 4
    assert seen.histogram("tick_tokens", "decode").sum == seen.totals["output_tokens"] == 3 * 4
    assert sum(seen.counters["requests"].values()) == 4


def test_a_writer_that_never_pauses_does_not_keep_readers_waiting():
    opened = False

    def now() -> float:
        if opened:
            collector.on_tick(make_tick(0))
        return 1000.0

    collector, opened = make_collector(now=now), True
    assert collector.snapshot().histogram("tick_seconds").count > READ_ATTEMPTS


def test_predictions_and_targets_outlive_the_ticks_without():
    collector = make_collector()
    collector.on_tick(make_tick(0, predicted_s=0.03, target_s=0.05))
    collector.on_tick(make_tick(1))
    snapshot = collector.snapshot()
    assert snapshot.counters["tick_prediction_seconds"] == {"predicted": 0.03, "real": 0.02}
    assert snapshot.histogram("tick_prediction_error_ratio").count == 1
    assert (snapshot.last.predicted_s, snapshot.last.target_s) == (0.0, 0.05)
    collector.on_idle(0)
    assert collector.snapshot().last.target_s == 0.0


def test_embedding_is_counted_apart_from_answers():
    collector = make_collector()
    collector.on_embed(EmbeddingRequest.of([[1] * 30, [2] * 10], request_id="e", tenant="alice"))
    collector.on_tick(make_tick(0, n_embedded=40, n_texts=2, n_texts_queued=3, embed_s=0.25))
    assert collector.snapshot().last.n_texts_queued == 3
    stats = RequestStats(40, 0, 0, 0.5, 0.25, None, None, 0.75)
    collector.on_end(End("e", "stop", None, stats))
    snapshot = collector.snapshot()
    assert (snapshot.totals["embedded_texts"], snapshot.totals["embedded_tokens"]) == (2, 40)
    assert snapshot.histogram("embedding_pass_seconds").sum == 0.25
    assert snapshot.histogram("embedding_queue_seconds").sum == 0.5
    assert snapshot.histogram("embedding_e2e_seconds").sum == 0.75
    assert snapshot.counters["tenant_prompt_tokens"] == {"alice": 40}
    assert snapshot.counters["requests"]["stop"] == 1
    assert snapshot.histogram("request_prompt_tokens").count == 0, "those are of answers"
