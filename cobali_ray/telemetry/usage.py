"""What the processes of a server take: memory and time on CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from cobali_ray.telemetry.families import labelled


class ProcessUsage(NamedTuple):
    """What one process takes."""

    part: str
    """What it is: `engine`, `ingress` or `front_end`."""
    pid: int
    memory_bytes: int
    """Resident, shared pages and mapped files included: a model's file is among them."""
    cpu_s: float
    """On all CPUs together, since the process began."""


def usage_of(process: psutil.Process, part: str) -> ProcessUsage:
    """Ask the system about a process. Raises psutil.Error if it is gone or not ours to see."""
    with process.oneshot():
        times = process.cpu_times()
        return ProcessUsage(part, process.pid, process.memory_info().rss, times.user + times.system)


def usage_families(process: ProcessUsage) -> Iterator[Metric]:
    families = [
        GaugeMetricFamily(
            "cobali_process_memory_bytes", "Resident memory of a process.", process.memory_bytes
        ),
        CounterMetricFamily(
            "cobali_process_cpu_seconds", "CPU seconds of a process, on all CPUs.", process.cpu_s
        ),
    ]
    return labelled(families, part=process.part, pid=str(process.pid))
