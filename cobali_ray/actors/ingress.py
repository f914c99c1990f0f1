"""Ingress: the HTTP app on Serve; an EngineClient over the Serve handle of each engine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI

from cobali_ray.actors.client import ServeEngineClient, Vocabularies
from cobali_ray.actors.tracing import open_tracing
from cobali_ray.api.app import build_api
from cobali_ray.api.fleet import Fleet, Model
from cobali_ray.api.settings import ApiSettings
from cobali_ray.settings import EngineSettings
from cobali_ray.telemetry.log import configure_logging

SWITCH_S = 0.001
"""How long a thread of the intake may keep the event loop from the interpreter; Python's own is 5 ms."""


class Ingress:
    """One HTTP replica. Serve asks it for its ASGI app after the constructor ran."""

    async def __init__(  # type: ignore[misc]
        self,
        engines: Sequence[Any],
        served: Sequence[tuple[str, tuple[str, ...]]],
        settings: EngineSettings,
        listens: str | None = None,
    ) -> None:
        """Look for the engines. `served` has the id of each, and the names of its model."""
        configure_logging(level=settings.log_level, stream=sys.__stderr__)  # Serve buffers sys.stderr
        sys.setswitchinterval(SWITCH_S)
        self._settings, self._listens = settings, listens
        vocabularies = Vocabularies()
        self._clients = {
            engine_id: ServeEngineClient(engine, engine_id, vocabularies)
            for engine, (engine_id, _) in zip(engines, served, strict=True)
        }
        for client in self._clients.values():
            client.start()
        names = dict(served)
        self._fleet = Fleet(
            Model({id_: self._clients[id_] for id_ in names if names[id_] == of_model}, of_model)
            for of_model in dict.fromkeys(names.values())
        )
        self._tracing = open_tracing(settings, "ingress")

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Build the app of this replica."""
        s = self._settings
        api = ApiSettings(
            api_keys=s.api_keys,
            allowed_origins=s.allowed_origins,
            listens=self._listens,
            strict=s.strict,
            max_body_bytes=s.max_body_bytes,
            default_max_tokens=s.default_max_tokens,
            default_timeout_s=s.default_timeout_s,
            echo_request_id=False,  # Serve puts it on every answer, also on its own
            min_stream_gap_s=s.min_stream_gap_s,
        )
        self._app = build_api(self._fleet, api, tracer=self._tracing)
        self._app.openapi()  # made now and not beside streams
        return self._app

    async def drain(self, timeout_s: float) -> bool:
        """Let running requests finish and refuse new ones, then send viewers away; for a graceful stop."""
        drained = await asyncio.gather(*(client.drain(timeout_s) for client in self._clients.values()))
        for viewers in self._app.state.viewers.values():
            viewers.close()
        return all(drained)

    def __del__(self) -> None:
        """Close the sockets; Serve calls this when the replica goes."""
        for client in getattr(self, "_clients", {}).values():
            client.close()
        tracing = getattr(self, "_tracing", None)
        if tracing is not None:
            tracing.close()
