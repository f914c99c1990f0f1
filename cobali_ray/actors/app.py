"""build(settings) and join(settings): the one place where all parts are joined."""

# Serve reads the annotation of `build` to validate `args`, so no postponed annotations in this file.
import ray
from ray import serve
from ray.serve import Application

from cobali_ray.actors.engine_server import EngineServer
from cobali_ray.actors.ingress import Ingress
from cobali_ray.actors.tracing import require_tracing
from cobali_ray.api.keyring import read_keys
from cobali_ray.settings import EngineSettings
from cobali_ray.telemetry.names import ONLY_ENGINE

MAX_ONGOING = 100_000
"""Serve's own limit stays out of the way: the engine's door decides, and answers in OpenAI's words."""

HEALTH_S = 0.25
"""How often Serve looks whether the engine lives: on average, a successor is started after half of it."""


def build(settings: EngineSettings) -> Application:
    """Return the application for `serve run`; `args` of serve_config.yaml become `settings`."""
    return join(settings)


def join(settings: EngineSettings, *, listens: str | None = None) -> Application:
    """Join engine and ingress to one Serve application.

    `listens` is the address where clients reach it; None: Serve's own proxy, which knows its address.
    """
    require_tracing(settings)
    if settings.api_keys_file is not None:
        read_keys(settings.api_keys_file)  # what is wrong with it is said here and now
    engine = serve.deployment(
        EngineServer,
        name="engine",
        num_replicas=1,
        max_ongoing_requests=MAX_ONGOING,
        health_check_period_s=HEALTH_S,
        health_check_timeout_s=5,
        graceful_shutdown_timeout_s=settings.drain_timeout_s + 5,
        graceful_shutdown_wait_loop_s=0.1,
        ray_actor_options={"num_cpus": 0.5, "num_gpus": _n_gpus(settings)},
    )
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name="ingress",
        num_replicas=settings.n_ingress,
        max_ongoing_requests=MAX_ONGOING,
        health_check_period_s=2,
        graceful_shutdown_timeout_s=settings.drain_timeout_s + 5,
        graceful_shutdown_wait_loop_s=0.1,
        ray_actor_options={"num_cpus": 0.1},
    )
    return ingress.bind(engine.bind(settings, ONLY_ENGINE), settings, ONLY_ENGINE, listens)


def _n_gpus(settings: EngineSettings) -> int:
    """Reserve a GPU where the cluster has one and the settings do not decline it."""
    if settings.n_gpu_layers == 0 or not ray.is_initialized():
        return 0
    return int(ray.cluster_resources().get("GPU", 0) >= 1)
