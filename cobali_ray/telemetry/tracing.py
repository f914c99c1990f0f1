"""Tracing: OpenTelemetry spans of HTTP requests and of the engine's part in them, sent by OTLP over HTTP.

Imported only where `otlp_endpoint` is set. Spans are made when a request ends, from the times that its
statistics hold anyway; a thread of their own sends them, and drops what a collector does not take.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cobali_ray import __version__
from cobali_ray.core.request.events import End
from cobali_ray.core.request.request import Request, TraceLink
from cobali_ray.telemetry.names import outcome_of
from cobali_ray.telemetry.onlooker import Onlooker

_log = structlog.get_logger(__name__)

TIMEOUT_S: Final = 5.0
"""How long one batch may be tried."""
DELAY_MS: Final = 1000
"""How long an ended span waits for company."""
LAST_WORDS_S: Final = 1.0
"""How long closing waits for a collector that does not answer."""
PATH: Final = "/v1/traces"
PROVIDER: Final = "cobali_ray"
_W3C: Final = TraceContextTextMapPropagator()


class Tracing:
    """Opens and closes spans of one process. `service` is its `service.name`.

    On the HTTP side nothing raises: a span that cannot be made is not there.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        service: str,
        about: Mapping[str, str] = MappingProxyType({}),
        exporter: SpanExporter | None = None,
        delay_ms: int = DELAY_MS,
    ) -> None:
        """`endpoint` is a collector's base URL; an `exporter` of one's own takes its place.

        `about` are further attributes of the process, such as its engine's id.
        """
        url = f"{endpoint.rstrip('/').removesuffix(PATH)}{PATH}"
        sender = exporter or OTLPSpanExporter(url, timeout=TIMEOUT_S)
        self._sender = _Reported(sender, endpoint)
        # It logs every batch that is not taken, every span that finds the queue full and every odd header,
        # and quotes what clients wrote. `_Reported` logs what matters.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        resource = Resource.create({"service.name": service, "service.version": __version__, **about})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._sender, schedule_delay_millis=delay_ms))
        self._tracer = self._provider.get_tracer("cobali_ray", __version__)
        self._onlooker = Onlooker("tracing")

    def flush(self) -> None:
        """Send what waits, and come back when it is sent or given up."""
        self._provider.force_flush()

    def begin(self, method: str, route: str, headers: Mapping[str, str]) -> RequestSpan | None:
        """Open the span of an HTTP request, in the client's trace if it named one."""
        return self._onlooker.look(self._begin, method, route, headers)

    def _begin(self, method: str, route: str, headers: Mapping[str, str]) -> RequestSpan:
        span = self._tracer.start_span(
            f"{method} {route}",
            context=_W3C.extract({n: headers[n] for n in ("traceparent", "tracestate") if n in headers}),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "http.route": route},
        )
        return RequestSpan(span, self._onlooker)

    def record(self, request: Request, end: End, ended_ns: int) -> None:
        """Make the engine's spans of a request that ended at `ended_ns`, nanoseconds since 1970."""
        link, stats = request.trace, end.stats
        if link is None:
            return
        began_ns = ended_ns - _ns(stats.e2e_s)
        parent = self._tracer.start_span(
            f"{link.operation} {link.model}",
            context=_W3C.extract({"traceparent": link.traceparent, "tracestate": link.tracestate}),
            kind=SpanKind.INTERNAL,
            start_time=began_ns,
            attributes=_attributes(request, link, end),
        )
        below = set_span_in_context(parent, Context())
        at_ns = began_ns
        phases = (("queue", stats.queue_s), ("prefill", stats.prefill_s), ("decode", stats.decode_s))
        for name, lasted_s in phases:
            until_ns = ended_ns if lasted_s is None else min(at_ns + _ns(lasted_s), ended_ns)
            phase = self._tracer.start_span(name, context=below, start_time=at_ns)
            if lasted_s is None or (name == "decode" and end.error is not None):
                _blame(phase, end)
            phase.end(until_ns)
            if lasted_s is None:
                break
            at_ns = until_ns
        _blame(parent, end)
        parent.end(ended_ns)

    def close(self) -> None:
        """Send what waits and stop; what is not taken within LAST_WORDS_S is dropped."""
        if self._sender.failing:
            self._sender.shutdown()
        hurry = threading.Timer(LAST_WORDS_S, self._sender.shutdown)
        hurry.start()
        self._provider.shutdown()
        hurry.cancel()


class RequestSpan:
    """The span of one HTTP request."""

    def __init__(self, span: Span, onlooker: Onlooker) -> None:
        self._span, self._onlooker = span, onlooker

    def link(self, operation: str, model: str) -> TraceLink | None:
        """Return what the engine needs to hang its own spans below this one."""
        return self._onlooker.look(self._link, operation, model)

    def _link(self, operation: str, model: str) -> TraceLink:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, set_span_in_context(self._span, Context()))
        return TraceLink(carrier["traceparent"], carrier.get("tracestate", ""), operation, model)

    def end(self, *, status: int | None, error: str | None, attributes: Mapping[str, Any]) -> None:
        """Close the span; it is an error if the server was at fault, also in mid-stream."""
        self._onlooker.look(self._end, status, error, attributes)

    def _end(self, status: int | None, error: str | None, attributes: Mapping[str, Any]) -> None:
        span = self._span
        span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        if status is not None:
            span.set_attribute("http.response.status_code", status)
        if error is not None:
            span.set_attribute("error.type", error)
        if (status or 0) >= 500 or (error is not None and status == 200):
            span.set_status(StatusCode.ERROR)
        span.end()


class _Reported(SpanExporter):
    """An exporter that logs once that its collector takes no spans, and once that it takes them again.

    It names the endpoint without the name and the password that may be in it.
    """

    def __init__(self, inner: SpanExporter, endpoint: str) -> None:
        scheme, separator, rest = endpoint.partition("://")
        self._inner, self._endpoint = inner, f"{scheme}{separator}{rest.rpartition('@')[2]}"
        self.failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self.failing:
            _log.warning("spans_not_taken", otlp_endpoint=self._endpoint, n_spans=len(spans))
        elif self.failing and not failed:
            _log.info("spans_taken_again", otlp_endpoint=self._endpoint)
        self.failing = failed
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._inner.force_flush(timeout_millis)


def _attributes(request: Request, link: TraceLink, end: End) -> dict[str, Any]:
    stats, sampling = end.stats, request.sampling
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": link.operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": link.model,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.response.id": request.request_id,
        "gen_ai.usage.input_tokens": stats.n_prompt,
        "gen_ai.usage.output_tokens": stats.n_output,
        "gen_ai.usage.cache_read.input_tokens": stats.n_cached,
        "gen_ai.response.finish_reasons": None if end.finish_reason is None else [end.finish_reason],
        "gen_ai.server.time_to_first_token": stats.ttft_s,
        "gen_ai.server.time_per_output_token": stats.tpot_s,
        "cobali.preemptions": stats.n_preempted,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _blame(span: Span, end: End) -> None:
    """Mark a span of a request that did not end well. The error's text may hold more than a trace should."""
    if end.error is not None:
        span.set_attribute("error.type", type(end.error).__name__)
        span.set_status(StatusCode.ERROR, outcome_of(end))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
