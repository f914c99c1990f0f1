"""Whether the engine is there, as its ingress sees it: the metrics that remain while it is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric


class Presence(NamedTuple):
    """What an ingress knows of an engine."""

    engine_id: str
    up: bool
    """Whether it answers."""
    down_s: float
    """Since it was there last; 0 while it is there, and before the first time."""
    n_restarts: int
    """Since the server started."""


def presence_families(presence: Presence) -> Iterator[Metric]:
    yield GaugeMetricFamily("cobali_engine_up", "1 while the engine answers, else 0.", int(presence.up))
    text = "Seconds since the engine last answered; 0 while it does."
    yield GaugeMetricFamily("cobali_engine_down_seconds", text, presence.down_s)
    text = "Times that the engine was restarted since the server started."
    yield CounterMetricFamily("cobali_engine_restarts", text, presence.n_restarts)
