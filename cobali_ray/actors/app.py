"""build(settings) and join(settings): the one place where all parts are joined."""

from __future__ import annotations

from typing import Any

import ray
from ray import serve
from ray.serve import Application

from cobali_ray.actors.engine_server import EngineServer
from cobali_ray.actors.ingress import Ingress
from cobali_ray.actors.layout import (
    INGRESS,
    ForIngress,
    gpu_shares,
    places,
    require_gpus,
    served_by,
    versions,
)
from cobali_ray.actors.tracing import require_tracing
from cobali_ray.api.door.keyring import read_keys
from cobali_ray.settings import EngineSettings, read_settings
from cobali_ray.store.database import check_store

MAX_ONGOING = 100_000
"""Serve's own limit stays out of the way: the engine's door decides, and answers in OpenAI's words."""

N_CPUS = 0.1
"""What Ray counts for a part of ours: engines say themselves which CPUs are theirs, and many must fit."""

HEALTH_S = 0.25
"""How often Serve checks an engine's health; on average, a dead one is replaced after half of that."""


def build(args: dict[str, Any]) -> Application:
    """Return the application for `serve run`, given the `args` of serve_config.yaml."""
    return join(read_settings(args))


def join(settings: EngineSettings, *, code: str = "", alone: bool = False) -> Application:
    """Join engines and ingress to one Serve application.

    Deployed again, only parts whose settings differ are restarted, and all where `code`, the version of what
    they run, differs. `alone`: no other node, with GPUs of its own, will come.
    """
    require_tracing(settings)
    read_keys(settings.api.api_keys, settings.api.api_keys_file)  # mistakes in it are reported here and now
    check_store(settings.api.store_place)
    engine_places, version = places(settings), versions(settings, code)
    n_gpus = int(ray.cluster_resources().get("GPU", 0)) if ray.is_initialized() else 0
    shares = gpu_shares(engine_places, n_gpus)
    if alone:
        require_gpus(shares, n_gpus)
    engines = [
        _as(
            serve.deployment(
                EngineServer,
                name=place.deployment,
                num_replicas=1,
                max_ongoing_requests=MAX_ONGOING,
                health_check_period_s=HEALTH_S,
                health_check_timeout_s=5,
                graceful_shutdown_timeout_s=settings.server.drain_timeout_s + 5,
                graceful_shutdown_wait_loop_s=0.1,
                ray_actor_options={"num_cpus": N_CPUS, "num_gpus": shares[place.engine_id]},
            ),
            version[place.deployment],
        ).bind(place.settings, place.engine_id)
        for place in engine_places
    ]
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name=INGRESS,
        num_replicas=settings.api.n_ingress,
        max_ongoing_requests=MAX_ONGOING,
        health_check_period_s=2,
        graceful_shutdown_timeout_s=settings.server.drain_timeout_s + 5,
        graceful_shutdown_wait_loop_s=0.1,
        ray_actor_options={"num_cpus": N_CPUS},
    )
    of_http = ForIngress(settings.api, settings.server)
    return _as(ingress, version[INGRESS]).bind(engines, served_by(engine_places), of_http)


def _as(deployment: serve.Deployment, version: str) -> serve.Deployment:
    """Give a deployment a version; Serve would give it a new one at every deployment."""
    return deployment.options(version=version, _internal=True)
