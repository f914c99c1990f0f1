"""The devices of an engine as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from cobali_ray.core.views.stats import DeviceView


def device_families(devices: Sequence[DeviceView]) -> Iterator[Metric]:
    """Yield what is known of each; an engine on a CPU has none."""
    text = "1 while the engine computes on the device, 0 while it goes without."
    up = GaugeMetricFamily("cobali_device_up", text, labels=("device", "kind"))
    text = "Memory of a device, used by anyone and free."
    memory = GaugeMetricFamily("cobali_device_memory_bytes", text, labels=("device", "state"))
    text = "Seconds in which a device computed, where that is known."
    busy = CounterMetricFamily("cobali_device_busy_seconds", text, labels=("device",))
    for device in devices:
        up.add_metric((device.name, device.kind), device.there)
        if device.there:
            memory.add_metric((device.name, "used"), device.total_bytes - device.free_bytes)
            memory.add_metric((device.name, "free"), device.free_bytes)
        if device.busy_s is not None:
            busy.add_metric((device.name,), device.busy_s)
    yield up
    yield memory
    yield busy
