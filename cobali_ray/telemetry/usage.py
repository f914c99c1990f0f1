"""What the processes of a server take: memory and time on CPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

_LABELS = ("part", "pid")


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


def usage_families(processes: Sequence[ProcessUsage]) -> Iterator[Metric]:
    memory = GaugeMetricFamily("cobali_process_memory_bytes", "Resident memory of a process.", labels=_LABELS)
    text = "CPU seconds of a process, on all CPUs."
    cpu = CounterMetricFamily("cobali_process_cpu_seconds", text, labels=_LABELS)
    for process in processes:
        who = (process.part, str(process.pid))
        memory.add_metric(who, process.memory_bytes)
        cpu.add_metric(who, process.cpu_s)
    yield memory
    yield cpu
