"""Ingress: the HTTP app on Serve; an EngineClient over the Serve handle of each engine."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI

from cobali_ray.actors.client import ServeEngineClient, Vocabularies
from cobali_ray.actors.front import FRONT_HOST
from cobali_ray.actors.layout import ForIngress, Served
from cobali_ray.actors.listening import beside
from cobali_ray.actors.ray_private import read_bodies_as_taken
from cobali_ray.actors.startup import why_down
from cobali_ray.actors.tracing import open_tracing
from cobali_ray.actors.where import stay_here
from cobali_ray.api.app import build_api
from cobali_ray.api.call.judges import Judges
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.store.database import Store
from cobali_ray.telemetry.log import configure_logging

SWITCH_S = 0.001
"""How long a thread of the intake may keep the event loop from the interpreter; Python's own is 5 ms."""


class Ingress:
    """One HTTP replica. Serve asks it for its ASGI app after the constructor ran."""

    async def __init__(  # type: ignore[misc]
        self, handles: Sequence[Any], served: Sequence[Served], settings: ForIngress
    ) -> None:
        configure_logging(level=settings.server.log_level, stream=sys.__stderr__)  # Serve buffers sys.stderr
        sys.setswitchinterval(SWITCH_S)
        stay_here()
        read_bodies_as_taken()
        self._settings = settings
        place = settings.api.store_place
        self._store = None if place is None else Store(place)
        vocabularies = Vocabularies()
        self._clients = {
            engine.engine_id: ServeEngineClient(
                handle,
                engine.engine_id,
                vocabularies,
                why=partial(why_down, handle.app_name, handle.deployment_name),
            )
            for handle, engine in zip(handles, served, strict=True)
        }
        models: dict[tuple[str, ...], list[Served]] = {}
        for engine in served:
            models.setdefault(engine.names, []).append(engine)
        served_models = (
            ServedModel(
                {engine.engine_id: self._clients[engine.engine_id] for engine in engines},
                names,
                n_stay=sum(not engine.on_demand for engine in engines),
                scale_up_wait_s=engines[0].scale_up_wait_s,
                max_waiting=engines[0].max_queue,
                stall_timeout_s=engines[0].stall_timeout_s,
                adapters=engines[0].adapters,
            )
            for names, engines in models.items()
        )
        self._fleet = Fleet(served_models, beside)
        for client in self._clients.values():
            client.start()
        self._tracing = open_tracing(settings.server.otlp_endpoint, "ingress")

    def __serve_build_asgi_app__(self) -> FastAPI:
        judges = Judges()
        judges.warm()
        self._app = build_api(
            self._fleet,
            self._settings.api,
            tracer=self._tracing,
            judges=judges,
            listens=os.environ.get(FRONT_HOST),  # else Serve's own proxy tells its address
            echo_request_id=False,  # Serve puts it on every answer, also on its own
            store=self._store,
        )
        self._app.openapi()  # made now and not beside streams
        if self._app.state.batches is not None:
            self._app.state.batches.start()
        return self._app

    async def drain(self, timeout_s: float) -> bool:
        """Let running requests finish and refuse new ones, then send viewers away; for a graceful stop."""
        self._app.state.streams.close()
        if self._app.state.batches is not None:
            await self._app.state.batches.close()
        self._fleet.stop()
        there = [self._clients[id_] for model in self._fleet.models for id_ in model.present]
        drains = (client.drain(timeout_s) for client in there)
        drained = await asyncio.gather(*drains, return_exceptions=True)  # one that dies cuts no other short
        for viewers in self._app.state.viewers.values():
            viewers.close()
        return all(in_time is True for in_time in drained)

    def __del__(self) -> None:
        for client in getattr(self, "_clients", {}).values():
            client.close()
        if (store := getattr(self, "_store", None)) is not None:
            store.close()
        tracing = getattr(self, "_tracing", None)
        if tracing is not None:
            tracing.close()
