"""RequestContext: what is known of one HTTP request beside its body. Its line in the log is made of that."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import structlog
from fastapi import Request as HttpRequest

from cobali_ray.api.door.faults import OPENAI, ErrorShape, Fault, fault_of, is_our_fault
from cobali_ray.api.door.ids import header_value
from cobali_ray.api.door.keys import NOBODY, Caller
from cobali_ray.api.door.quota import Quota
from cobali_ray.api.door.timings import Timings
from cobali_ray.backend.port import IsCancelled, never_cancelled
from cobali_ray.core.clock import Clock
from cobali_ray.core.request.events import End
from cobali_ray.errors import Field, Path, dotted
from cobali_ray.telemetry.names import HttpAnswer

if TYPE_CHECKING:  # OpenTelemetry, for those who want spans
    from cobali_ray.telemetry.tracing import RequestSpan

SCOPE_KEY = "cobali_context"
CLIENT_CLOSED = 499
"""The status in the log where the client left before any answer; never sent."""
FEED = frozenset({"/debug/ticks", "/debug/stream"})

LOGGED = (
    *("request_id", "answer_id", "method", "route", "model", "tenant", "status", "stream", "n_prompt"),
    *("n_cached", "n_output", "finish_reasons", "intake_s", "queue_s", "ttft_s", "e2e_s", "http_s"),
    *("tokens_per_second", "cancelled", "error"),
)
"""What a line has of a request, in this order."""

log = structlog.get_logger("cobali_ray.api")


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """One HTTP request in numbers; never its texts."""

    request_id: str
    received_s: float
    """On the API's clock: when its headers were here, before its body."""
    answer_id: str | None = None
    """The server's own id of the answer, as in the answer and in the exemplars of `/metrics`."""
    count: Callable[[HttpAnswer], None] = lambda _: None
    """Called when it has ended."""
    span: RequestSpan | None = None
    caller: Caller = NOBODY
    quota: Quota | None = None
    error_shape: ErrorShape = OPENAI
    named: Callable[[Path], str] = dotted
    """What that API calls a field that is given by its path in the body it was translated into."""
    admitted: bool = False
    method: str = ""
    route: str = "unmatched"
    path: str = ""
    supersedes: bool = False
    """Whether a header asks to end older requests of the same key, user and path."""
    progress: bool = False
    """Whether a header asks for the request's progress in the stream."""
    hints: tuple[str, ...] = ()
    """What headers say of the conversation that it belongs to."""
    model: str | None = None
    """By the name that the settings give it, once it is known which."""
    status: int | None = None
    stream: bool = False
    n_prompt: int | None = None
    n_rows: int = 0
    """Prompt tokens that images came to, which were not counted when the request came."""
    n_cached: int | None = None
    """Of the prompt tokens, those that the cache held; of several answers, of the slowest."""
    n_output: int | None = None
    finish_reasons: list[str] = field(default_factory=list)
    intake_s: float | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    tokens_per_second: float | None = None
    """The pace after the first token, as in `timings`; of several answers, of the slowest."""
    error: str | None = None
    cancelled: bool = False
    ignored: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    """Where in the body something was replaced that is no text."""
    client_left: IsCancelled = never_cancelled
    """Called by work in a thread: may it stop, because nobody waits for it any longer?"""
    writing: asyncio.Future[None] | None = None
    """What writes the answer, where that goes on without the client."""

    def admit(self, now_s: float) -> None:
        """Count it against its key's limits. Raises RateLimitError."""
        if self.quota is not None:
            self.quota.begin(now_s)
            self.admitted = True

    def count_prompt(self, n_prompt: int, now_s: float) -> None:
        """Count its prompt against them. Raises RateLimitError."""
        if self.quota is not None:
            self.quota.read(n_prompt, now_s)

    @property
    def n_to_charge(self) -> int:
        """The tokens that are known only once it was computed."""
        return (self.n_output or 0) + self.n_rows

    def close(self, clock: Clock) -> None:
        """Note the end for its key and in the log, once nothing is written for it any longer."""
        if self.writing is not None and not self.writing.done():
            self.writing.add_done_callback(lambda _: self.close(clock))
            return
        if self.writing is not None:
            self.cancelled = self.writing.cancelled()
        now_s = clock.now()
        if self.quota is not None and self.admitted:
            self.quota.end(self.n_to_charge, now_s)
        status = CLIENT_CLOSED if self.status is None and self.cancelled else self.status
        self.count(HttpAnswer(self.route, self.method, status or CLIENT_CLOSED))
        line = {name: getattr(self, name, None) for name in LOGGED}
        http_s = round(now_s - self.received_s, 6)
        line |= {"tenant": self.caller.tenant or None, "status": status, "http_s": http_s}
        if self.span is not None:
            self.span.end(status=self.status, error=self.error, attributes=self._span_attributes())
        # Probes and scrapes come every few seconds for ever: they matter only when they fail. The page asks
        # for an engine's ticks even while it is away, which is in the log already.
        expected = {HTTPStatus.OK, HTTPStatus.NOT_MODIFIED}
        if self.route in FEED:
            expected.add(HTTPStatus.SERVICE_UNAVAILABLE)
        quiet = self.n_prompt is None and status in expected
        (log.debug if quiet else log.info)("http_request", **line)

    def headers(self, now_s: float) -> list[tuple[bytes, bytes]]:
        """Return what an answer carries beside its own headers and its id."""
        headers = [] if self.quota is None else self.quota.headers(now_s)
        if self.ignored:
            headers.append((b"x-cobali-ignored-fields", header_value(self.ignored).encode("latin-1")))
        if self.mended:
            headers.append((b"x-cobali-mended-fields", header_value(self.mended).encode("latin-1")))
        return headers

    def ignore(self, fields: Iterable[Field]) -> None:
        """Note fields that changed nothing: in a header and in the log."""
        called = (field if isinstance(field, str) else self.named(field) for field in fields)
        # A body may be read again.
        names = tuple(name for name in called if name not in self.ignored)
        if names:
            self.ignored += names
            log.warning("ignored_fields", request_id=self.request_id, fields=header_value(names))

    def settle(
        self,
        ends: Sequence[End | None],
        n_tokens: int,
        times: Timings,
        *,
        reason: Callable[[int, End], str | None],
    ) -> None:
        """Note how and when the choices ended; where one did not, count the tokens seen."""
        self.ttft_s = times.ttft_s
        closed = [end for end in ends if end is not None]
        reasons = [reason(i, end) for i, end in enumerate(ends) if end is not None]
        self.finish_reasons = [finish_reason for finish_reason in reasons if finish_reason is not None]
        self.n_output = n_tokens
        if closed:
            if len(closed) == len(ends):
                self.n_output = sum(end.stats.n_output for end in closed)
                self.e2e_s = times.e2e_s
            slowest = max((end.stats for end in closed), key=lambda stats: stats.e2e_s)
            self.intake_s, self.queue_s = slowest.intake_s, slowest.queue_s
            self.n_cached = slowest.n_cached
            self.tokens_per_second = 1 / slowest.tpot_s if slowest.tpot_s else None

    def blame(self, error: BaseException) -> Fault:
        """Return what the client is told; what operators must know goes to the log."""
        fault = fault_of(error, self.error_shape, request_id=self.request_id, named=self.named)
        self.error = fault.code
        if is_our_fault(error):
            # As text and not as exc_info: a renderer that shows locals would print prompts.
            cause = "".join(traceback.format_exception(error))
            log.error("request_failed", request_id=self.request_id, cause=cause)
        return fault

    def _span_attributes(self) -> dict[str, Any]:
        return {
            "cobali.request_id": self.request_id,
            "gen_ai.request.stream": self.stream,
            "gen_ai.usage.input_tokens": self.n_prompt,
            "gen_ai.usage.output_tokens": self.n_output,
            "gen_ai.response.finish_reasons": self.finish_reasons or None,
            "gen_ai.server.time_to_first_token": self.ttft_s,
        }


def context_of(http: HttpRequest) -> RequestContext:
    context: RequestContext = http.scope[SCOPE_KEY]
    return context


def owner_of(http: HttpRequest) -> str:
    """Return the owner by which the store knows this caller."""
    return context_of(http).caller.salt
