"""OpenTelemetry spans, decoded by a receiver that speaks real OTLP over HTTP."""

import asyncio
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest
from engine_in_process import WAIT_S, Setup
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from structlog.testing import capture_logs

from cobali_ray.api.app import build_api
from cobali_ray.core.request.events import End, RequestStats
from cobali_ray.core.request.request import Request, TraceLink
from cobali_ray.errors import ConfigError, DeadlineExceededError, RequestCancelledError
from cobali_ray.settings import ApiSettings, read_settings
from cobali_ray.telemetry.tracing import _W3C as W3C
from cobali_ray.telemetry.tracing import Tracing

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
ENDED_NS = 1_800_000_000_000_000_000
SPOKE = RequestStats(10, 4, 5, 0.5, 0.25, 0.75, 1.0, 1.8)
IN_QUEUE = RequestStats(10, 0, 0, None, None, None, None, 1.8)
IN_PREFILL = RequestStats(10, 0, 0, 0.5, None, None, None, 1.8)


class Receiver:
    """A collector: takes spans at /v1/traces and answers with a status of the test's choice."""

    def __init__(self):
        self.spans, self.services, self.engines, self.status, self.headers = [], [], [], 200, []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path == "/v1/traces" and receiver.status == 200:
                    receiver.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(receiver.status if self.path == "/v1/traces" else 404)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def take(self, batch):
        for resource in batch.resource_spans:
            about = attributes_of(resource.resource)
            for scope in resource.scope_spans:
                self.spans += scope.spans
                self.services += [about["service.name"]] * len(scope.spans)
                self.engines += [about.get("cobali.engine_id")] * len(scope.spans)

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def named(self, name):
        (span,) = (span for span in self.spans if span.name == name)
        return span


def attributes_of(holder):
    def plain(value):
        kind = value.WhichOneof("value")
        return [plain(v) for v in value.array_value.values] if kind == "array_value" else getattr(value, kind)

    return {pair.key: plain(pair.value) for pair in holder.attributes}


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def tracing(receiver):
    tracing = Tracing(receiver.url + "/", service="test", delay_ms=60_000)
    yield tracing
    tracing.close()


def traced(**changes):
    link = TraceLink(TRACEPARENT, "vendor=1", "chat", "tiny")
    return Request(**{"request_id": "r", "prompt": (1,) * 10, "max_tokens": 5, "trace": link} | changes)


def test_a_request_is_a_span_with_its_phases_inside(tracing, receiver):
    tracing.record(traced(), End("r", "stop", None, SPOKE), ENDED_NS)
    tracing.flush()
    whole = receiver.named("chat tiny")
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert whole.trace_state == "vendor=1"
    assert (whole.start_time_unix_nano, whole.end_time_unix_nano) == (ENDED_NS - 1_800_000_000, ENDED_NS)
    at = whole.start_time_unix_nano
    for name, lasted in (("queue", 500_000_000), ("prefill", 250_000_000), ("decode", 1_000_000_000)):
        span = receiver.named(name)
        assert (span.trace_id, span.parent_span_id) == (whole.trace_id, whole.span_id)
        assert (span.start_time_unix_nano, span.end_time_unix_nano) == (at, at + lasted)
        assert span.status.code == Status.STATUS_CODE_UNSET
        at += lasted
    assert attributes_of(whole) == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "cobali_ray", "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 5, "gen_ai.request.temperature": 0.0, "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0, "gen_ai.response.id": "r", "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5, "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.response.finish_reasons": ["stop"], "gen_ai.server.time_to_first_token": 0.75,
        "gen_ai.server.time_per_output_token": 0.25, "cobali.preemptions": 0,
    }  # fmt: skip
    assert set(receiver.services) == {"test"}


@pytest.mark.parametrize(
    ("stats", "error", "phases"),
    [
        pytest.param(IN_QUEUE, DeadlineExceededError(1.8), ["queue"], id="in-queue"),
        pytest.param(IN_PREFILL, RequestCancelledError(), ["queue", "prefill"], id="in-prefill"),
        pytest.param(SPOKE, RequestCancelledError(), ["queue", "prefill", "decode"], id="in-mid-answer"),
    ],
)
def test_an_error_marks_the_request_and_the_phase_it_came_in(tracing, receiver, stats, error, phases):
    tracing.record(traced(), End("r", None, error, stats), ENDED_NS)
    tracing.flush()
    assert [span.name for span in receiver.spans] == [*phases, "chat tiny"]
    for span in receiver.spans:
        bad = span.name in (phases[-1], "chat tiny")
        assert span.status.code == (Status.STATUS_CODE_ERROR if bad else Status.STATUS_CODE_UNSET)
        assert attributes_of(span).get("error.type") == (type(error).__name__ if bad else None)
    assert receiver.named(phases[-1]).end_time_unix_nano <= ENDED_NS
    assert "gen_ai.response.finish_reasons" not in attributes_of(receiver.named("chat tiny"))


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        pytest.param({"traceparent": TRACEPARENT}, True, id="the-clients"),
        pytest.param({}, False, id="none"),
        pytest.param({"traceparent": "00-zz-yy-01"}, False, id="nonsense"),
        pytest.param({"traceparent": "x" * 10_000, "tracestate": "\udcff"}, False, id="hostile"),
    ],
)
def test_the_trace_of_an_http_request(tracing, receiver, headers, kept):
    span = tracing.begin("POST", "/v1/completions", headers)
    link = span.link("text_completion", "tiny")
    span.end(status=200, error=None, attributes={"gen_ai.usage.input_tokens": 3, "left.out": None})
    tracing.flush()
    (sent,) = receiver.spans
    assert (sent.name, sent.kind) == ("POST /v1/completions", Span.SPAN_KIND_SERVER)
    *named, flags = link.traceparent.split("-")
    assert named == ["00", sent.trace_id.hex(), sent.span_id.hex()]
    assert int(flags, 16) & 1, "it is sampled"
    assert (sent.trace_id.hex() == TRACE_ID) is kept
    assert (sent.parent_span_id.hex() == PARENT_ID) is kept
    assert attributes_of(sent) == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "gen_ai.usage.input_tokens": 3,
    }


@pytest.mark.parametrize(
    ("status", "error", "bad"),
    [
        pytest.param(200, None, False, id="well"),
        pytest.param(400, "invalid_value", False, id="the-clients-fault"),
        pytest.param(429, "queue_full", False, id="refused"),
        pytest.param(None, None, False, id="the-client-left"),
        pytest.param(500, "internal_error", True, id="ours"),
        pytest.param(504, "deadline_exceeded", True, id="deadline"),
        pytest.param(200, "engine_died", True, id="in-mid-stream"),
    ],
)
def test_which_http_requests_are_errors(tracing, receiver, status, error, bad):
    tracing.begin("POST", "/v1/completions", {}).end(status=status, error=error, attributes={})
    tracing.flush()
    (span,) = receiver.spans
    assert (span.status.code == Status.STATUS_CODE_ERROR) is bad
    assert attributes_of(span).get("error.type") == error


def test_an_endpoint_may_name_the_path(receiver):
    tracing = Tracing(f"{receiver.url}/v1/traces", service="test", delay_ms=60_000)
    tracing.begin("POST", "/v1/completions", {}).end(status=200, error=None, attributes={})
    tracing.close()
    assert len(receiver.spans) == 1, "closing sends what waits"


def test_a_client_that_does_not_sample_gets_no_spans(tracing, receiver):
    span = tracing.begin("POST", "/v1/completions", {"traceparent": TRACEPARENT[:-2] + "00"})
    link = span.link("text_completion", "tiny")
    span.end(status=200, error=None, attributes={})
    tracing.record(traced(trace=link), End("r", "stop", None, SPOKE), ENDED_NS)
    tracing.flush()
    assert link.traceparent.endswith("-00")
    assert receiver.spans == []


def test_a_request_without_a_trace_has_no_spans(tracing, receiver):
    tracing.record(traced(trace=None), End("r", "stop", None, SPOKE), ENDED_NS)
    tracing.flush()
    assert receiver.spans == []


def test_a_collector_that_refuses_is_said_once_and_forgotten_when_it_is_back(tracing, receiver):
    def one():
        tracing.begin("POST", "/v1/completions", {}).end(status=200, error=None, attributes={})
        tracing.flush()

    with capture_logs() as logs:
        receiver.status = 400
        one()
        one()
        receiver.status = 200
        one()
    assert [line["event"] for line in logs] == ["spans_not_taken", "spans_taken_again"]
    assert len(receiver.spans) == 1


def test_no_log_line_has_the_password_of_a_collector(receiver):
    receiver.status = 400
    tracing = Tracing(receiver.url.replace("//", "//me:secret@"), service="test", delay_ms=60_000)
    with capture_logs() as logs:
        tracing.begin("POST", "/v1/completions", {}).end(status=200, error=None, attributes={})
        tracing.close()
    assert [line["otlp_endpoint"] for line in logs] == [receiver.url]


class Stack:
    """HTTP app, client, engine in one process, with a receiver for both ends' spans."""

    def __init__(self, url, **settings):
        self.setup = Setup(otlp_endpoint=url, **settings)
        self.tracing = Tracing(url, service="cobali-ingress", delay_ms=60_000)
        self.app = build_api(self.setup.fleet, ApiSettings(), tracer=self.tracing)

    @classmethod
    @asynccontextmanager
    async def open(cls, url, **settings):
        stack = cls(url, **settings)
        await stack.setup.connect()
        try:
            async with httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app=stack.app), base_url="http://app"
            ) as http:
                yield stack, http
        finally:
            stack.tracing.close()
            stack.setup.client.close()
            stack.setup.handle.server.__del__()

    async def flush(self):
        await self.setup.idle()
        await asyncio.to_thread(self.tracing.flush)
        await asyncio.to_thread(self.setup.handle.server._tracer._tracing.flush)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_one_trace_through_ingress_and_engine(receiver, stream):
    async with Stack.open(receiver.url) as (stack, http):
        answer = await http.post(
            "/v1/completions",
            json={"model": "scripted", "prompt": "hello", "max_tokens": 4, "stream": stream},
            headers={"traceparent": TRACEPARENT, "x-request-id": "mine"},
        )
        assert answer.status_code == 200
        await stack.flush()
    assert {span.trace_id.hex() for span in receiver.spans} == {TRACE_ID}
    assert sorted(zip(receiver.services, [span.name for span in receiver.spans], strict=True)) == [
        ("cobali-engine", "decode"), ("cobali-engine", "prefill"), ("cobali-engine", "queue"),
        ("cobali-engine", "text_completion scripted"), ("cobali-ingress", "POST /v1/completions"),
    ]  # fmt: skip
    of_engines = {"cobali-engine": "0", "cobali-ingress": None}
    assert dict(zip(receiver.services, receiver.engines, strict=True)) == of_engines
    http_span = receiver.named("POST /v1/completions")
    engine = receiver.named("text_completion scripted")
    assert http_span.parent_span_id.hex() == PARENT_ID
    assert engine.parent_span_id == http_span.span_id
    assert http_span.start_time_unix_nano < engine.start_time_unix_nano
    said = attributes_of(http_span)
    assert (said["cobali.request_id"], said["gen_ai.request.stream"]) == ("mine", stream)
    for name in ("gen_ai.usage.output_tokens", "gen_ai.response.finish_reasons"):
        assert said[name] == attributes_of(engine)[name]
    at = engine.start_time_unix_nano
    for name in ("queue", "prefill", "decode"):
        span = receiver.named(name)
        assert at <= span.start_time_unix_nano <= span.end_time_unix_nano <= engine.end_time_unix_nano
        at = span.end_time_unix_nano


def broken(*_, **__):
    raise RuntimeError("no span")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("part", ["begin", "link", "end", "engine"])
async def test_a_tracer_that_fails_changes_no_answer(receiver, monkeypatch, part, stream):
    async with Stack.open(receiver.url) as (stack, http):
        server = stack.setup.handle.server
        match part:
            case "begin":
                monkeypatch.setattr(stack.tracing._tracer, "start_span", broken)
            case "link":
                monkeypatch.setattr(W3C, "inject", broken)
            case "end":
                monkeypatch.setattr("opentelemetry.sdk.trace.Span.end", broken)
            case "engine":
                monkeypatch.setattr(server._tracer._tracing._tracer, "start_span", broken)
        body = {"model": "scripted", "prompt": "hello", "max_tokens": 4, "stream": stream}
        with capture_logs() as logs:
            async with asyncio.timeout(WAIT_S):
                answers = [await http.post("/v1/completions", json=body) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        await stack.setup.idle()
        assert not server._requests, "no control call stays open"
        monkeypatch.undo()
    failed = [line for line in logs if line["event"] == "telemetry_failed"]
    assert len(failed) == 1 + (part == "end"), "once in each process"


async def test_refusals_and_client_errors_have_a_span_and_the_engine_none(receiver):
    async with Stack.open(receiver.url) as (stack, http):
        assert (await http.post("/v1/completions", json={"prompt": 5})).status_code == 400
        assert (await http.post("/v1/completions", json={"prompt": "x" * 5000})).status_code == 400
        assert (await http.get("/v1/models")).status_code == 200
        await stack.flush()
        assert not stack.setup.handle.server._tracer._open
    assert [span.name for span in receiver.spans] == ["POST /v1/completions"] * 2
    assert {attributes_of(span)["error.type"] for span in receiver.spans} == {
        "invalid_value",
        "context_length_exceeded",
    }


async def test_a_collector_that_is_down_harms_no_request():
    async with Stack.open("http://127.0.0.1:1") as (_, http):
        async with asyncio.timeout(WAIT_S):
            for _ in range(3):
                answer = await http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 4})
                assert answer.status_code == 200


def test_off_imports_nothing():
    code = """
import sys
from cobali_ray.actors.engine_server import EngineServer
from cobali_ray.actors.tracing import open_tracing
from cobali_ray.settings import EngineSettings
import cobali_ray.api.app
settings = EngineSettings(model="builtin:scripted")
assert open_tracing(settings.server.otlp_endpoint, "engine") is None
assert EngineServer(settings)._tracer is None
unwanted = ("cobali_ray.telemetry.tracing", "opentelemetry.exporter.otlp")
print([name for name in sys.modules if name.startswith(unwanted)])
"""
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert out.stdout.strip() == "[]", out.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "grpc://x:4317", ""])
def test_an_endpoint_that_is_no_url_stops_the_start(url):
    with pytest.raises(ConfigError, match="otlp_endpoint"):
        read_settings({"otlp_endpoint": url})
