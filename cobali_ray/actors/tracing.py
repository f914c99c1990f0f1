"""Distributed tracing where `otlp_endpoint` asks for it; elsewhere nothing is imported. Knows no Ray."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Self

from cobali_ray.core.request.events import End
from cobali_ray.core.request.request import Request
from cobali_ray.extras import require_extra
from cobali_ray.settings import EngineSettings
from cobali_ray.telemetry.onlooker import Onlooker

if TYPE_CHECKING:  # OpenTelemetry, for those who want spans
    from cobali_ray.telemetry.tracing import Tracing


def require_tracing(settings: EngineSettings) -> None:
    """Check, before anything starts, that wanted spans can be made. Raises MissingExtraError."""
    if settings.server.otlp_endpoint is not None and not _sdk_is_disabled():
        require_extra("otel", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def open_tracing(endpoint: str | None, part: str, **about: str) -> Tracing | None:
    """Return a tracer for a part of the server; None if tracing is off."""
    if endpoint is None or _sdk_is_disabled():
        return None
    from cobali_ray.telemetry.tracing import Tracing

    return Tracing(endpoint, service=f"cobali-{part}", about=about)


def _sdk_is_disabled() -> bool:
    """Ask as OpenTelemetry does, whose spans then have no identity that could travel."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


class EngineTracer:
    """Remembers open requests that belong to a trace. All of it runs on the engine's event loop.

    Never raises: a span that cannot be made is not there.
    """

    def __init__(self, tracing: Tracing) -> None:
        self._tracing, self._onlooker = tracing, Onlooker("tracing")
        self._open: dict[str, Request] = {}

    @classmethod
    def open(cls, settings: EngineSettings, engine_id: str) -> Self | None:
        tracing = open_tracing(settings.server.otlp_endpoint, "engine", **{"cobali.engine_id": engine_id})
        return None if tracing is None else cls(tracing)

    def note(self, request: Request) -> None:
        if request.trace is not None:
            self._open[request.request_id] = request

    def end(self, end: End, ended_ns: int) -> None:
        """Make the spans of a request that ended at `ended_ns`, nanoseconds since 1970."""
        request = self._open.pop(end.request_id, None)
        if request is not None:
            self._onlooker.look(self._tracing.record, request, end, ended_ns)

    def close(self) -> None:
        self._onlooker.look(self._tracing.close)
