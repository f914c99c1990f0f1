"""What the API needs of distributed tracing: a span around an HTTP request, and its name for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from cobali_ray.core.request.request import TraceLink

TRACED: Final = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/embeddings", "/v1/rerank", "/v1/reranking", "/v1/score"),
    *("/api/chat", "/api/generate", "/api/embed", "/api/embeddings"),
    *("/chat/completions", "/completion", "/completions", "/infill"),
    *("/embedding", "/embeddings", "/rerank", "/reranking"),
)
"""Routes that get a span; probes, scrapes and viewers would drown them. Longer ones come first."""


class HttpSpan(Protocol):
    """One HTTP request in a trace. Never raises."""

    def link(self, operation: str, model: str) -> TraceLink | None:
        """Return what the engine needs to hang its own spans below this one, if it can be had."""

    def end(self, *, status: int | None, error: str | None, attributes: Mapping[str, Any]) -> None:
        """Close the span. `error` is the code of what went wrong; None: nothing did."""


class HttpTracer(Protocol):
    """Opens spans. Never raises."""

    def begin(self, method: str, route: str, headers: Mapping[str, str]) -> HttpSpan | None:
        """Open a span, in the trace that a `traceparent` header names; None where that fails."""


def route_traced(path: str) -> str | None:
    """Return the route that a path asks for, as declared; None if it gets no span."""
    return next((route for route in TRACED if path.endswith(route)), None)
