"""What OpenTelemetry's environment and its own loggers may do to a server that traces."""

import logging
import threading
import warnings

import httpx2
import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from cobali_ray import extras
from cobali_ray.actors.tracing import EngineTracer, open_tracing, require_tracing
from cobali_ray.errors import MissingExtraError
from cobali_ray.settings import EngineSettings
from cobali_ray.telemetry.tracing import Tracing

SETTINGS = EngineSettings(otlp_endpoint="http://127.0.0.1:1")
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
N_QUEUED = 2048
"""Spans that the SDK lets wait."""


class Stuck(SpanExporter):
    """A collector that takes nothing until it may."""

    def __init__(self):
        self.may_go = threading.Event()

    def export(self, spans):
        self.may_go.wait(10)
        return SpanExportResult.SUCCESS

    def shutdown(self):
        self.may_go.set()


@pytest.fixture
def spoken(caplog):
    """Return what is logged by others than us, as if nobody had silenced anything before."""
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name[:5] == "opent"]
    before = {logger: logger.level for logger in loggers}
    for logger in loggers:
        logger.setLevel(logging.NOTSET)
    caplog.set_level(logging.DEBUG)
    yield caplog
    for logger, level in before.items():
        logger.setLevel(level)


@pytest.mark.parametrize("word", ["true", " TRUE "])
def test_a_disabled_sdk_means_no_tracing(monkeypatch, word):
    monkeypatch.setenv("OTEL_SDK_DISABLED", word)
    assert open_tracing(SETTINGS.server.otlp_endpoint, "ingress") is None
    assert EngineTracer.open(SETTINGS, "0") is None


def test_without_the_exporter_nothing_starts_that_was_to_trace(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, when imported
        from cobali_ray.actors.app import join
    monkeypatch.setattr(extras, "find_spec", {"opentelemetry.sdk": object()}.get)
    require_tracing(EngineSettings())
    with pytest.raises(MissingExtraError, match=r"\[otel\]"):
        join(SETTINGS)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    require_tracing(SETTINGS)


@pytest.mark.parametrize("word", ["false", "", "1"])
def test_anything_else_is_no_disabled_sdk(monkeypatch, word):
    monkeypatch.setenv("OTEL_SDK_DISABLED", word)
    tracing = open_tracing(SETTINGS.server.otlp_endpoint, "ingress")
    link = tracing.begin("POST", "/v1/completions", {}).link("chat", "tiny")
    assert link.traceparent.startswith("00-")
    tracing.close()


def test_what_a_client_wrote_does_not_get_into_the_log(spoken):
    tracing = Tracing("http://127.0.0.1:1", service="test", exporter=Stuck())
    for tracestate in ("my secret", "a=1,my secret=2", "=" * 99, "x" * 600):
        headers = httpx2.Headers({"traceparent": TRACEPARENT, "tracestate": tracestate})
        tracing.begin("POST", "/v1/completions", headers).link("chat", "tiny")
    tracing.close()
    assert [record.getMessage() for record in spoken.records] == []


def test_a_full_queue_does_not_fill_the_log(spoken):
    stuck = Stuck()
    tracing = Tracing("http://127.0.0.1:1", service="test", exporter=stuck, delay_ms=60_000)
    for _ in range(2 * N_QUEUED):
        tracing.begin("POST", "/v1/completions", {}).end(status=200, error=None, attributes={})
    stuck.may_go.set()
    tracing.close()
    assert [record.getMessage() for record in spoken.records] == []
