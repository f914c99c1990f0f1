"""Ingress: the HTTP app on Serve; an EngineClient over a Serve handle."""

from __future__ import annotations

import sys
from typing import Any

from fastapi import FastAPI

from cobali_ray.actors.client import ServeEngineClient
from cobali_ray.actors.tracing import open_tracing
from cobali_ray.api.app import build_api
from cobali_ray.api.settings import ApiSettings
from cobali_ray.settings import EngineSettings
from cobali_ray.telemetry.log import configure_logging

SWITCH_S = 0.001
"""How long a thread of the intake may keep the event loop from the interpreter; Python's own is 5 ms."""


class Ingress:
    """One HTTP replica. Serve asks it for its ASGI app after the constructor ran."""

    async def __init__(  # type: ignore[misc]
        self, engine: Any, settings: EngineSettings, engine_id: str, listens: str | None = None
    ) -> None:
        configure_logging(level=settings.log_level, stream=sys.__stderr__)  # Serve buffers sys.stderr
        sys.setswitchinterval(SWITCH_S)
        self._settings, self._listens = settings, listens
        self._client = ServeEngineClient(engine, engine_id)
        self._client.start()
        self._tracing = open_tracing(settings, "ingress")

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Build the app of this replica."""
        s = self._settings
        api = ApiSettings(
            model_aliases=s.model_aliases,
            api_keys=s.api_keys,
            api_keys_file=s.api_keys_file,
            n_ingress=s.n_ingress,
            allowed_origins=s.allowed_origins,
            listens=self._listens,
            strict=s.strict,
            max_body_bytes=s.max_body_bytes,
            default_max_tokens=s.default_max_tokens,
            default_timeout_s=s.default_timeout_s,
            echo_request_id=False,  # Serve puts it on every answer, also on its own
            min_stream_gap_s=s.min_stream_gap_s,
        )
        self._app = build_api(self._client, api, tracer=self._tracing)
        self._app.openapi()  # made now and not beside streams
        return self._app

    async def drain(self, timeout_s: float) -> bool:
        """Let running requests finish and refuse new ones, then send viewers away; for a graceful stop."""
        drained = await self._client.drain(timeout_s)
        self._app.state.viewers.close()
        return drained

    def __del__(self) -> None:
        """Close the socket; Serve calls this when the replica goes."""
        client = getattr(self, "_client", None)
        if client is not None:
            client.close()
        tracing = getattr(self, "_tracing", None)
        if tracing is not None:
            tracing.close()
