"""What a Collector knows at one moment: plain values that travel between processes."""

from __future__ import annotations

from dataclasses import dataclass

from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.views.stats import DeviceView, TickStats
from cobali_ray.telemetry.histogram import HistogramView
from cobali_ray.telemetry.usage import ProcessUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One consistent copy of a Collector. Plain values: it can be pickled and rendered elsewhere."""

    engine_id: str
    model_name: str
    node: str
    """The address of the engine's machine; "" where nobody knows it."""
    limits: EngineLimits
    disk_bytes: int
    """Most that the files of the disk tier may take; 0: there is none."""
    began_unix_s: float
    """Unix time at which the engine's process began."""
    last: TickStats
    """The last tick without its chunks, gaps and spans, and with the latest ITL target that there was; while
    idle, the state without work."""
    histograms: dict[tuple[str, str], HistogramView]
    """By family name and label value ("" where there is no label)."""
    totals: dict[str, float]
    """Counters without a label, by name without `cobali_` and `_total`."""
    counters: dict[str, dict[str, float]]
    """Those with a label: by name, by label value."""
    last_tick_age_s: float = 0.0
    """Since the end of the last tick while there is work, 0 when idle; the engine's loop knows it."""
    usage: ProcessUsage | None = None
    """What the engine's process takes; None where nobody asked the system."""
    devices: tuple[DeviceView, ...] = ()
    """What it computes on beside the CPU."""

    def histogram(self, name: str, value: str = "") -> HistogramView:
        """Return one member of a family; KeyError if there is none."""
        return self.histograms[name, value]
