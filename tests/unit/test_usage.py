"""What processes take: counted as the system says, each under its part, never another server's."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace

import psutil
from prometheus_client.parser import text_string_to_metric_families
from telemetry_records import fed_collector

from cobali_ray.core.views.stats import DeviceView
from cobali_ray.telemetry.exposition import EngineMetrics, render_all
from cobali_ray.telemetry.usage import ProcessUsage, usage_of

WAIT = "input()"
ASK = "import json; from cobali_ray.actors.listening import beside; print(json.dumps(beside()))"
SERVE = f"""
import subprocess, sys
python = {sys.executable!r}
front = subprocess.Popen(["haproxy", "-c", {WAIT!r}, "-f x"], executable=python, stdin=subprocess.PIPE)
ingress = ["ray::ServeReplica:cobali:ingress", "-c", {ASK!r}]
print(front.pid, flush=True)
subprocess.run(ingress, executable=python, check=True)
front.communicate(b"end\\n")
"""


def test_a_process_is_counted_as_the_system_says():
    took = usage_of(psutil.Process(), "engine")
    assert (took.part, took.pid) == ("engine", os.getpid())
    most_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert 10 << 20 < took.memory_bytes < 1.1 * most_kib * 1024, "resident, not merely mapped"
    assert 0 < took.cpu_s <= sum(os.times()[:2])


def test_engines_are_told_by_their_label_and_the_other_parts_have_none():
    snapshot = replace(fed_collector().snapshot(), usage=ProcessUsage("engine", 7, 1000, 2.5))
    text = render_all([EngineMetrics(snapshot)], [ProcessUsage("ingress", 8, 2000, 0.5)]).decode()
    found = {
        (sample.name, sample.labels.get("engine"), sample.labels["part"], sample.labels["pid"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("cobali_process_")
    }
    assert found == {
        ("cobali_process_memory_bytes", "0", "engine", "7"): 1000,
        ("cobali_process_memory_bytes", None, "ingress", "8"): 2000,
        ("cobali_process_cpu_seconds_total", "0", "engine", "7"): 2.5,
        ("cobali_process_cpu_seconds_total", None, "ingress", "8"): 0.5,
    }


def test_devices_are_told_as_far_as_they_are_known():
    there = DeviceView(name="worker", kind="GPU", free_bytes=3, total_bytes=8, busy_s=2.5)
    gpu = DeviceView(name="CUDA0", kind="GPU", free_bytes=1, total_bytes=4)
    missing = DeviceView(name="far:1", kind="worker", there=False)
    snapshot = replace(fed_collector().snapshot(), devices=(there, gpu, missing))
    found = {}
    for family in text_string_to_metric_families(render_all([EngineMetrics(snapshot)]).decode()):
        for sample in family.samples:
            if sample.name.startswith("cobali_device_"):
                labels = (sample.labels["device"], sample.labels.get("state"))
                found[sample.name.removeprefix("cobali_device_"), *labels] = sample.value
    assert found == {
        ("up", "worker", None): 1, ("up", "CUDA0", None): 1, ("up", "far:1", None): 0,
        ("memory_bytes", "worker", "used"): 5, ("memory_bytes", "worker", "free"): 3,
        ("memory_bytes", "CUDA0", "used"): 3, ("memory_bytes", "CUDA0", "free"): 1,
        ("busy_seconds_total", "worker", None): 2.5,
    }  # fmt: skip


def test_an_ingress_sees_itself_and_the_front_end_of_its_own_server():
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    other = subprocess.Popen(
        ["haproxy", "-c", WAIT, "-f x"], executable=sys.executable, stdin=subprocess.PIPE, env=environ
    )
    try:
        done = subprocess.run(
            ["cobali serve", "-c", SERVE], executable=sys.executable, env=environ, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
    finally:
        other.communicate(b"end\n")
    front_pid, answer = done.stdout.splitlines()
    parts = {part: pid for part, pid, *_ in json.loads(answer)}
    assert set(parts) == {"ingress", "front_end"}
    assert parts["front_end"] == int(front_pid) != other.pid
