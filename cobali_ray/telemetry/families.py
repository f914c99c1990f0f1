"""Small builders over prometheus_client's metric families."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar

from cobali_ray.telemetry.histogram import HistogramView


@lru_cache(maxsize=128)
def _le(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return (*(repr(bound) for bound in bounds), "+Inf")


def buckets(view: HistogramView) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Return (le, cumulative count), some with an exemplar, as HistogramMetricFamily wants them."""
    exemplars = map(view.exemplars.get, range(len(view.counts)))
    return [
        (le, float(n)) if exemplar is None else (le, float(n), exemplar)
        for le, n, exemplar in zip(_le(view.bounds), view.cumulative(), exemplars, strict=True)
    ]


def counter(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    """Return a counter with one label: a sample per item of `values`."""
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, n in values.items():
        family.add_metric((value,), n)
    return family


def gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """Return a gauge with one label: a sample per item of `values`."""
    family = GaugeMetricFamily(name, text, labels=(label,))
    for value, n in values.items():
        family.add_metric((value,), n)
    return family


def batch_families(statuses: Mapping[str, int], lines: Mapping[str, int]) -> list[Metric]:
    """Return the metrics of batches that are not over, of all of a server."""
    return [
        gauge("cobali_batches", "Batches that have not ended, by status.", "status", statuses),
        gauge("cobali_batch_lines", "Lines of batches that have not ended, by state.", "state", lines),
    ]


def labelled(families: Iterable[Metric], **labels: str) -> Iterator[Metric]:
    """Add these labels to every sample."""
    for family in families:
        for sample in family.samples:
            sample.labels.update(labels)  # each sample has a dictionary of its own
        yield family
