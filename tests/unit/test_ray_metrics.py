"""What Ray's metrics are told: each value once; a metric that Ray does not take costs its own values only."""

import threading
import warnings
from collections import defaultdict

import pytest
from structlog.testing import capture_logs
from telemetry_records import fed_collector, make_collector

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    import ray.serve  # noqa: F401  its models use pydantic's old ways; nothing of Ray is started

from cobali_ray.actors import ray_metrics
from cobali_ray.actors.ray_metrics import RayMetrics

WAIT_S = 60


class Told:
    """What Ray was told: every call by metric, with its labels. `broken` metrics raise."""

    def __init__(self):
        self.calls, self.labels, self.broken = defaultdict(list), {}, set()

    def metric(self, name, *, tag_keys, boundaries=None):
        def tell(value, tags):
            if name in self.broken:
                raise ValueError(f"no {name}")
            assert set(tags) == set(tag_keys)
            self.calls[name].append(value)
            self.labels[name] = tags

        made = type("Metric", (), {})()
        made.set = made.inc = made.observe = tell
        return made


@pytest.fixture
def told(monkeypatch):
    told = Told()
    for kind in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(ray_metrics, kind, told.metric)
    return told


def test_each_value_is_told_once_under_the_engines_id(told):
    metrics = RayMetrics(fed_collector().snapshot)
    metrics.publish()
    first = {name: list(values) for name, values in told.calls.items() if name not in GAUGES}
    metrics.publish()
    assert {name: values for name, values in told.calls.items() if name not in GAUGES} == first
    assert sum(told.calls["vllm_generation_tokens"]) > 0
    assert all(labels["engine"] == "0" for labels in told.labels.values())


GAUGES = {f"vllm_{name}" for name in ray_metrics.GAUGES}


def test_a_metric_that_fails_costs_its_own_values_only_and_is_tried_again(told):
    told.broken = {"vllm_num_requests_running", "vllm_prompt_tokens"}
    collector = make_collector()
    metrics = RayMetrics(collector.snapshot)
    fed = fed_collector()
    with capture_logs() as logs:
        for snapshot in (collector.snapshot, fed.snapshot, fed.snapshot):
            metrics._snapshot = snapshot
            metrics.publish()
    assert [(line["event"], line["part"]) for line in logs] == [("telemetry_failed", "ray_metrics")]
    assert sum(told.calls["vllm_generation_tokens"]) == fed.snapshot().totals["output_tokens"]
    told.broken = set()
    metrics.publish()
    assert told.calls["vllm_num_requests_running"] == [fed.snapshot().levels.n_running]


def test_a_failure_does_not_end_the_thread(told):
    fed, again, n_asked = fed_collector(), threading.Event(), 0

    def snapshot():
        nonlocal n_asked
        n_asked += 1
        if n_asked in {2, 3}:
            raise RuntimeError("no snapshot")
        if n_asked > 4:
            again.set()
        return fed.snapshot()

    metrics = RayMetrics(snapshot, period_s=0.001)
    with capture_logs() as logs:
        metrics.start()
        try:
            assert again.wait(WAIT_S)
        finally:
            metrics.stop()
            metrics._thread.join(WAIT_S)
    assert [line["event"] for line in logs] == ["telemetry_failed"]
    assert sum(told.calls["vllm_generation_tokens"]) == fed.snapshot().totals["output_tokens"]
