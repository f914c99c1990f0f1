"""Layout: which engines an application has, and the settings of each of its parts. Knows no Ray.

An engine's name ("0" if there is only one) is its `engine_id` everywhere: the label `engine` of every series,
the variable of the dashboards, the `by` of every rule, in log lines, the tick log, `EngineState`, each
message on the wire, the feed and spans. It survives a restart of the engine; `incarnation_id`, by which
readers tell a new process from the last one, does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from cobali_ray.backend.endpoint import RAY_GPU
from cobali_ray.errors import ConfigError
from cobali_ray.settings import ApiSettings, EngineSettings, listed, settings_of_engines
from cobali_ray.settings.engine import ServerSettings
from cobali_ray.telemetry.names import ONLY_ENGINE

INGRESS = "ingress"


@dataclass(frozen=True, slots=True)
class EngineDeployment:
    """One engine: a Serve deployment of one replica, so that its handle reaches this engine."""

    engine_id: str
    deployment: str
    names: tuple[str, ...]
    """The names of its model, its own first."""
    settings: EngineSettings
    """All of its settings; those of others do not change them."""


def places(settings: EngineSettings) -> tuple[EngineDeployment, ...]:
    """Return the engines in the settings. Raises ConfigError that names the engine and the setting."""
    engines = []
    for name, own in settings_of_engines(settings).items():
        processes, names = own.processes, own.names
        n, least = processes.replicas, processes.min_replicas
        if processes.cores is not None and len(listed(processes.cores)) < n:
            where = f"engines.{name}.cores" if name else "cores"
            raise ConfigError(where, f"{processes.cores} are too few CPUs for {n} replicas")
        cores, gpus = _shared(processes.cores, n), _shared(processes.gpus, n)
        alone = own.replaced(engines={}, api=ApiSettings(), replicas=1, min_replicas=None, model_aliases=())
        for i in range(n):
            words = [word for word in (name, str(i) if n > 1 else "") if word]
            replica = alone.replaced(cores=cores[i], gpus=gpus[i])
            if least is not None:
                stays = i < least
                replica = replica.replaced(
                    load="eager" if stays else "on_demand",
                    keep_alive_s=None if stays else processes.keep_alive_s,
                )
            engines.append(
                EngineDeployment(
                    engine_id="-".join(words) or ONLY_ENGINE,
                    deployment="-".join(["engine", *words]),
                    names=names,
                    settings=replica,
                )
            )
    return tuple(engines)


def gpu_shares(engines: Sequence[EngineDeployment], n_gpus: int) -> dict[str, float]:
    """Return the part of a GPU that each engine has reserved: equal ones, which fit on whole GPUs.

    An engine that names several devices of this machine has as many, and the others share the rest; one with
    devices of workers alone needs none, and the GPUs that Ray lends to those are left out.
    """
    users = [place for place in engines if place.settings.llama.n_gpu_layers != 0]
    users = [place for place in users if not place.settings.llama.borrows_all]
    n_gpus = max(n_gpus - sum(place.settings.llama.devices.count(RAY_GPU) for place in engines), 0)
    configured = {
        place.engine_id: share
        for place in engines
        if (share := place.settings.processes.gpu_share) is not None
    }
    named = {place.engine_id: place.settings.llama.n_named_here for place in users}
    several = {engine_id: n for engine_id, n in named.items() if n > 1 and engine_id not in configured}
    whole = {engine_id: float(min(n, n_gpus)) for engine_id, n in several.items()}
    sharing = named.keys() - whole.keys()
    n_left = max(n_gpus - sum(whole.values()), 1)
    own = 1.0 / -(-len(sharing) // n_left) if sharing and n_gpus else 0.0
    shares = {place.engine_id: own if place.engine_id in sharing else 0.0 for place in engines}
    return shares | whole | configured


def require_gpus(shares: Mapping[str, float], n_gpus: int) -> None:
    """Raise ConfigError where more is to be reserved than there is: Ray would wait for it without a word."""
    if sum(shares.values()) > n_gpus + 1e-6:
        each = ", ".join(f"{share:g} for engine {engine_id}" for engine_id, share in shares.items() if share)
        why = f"Ray knows {n_gpus} GPUs, and would have to reserve {each}: set it for each"
        raise ConfigError("gpu_share", f"{why}, and gpus for those that share some")


class Served(NamedTuple):
    """What the ingress knows of an engine."""

    engine_id: str
    names: tuple[str, ...]
    adapters: tuple[str, ...]
    model: str
    """The reference: another file may have another vocabulary, and then the ingress starts anew."""
    on_demand: bool
    scale_up_wait_s: float
    max_queue: int
    stall_timeout_s: float


def served_by(engines: Sequence[EngineDeployment]) -> list[Served]:
    return [
        Served(
            engine_id=place.engine_id,
            names=place.names,
            adapters=tuple((own := place.settings).adapters),
            model=own.model,
            on_demand=own.processes.load == "on_demand",
            scale_up_wait_s=own.processes.scale_up_wait_s,
            max_queue=own.limits.max_queue,
            stall_timeout_s=own.processes.stall_timeout_s,
        )
        for place in engines
    ]


class ForIngress(NamedTuple):
    """Settings of the HTTP layer: none of an engine's, so that no change of one restarts it."""

    api: ApiSettings
    server: ServerSettings


def versions(settings: EngineSettings, code: str = "") -> dict[str, str]:
    """Return a name for each deployment's code and settings: Serve restarts those whose name changes."""
    engines = places(settings)
    names = {place.deployment: _version(place.settings.values(), code) for place in engines}
    http = asdict(settings.api), asdict(settings.server)
    return names | {INGRESS: _version(*http, served_by(engines), code)}


def _version(*parts: object) -> str:
    """Hash slowly, because API keys are in it and Serve shows it."""
    text = "\0".join(map(repr, parts))
    return hashlib.scrypt(text.encode(), salt=b"cobali", n=1 << 12, r=8, p=1, dklen=16).hex()


def _shared(setting: str | None, n: int) -> list[str | None]:
    """Share CPUs or GPUs among the replicas of an engine; if they are too few, several have the same one."""
    if setting is None:
        return [None] * n
    numbers = listed(setting)
    if len(numbers) < n:
        return [str(numbers[i % len(numbers)]) for i in range(n)]
    size = len(numbers) // n
    ends = [size * (i + 1) for i in range(n - 1)] + [len(numbers)]
    return [",".join(map(str, numbers[size * i : end])) for i, end in enumerate(ends)]
