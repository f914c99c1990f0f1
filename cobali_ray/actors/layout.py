"""Which engines an application has, and what each of its parts is told. Knows no Ray.

An engine's name ("0" if there is only one) is its `engine_id` everywhere: the label `engine` of every series,
the variable of the dashboards, the `by` of every rule, in log lines, the tick log, `EngineState`, each
message on the wire, the feed and spans. It survives a restart of the engine; `incarnation_id`, by which
readers tell a new process from the last one, does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cobali_ray.api.settings import ApiSettings
from cobali_ray.errors import ConfigError
from cobali_ray.settings import OF_INGRESS, EngineSettings, listed, settings_of_engines
from cobali_ray.telemetry.names import ONLY_ENGINE

INGRESS = "ingress"
"""The deployment of the HTTP layer."""


@dataclass(frozen=True, slots=True)
class Place:
    """One engine: a Serve deployment of one replica, so that whoever has its handle says who does what."""

    engine_id: str
    deployment: str
    names: tuple[str, ...]
    """The names of its model, its own first."""
    settings: EngineSettings
    """All it is told; what others are told changes nothing here."""


def places(settings: EngineSettings) -> tuple[Place, ...]:
    """Return the engines that the settings name. Raises ConfigError that names the engine and the setting."""
    found = []
    for name, own in settings_of_engines(settings).items():
        cores, gpus = _cores_of(name, own), _gpus_of(own)
        for i in range(own.replicas):
            words = [word for word in (name, str(i) if own.replicas > 1 else "") if word]
            alone = {field: EngineSettings.model_fields[field].get_default() for field in _NOT_TOLD}
            alone["engines"] = {}
            if own.min_replicas is not None:
                stays = i < own.min_replicas
                alone["load"] = "eager" if stays else "on_demand"
                alone["keep_alive_s"] = None if stays else own.keep_alive_s
            found.append(
                Place(
                    engine_id="-".join(words) or ONLY_ENGINE,
                    deployment="-".join(["engine", *words]),
                    names=own.names,
                    settings=own.model_copy(update=alone | {"cores": cores[i], "gpus": gpus[i]}),
                )
            )
    return tuple(found)


_NOT_TOLD = (*sorted(OF_INGRESS), "replicas", "min_replicas", "model_aliases")


def gpu_shares(found: Sequence[Place], n_gpus: int) -> dict[str, float]:
    """Return the part of a GPU that each engine has reserved: equal ones, which fit on whole GPUs."""
    users = [place for place in found if place.settings.n_gpu_layers != 0]
    own = 1.0 / -(-len(users) // n_gpus) if users and n_gpus else 0.0
    shares = {place.engine_id: own if place in users else 0.0 for place in found}
    told = {p.engine_id: p.settings.gpu_share for p in found if p.settings.gpu_share is not None}
    return shares | told


class Served(NamedTuple):
    """What the ingress is told of an engine."""

    engine_id: str
    names: tuple[str, ...]
    adapters: tuple[str, ...]
    """The names of its adapters."""
    model: str
    """The reference: another file may have another vocabulary, and then the ingress starts anew."""
    on_demand: bool
    scale_up_wait_s: float
    max_queue: int
    stall_timeout_s: float
    replays: bool
    """Whether answers that were begun elsewhere are computed again token by token."""


def served_by(found: Sequence[Place]) -> list[Served]:
    """Return what the ingress is told of the engines."""
    return [
        Served(
            engine_id=place.engine_id,
            names=place.names,
            adapters=tuple((own := place.settings).adapters),
            model=own.model,
            on_demand=own.load == "on_demand",
            scale_up_wait_s=own.scale_up_wait_s,
            max_queue=own.max_queue,
            stall_timeout_s=own.stall_timeout_s,
            replays=own.continuation == "exact",
        )
        for place in found
    ]


class ForIngress(NamedTuple):
    """What the HTTP layer is told: nothing of any engine, so that no change of one concerns it."""

    api: ApiSettings
    log_level: str
    otlp_endpoint: str | None


def for_ingress(settings: EngineSettings, listens: str | None = None) -> ForIngress:
    """Return what the HTTP layer is told.

    `listens` is where clients reach it, if that is not at Serve's own proxy.
    """
    api = ApiSettings(
        api_keys=settings.api_keys,
        api_keys_file=settings.api_keys_file,
        n_ingress=settings.n_ingress,
        allowed_origins=settings.allowed_origins,
        listens=listens,
        strict=settings.strict,
        max_body_bytes=settings.max_body_bytes,
        default_max_tokens=settings.default_max_tokens,
        default_timeout_s=settings.default_timeout_s,
        echo_request_id=False,  # Serve puts it on every answer, also on its own
        min_stream_gap_s=settings.min_stream_gap_s,
    )
    return ForIngress(api, settings.log_level, settings.otlp_endpoint)


def versions(settings: EngineSettings, listens: str | None = None) -> dict[str, str]:
    """Return a name for what each deployment is told: Serve restarts those whose name changes."""
    found = places(settings)
    told = {place.deployment: _version(place.settings) for place in found}
    return told | {INGRESS: _version(for_ingress(settings, listens), served_by(found))}


def _version(*told: object) -> str:
    """Hash slowly, because API keys are in it and Serve shows it."""
    text = "\0".join(repr(dict(one)) if isinstance(one, EngineSettings) else repr(one) for one in told)
    return hashlib.scrypt(text.encode(), salt=b"cobali", n=1 << 12, r=8, p=1, dklen=16).hex()


def _cores_of(name: str, own: EngineSettings) -> list[str | None]:
    """Share the CPUs among the replicas of an engine."""
    if own.cores is None:
        return [None] * own.replicas
    cores = listed(own.cores)
    if len(cores) < own.replicas:
        where = f"engines.{name}.cores" if name else "cores"
        raise ConfigError(where, f"{own.cores} are too few CPUs for {own.replicas} replicas")
    return [*_parts(cores, own.replicas)]


def _gpus_of(own: EngineSettings) -> list[str | None]:
    """Share the GPUs among the replicas of an engine, several of which may have one."""
    if own.gpus is None:
        return [None] * own.replicas
    gpus = listed(own.gpus)
    if len(gpus) < own.replicas:
        return [str(gpus[i % len(gpus)]) for i in range(own.replicas)]
    return [*_parts(gpus, own.replicas)]


def _parts(numbers: Sequence[int], n: int) -> list[str]:
    size = len(numbers) // n
    ends = [size * (i + 1) for i in range(n - 1)] + [len(numbers)]
    return [",".join(map(str, numbers[size * i : end])) for i, end in enumerate(ends)]
