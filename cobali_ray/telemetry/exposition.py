"""A Snapshot as Prometheus text: the `cobali_*` families, then the aliases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from cobali_ray import __version__
from cobali_ray.core.views.stats import DeviceView
from cobali_ray.telemetry.aliases import vllm_families
from cobali_ray.telemetry.families import buckets, counter, gauge, labelled
from cobali_ray.telemetry.names import COUNTERS, HISTOGRAMS, KINDS, PHASES, TOTALS, HttpAnswer
from cobali_ray.telemetry.snapshot import Snapshot
from cobali_ray.telemetry.usage import ProcessUsage, usage_families

Encoder: TypeAlias = Callable[[Collector], bytes]

openmetrics: Encoder = partial(generate_openmetrics, escaping=ALLOWUTF8)
"""Writes OpenMetrics, which has exemplars; by default prometheus_client makes `vllm_` of `vllm:` there."""


class Presence(NamedTuple):
    """What an ingress knows of an engine, also while it is not there."""

    engine_id: str
    up: bool
    """Whether it answers."""
    down_s: float
    """Since it was there last; 0 while it is there, and before the first time."""
    n_restarts: int
    """Since the server started."""


class EngineMetrics(NamedTuple):
    """What is known of an engine: at best, all of it."""

    snapshot: Snapshot | None
    presence: Presence | None = None
    answers: Mapping[HttpAnswer, int] = MappingProxyType({})
    """HTTP requests of all ingresses that were counted by it, also while it has no model."""


def render_all(
    engines: Sequence[EngineMetrics],
    processes: Sequence[ProcessUsage] = (),
    encode: Encoder = generate_latest,
    others: Sequence[Metric] = (),
) -> bytes:
    """Return the text of engines: what has one name stands together, as Prometheus wants it.

    `processes` are those of the server that are no engine; they have no label `engine`, nor have `others`.
    `encode` writes the format: Prometheus's, version 0.0.4, or `openmetrics`.
    """
    joined: dict[str, Metric] = {}
    for family in chain(*map(_of, engines), *map(usage_families, processes), others):
        if (first := joined.setdefault(family.name, family)) is not family:
            first.samples += family.samples
    return encode(_Families(joined.values()))


class _Families(Collector):
    """Families for prometheus_client, which asks a collector for them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _of(counts: EngineMetrics) -> Iterator[Metric]:
    if counts.presence is not None:
        families = [*_presence(counts.presence), _http_family(counts.answers)]
        yield from labelled(families, engine=counts.presence.engine_id)
    if counts.snapshot is not None:
        yield from labelled(_families(counts.snapshot), engine=counts.snapshot.engine_id)


def _presence(presence: Presence) -> Iterator[Metric]:
    yield GaugeMetricFamily("cobali_engine_up", "1 while the engine answers, else 0.", int(presence.up))
    text = "Seconds since the engine last answered; 0 while it does."
    yield GaugeMetricFamily("cobali_engine_down_seconds", text, presence.down_s)
    text = "Engine restarts since the server started."
    yield CounterMetricFamily("cobali_engine_restarts", text, presence.n_restarts)


def _http_family(answers: Mapping[HttpAnswer, int]) -> Metric:
    text = "HTTP requests that have ended, by route, method and status."
    family = CounterMetricFamily("cobali_http_requests", text, labels=HttpAnswer._fields)
    for answer, n in answers.items():
        family.add_metric(list(map(str, answer)), n)
    return family


def _families(snapshot: Snapshot) -> Iterator[Metric]:
    yield from _counters(snapshot)
    yield from _gauges(snapshot)
    yield from _histograms(snapshot)
    if snapshot.usage is not None:
        yield from usage_families(snapshot.usage)
    for device in snapshot.devices:  # an engine on a CPU has none
        yield from labelled(_device(device), device=device.name)
    yield from labelled(vllm_families(snapshot), model_name=snapshot.model_name)


def _counters(snapshot: Snapshot) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "cobali_ticks", "Ticks of the engine.", snapshot.histogram("tick_seconds").count
    )
    tokens = {kind: snapshot.histogram("tick_tokens", kind).sum for kind in KINDS}
    yield counter("cobali_tokens", "Tokens computed, by kind: decode or prefill.", "kind", tokens)
    phases = {phase: snapshot.histogram("tick_phase_seconds", phase).sum for phase in PHASES}
    yield counter("cobali_phase_seconds", "Seconds spent in each phase of a tick.", "phase", phases)
    for name, spec in COUNTERS.items():
        yield counter(f"cobali_{name}", spec.help, spec.label, snapshot.counters[name])
    for name, text in TOTALS.items():
        yield CounterMetricFamily(f"cobali_{name}", text, snapshot.totals[name])


def _gauges(snapshot: Snapshot) -> Iterator[Metric]:
    last, limits = snapshot.last, snapshot.limits
    text = "Model, version and machine of the engine; the value is always 1."
    info = [GaugeMetricFamily("cobali_info", text, 1)]
    yield from labelled(info, model=snapshot.model_name, version=__version__, node=snapshot.node)
    states = {"idle": last.n_idle, "prefilling": last.n_prefilling, "generating": last.n_generating}
    yield gauge("cobali_slots", "Slots by state: idle, prefilling, generating.", "state", states)
    n_used, n_kept = last.n_cells_used, last.n_cells_idle
    cells = {"used": n_used - n_kept, "idle_prefix": n_kept, "free": last.n_cells - n_used}
    text = "KV cells used by running requests, kept for prefix reuse, and free."
    yield gauge("cobali_kv_cells", text, "state", cells)
    n_host, n_free = last.n_host_cells, limits.n_host_cells - last.n_host_cells
    host = {"used": n_host * limits.cell_bytes, "free": n_free * limits.cell_bytes}
    yield gauge("cobali_host_cache_bytes", "Host memory for cached prefixes, used and free.", "state", host)
    disk = {"used": last.n_disk_bytes, "free": max(snapshot.disk_bytes - last.n_disk_bytes, 0)}
    yield gauge("cobali_disk_cache_bytes", "Disk space for cached prefixes, used and free.", "state", disk)
    for name, text, value in (
        ("queue_requests", "Requests waiting for a slot.", last.n_queued),
        ("queue_tokens", "Prompt tokens of requests waiting for a slot.", last.n_queued_tokens),
        ("embedding_queue_texts", "Texts waiting to be embedded.", last.n_texts_queued),
        ("kv_usage_ratio", "Share of KV cells used by running requests, 0 to 1.", last.kv_usage),
        ("batch_tokens", "Tokens in the last tick; 0 when idle.", last.n_tokens),
        ("tick_predicted_seconds", "Predicted duration of the last tick.", last.predicted_s),
        ("itl_target_seconds", "ITL target of the latest tick that had one; 0 when idle.", last.target_s),
        ("token_budget", "Maximum tokens in one tick.", limits.token_budget),
        (
            "slot_context_tokens",
            "Maximum tokens of a request, prompt and answer together.",
            limits.n_ctx_slot,
        ),
        (
            "queue_limit_requests",
            "Maximum waiting requests; beyond that, new ones get 429.",
            limits.max_queue,
        ),
        (
            "queue_limit_tokens",
            "Maximum waiting prompt tokens; beyond that, new requests get 429.",
            limits.max_queue_tokens,
        ),
        ("start_time_seconds", "Unix time at which the engine's process began.", snapshot.began_unix_s),
        (
            "last_tick_age_seconds",
            "Seconds since the last tick while there is work; 0 when idle.",
            snapshot.last_tick_age_s,
        ),
    ):
        yield GaugeMetricFamily(f"cobali_{name}", text, value)


def _histograms(snapshot: Snapshot) -> Iterator[Metric]:
    for spec in HISTOGRAMS:
        labels = (spec.label,) if spec.label else ()
        family = HistogramMetricFamily(f"cobali_{spec.name}", spec.help, labels=labels)
        for value in spec.values:
            view = snapshot.histogram(spec.name, value)
            family.add_metric((value,) if spec.label else (), buckets(view), view.sum)
        yield family


def _device(device: DeviceView) -> Iterator[Metric]:
    text = "1 while the engine computes on the device, 0 while it computes without it."
    yield gauge("cobali_device_up", text, "kind", {device.kind: device.there})
    if device.there:
        text = "Memory of a device: used by any process, and free."
        memory = {"used": device.total_bytes - device.free_bytes, "free": device.free_bytes}
        yield gauge("cobali_device_memory_bytes", text, "state", memory)
    if device.busy_s is not None:
        text = "Seconds in which a device computed; absent if that is not known."
        yield CounterMetricFamily("cobali_device_busy_seconds", text, device.busy_s)
