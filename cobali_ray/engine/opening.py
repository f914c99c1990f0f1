"""open_engine: the one way from settings to an engine, for the server, `cobali run` and every measurement."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import structlog

from cobali_ray.backend import memory, threads
from cobali_ray.backend.cache_need import CacheNeed
from cobali_ray.backend.config import AUTO, LlamaConfig
from cobali_ray.backend.endpoint import WORKER, is_lent
from cobali_ray.backend.port import Backend
from cobali_ray.backend.rpc_build import built
from cobali_ray.backend.scripted import ScriptedBackend, ScriptedEmbedder
from cobali_ray.backend.select import choose_select
from cobali_ray.chat.template import ChatTemplate
from cobali_ray.core.clock import Clock
from cobali_ray.core.plan.adapters import Adapter
from cobali_ray.core.plan.goodput import Speculation
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.request.limits import EngineLimits, PrefillOrder
from cobali_ray.core.story import Story
from cobali_ray.engine.block_files import BlockFiles
from cobali_ray.engine.calibration import calibration
from cobali_ray.engine.context import (
    brings_head,
    cache_bytes,
    find_need,
    refusal_of_cache,
    require_servable,
    sizes_of,
)
from cobali_ray.engine.disk import Disk
from cobali_ray.engine.engine import Engine, Sink
from cobali_ray.errors import ConfigError
from cobali_ray.models.adapters import find_adapter, invocation_of
from cobali_ray.models.builtin import Progress
from cobali_ray.models.digest import model_digest
from cobali_ray.models.ggufmeta import read_header
from cobali_ray.models.registry import resolve
from cobali_ray.models.store import default_cache_dir
from cobali_ray.settings import EngineSettings, listed, read_text

if TYPE_CHECKING:
    from cobali_ray.backend.tunnel_key import TunnelAddress

_log = structlog.get_logger(__name__)

SCRIPTED = "builtin:scripted"
_SCRIPTED = re.compile(r"builtin:scripted(?::(\d{1,9}(?:\.\d{1,9})?))?")
UNSUPPORTED_PROJECTORS = ("hunyuanvl", "deepseek4v")
"""Kinds whose rows depend on what stands before an image: of no use where something else does."""
NO_DRAFTS = "not in the reproducible configuration, where a device picks tokens, or where slots cannot be cut"
HOST_SHARE = 0.1
"""Part of the free memory that prefixes may take, by `host_cache_mib: auto`, and states, likewise."""


class MonotonicClock:
    """The machine's monotonic clock, which every process on it shares."""

    def now(self) -> float:
        return time.monotonic()


def scripted_tick_s(reference: str) -> float | None:
    """Return how long a pass takes of `builtin:scripted[:SECONDS]`, which only pretends; None for models."""
    match = _SCRIPTED.fullmatch(reference)
    return None if match is None else float(match[1] or 0.02)


def model_path(settings: EngineSettings, progress: Progress | None = None) -> Path | None:
    """Find, make or download the model file; None for the scripted model, which has none."""
    if scripted_tick_s(settings.model) is not None:
        return None
    return resolve(settings.model, cache_dir=settings.cache_dir, progress=progress)


def check_machine(settings: EngineSettings) -> None:
    """Check what settings name on this machine: folders, files to write, CPUs. Makes nothing.

    Raises ConfigError.
    """
    if settings.cache_dir is not None and not _is_folder(settings.cache_dir):
        raise ConfigError("cache_dir", f"{settings.cache_dir} is not a folder")
    for name, folder in _folders(settings):
        require_folder(name, folder)
    if settings.log_ticks is not None:
        _open_log(settings.log_ticks, 0)
    if settings.processes.cores is not None:
        with ThreadPoolExecutor(1) as pool:  # tried by a thread that is gone afterwards
            pool.submit(pin, settings.processes.cores).result()


def make_places(settings: EngineSettings) -> None:
    """Make the folders and files that settings name and that are not there yet. Raises ConfigError."""
    for name, folder in _folders(settings):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(name, f"{folder} cannot be made: {error.strerror}") from None
    if settings.log_ticks is not None:
        _open_log(settings.log_ticks, os.O_CREAT)


def pin(cores: str) -> None:
    """Keep all that this thread begins on these CPUs. Raises ConfigError."""
    try:
        threads.pin(frozenset(listed(cores)))
    except OSError as error:
        raise ConfigError("cores", f"this process may not use the CPUs {cores}: {error.strerror}") from error


def _is_folder(path: Path) -> bool:
    """Whether it is one, or could become one."""
    try:
        return path.is_dir() or not path.exists()
    except OSError:  # a name that is too long
        return False


def _folders(settings: EngineSettings) -> Iterator[tuple[str, Path]]:
    """Yield the folders to write to, each with its setting."""
    for name in ("disk_cache_dir", "slot_save_path"):
        if (folder := getattr(settings.kept, name)) is not None:
            yield name, folder


def require_folder(setting: str, folder: Path) -> None:
    """Check that a folder can be written or, where it is not there, made. Raises ConfigError."""
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except OSError as error:  # a name that is too long
        raise ConfigError(setting, f"{folder} cannot be made: {error.strerror}") from None
    if not there.is_dir():
        raise ConfigError(setting, f"{there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        what = "written" if there == folder else "made"
        raise ConfigError(setting, f"{folder} cannot be {what}: Permission denied")


def _open_log(path: Path, flags: int) -> None:
    """Check that the log of ticks can be written; without O_CREAT, a missing file is not made."""
    try:
        if flags or path.exists():
            # Nobody may read a pipe yet.
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | flags, 0o600))
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            why = "Permission denied" if path.parent.is_dir() else "its folder is not there"
            raise ConfigError("log_ticks", f"{path} cannot be written: {why}")
    except OSError as error:
        raise ConfigError("log_ticks", f"{path} cannot be written: {error.strerror}") from None


def find_model(settings: EngineSettings, progress: Progress) -> None:
    """Find, make or download the model file, and check what is read next to it. Raises ConfigError.

    Also check that this machine can hold its KV cache, unless a GPU does, and build what workers need.
    """
    chat_template(settings)
    if any(map(is_lent, settings.llama.devices)):
        built(worker_cache())
    if (path := model_path(settings, progress)) is not None:
        require_servable(settings, path)
        projector_path(settings)
        require_memory(settings, path)


def require_memory(settings: EngineSettings, path: Path) -> None:
    """Raise ConfigError if it is certain that this machine's memory can never hold the KV cache."""
    refusal = refusal_of_cache(settings, path)
    if refusal is not None and not _n_gpu_layers(settings)[0]:  # which loads llama.cpp
        raise refusal


def projector_path(settings: EngineSettings) -> Path | None:
    """Find or download the projector, if one is set. Raises ConfigError."""
    if settings.mmproj is None:
        return None
    try:
        path = resolve(settings.mmproj, cache_dir=settings.cache_dir)
    except ConfigError as error:
        raise type(error)("mmproj", error.message) from error
    require_projector(path)
    return path


def require_projector(path: Path) -> None:
    """Raise ConfigError if the file is no projector, or none that is supported."""
    try:
        metadata = read_header(path).metadata
    except ConfigError as error:
        raise type(error)("mmproj", error.message) from error
    kind = metadata.get("clip.projector_type") or metadata.get("clip.vision.projector_type")
    if metadata.get("general.architecture") != "clip" or kind in UNSUPPORTED_PROJECTORS:
        raise ConfigError("mmproj", f"{path} is not a supported projector; its kind is {kind}")


def adapters_of(settings: EngineSettings, path: Path | None) -> tuple[Adapter, ...]:
    """Find the adapters that the settings name, for the model at `path`, and check that they fit it.

    The scripted model takes any. Raises ConfigError that names the adapter.
    """
    adapters = []
    for name, own in settings.adapters.items():
        file, digest = own.file, hashlib.sha256(own.file.encode()).hexdigest()
        invocation: tuple[int, ...] = ()
        if path is not None:
            try:
                where = find_adapter(own.file, path, cache_dir=settings.cache_dir)
                file, digest = str(where), model_digest(where, _measurements(settings))
                invocation = invocation_of(where)
            except ConfigError as error:
                raise ConfigError(f"adapters.{name}", error.message) from error
        key = f"{digest[:32]} {own.scale!r}" if own.scale else ""
        adapters.append(Adapter(name, key, file, own.scale, invocation))
    return tuple(adapters)


def files_beside(settings: EngineSettings, path: Path | None) -> set[Path]:
    """Return the files that are loaded beside the model's own. Raises ConfigError."""
    projector = projector_path(settings)
    adapters = () if path is None else adapters_of(settings, path)
    return {Path(adapter.path) for adapter in adapters} | ({projector} if projector else set())


def chat_template(settings: EngineSettings) -> str | None:
    """Return the chat template that was set in place of the model's. Raises ConfigError."""
    if settings.chat_template is None:
        return None
    source = read_text("chat_template", settings.chat_template)
    if unreadable := ChatTemplate(source).unreadable:
        why = f"{settings.chat_template} is not a valid Jinja template: {unreadable}"
        raise ConfigError("chat_template", why)
    return source


def open_engine(
    settings: EngineSettings,
    sink: Sink,
    *,
    clock: Clock | None = None,
    path: Path | None = None,
    story: Story | None = None,
    placed: tuple[TunnelAddress | None, ...] = (),
) -> Engine:
    """Find the model, load it and put an engine on it. Raises ConfigError that names the setting at fault.

    `placed` are the workers that Ray has started for the settings; None for those that it had no room for.
    """
    path = path or model_path(settings)
    backend = open_backend(settings, path, placed)
    try:
        return engine_on(backend, settings, sink, clock=clock, path=path, story=story)
    except BaseException:  # else its memory would stay taken as long as the process lives
        backend.close()
        raise


def engine_on(
    backend: Backend,
    settings: EngineSettings,
    sink: Sink,
    *,
    clock: Clock | None = None,
    path: Path | None = None,
    prefill_order: PrefillOrder = "shortest",
    story: Story | None = None,
) -> Engine:
    """Return a new engine on a loaded model, with what the settings name.

    `path` is the model's file: nothing is kept on disk of a model whose file is not known. Only experiments
    have another `prefill_order`; a `Story(None)` keeps all of the scheduler's events.
    """
    drafts = settings.speculation == "auto" and backend.max_draft > 0
    if settings.speculation == "auto" and not drafts:
        _log.warning("no_speculation", detail=NO_DRAFTS)
    limits = limits_of(backend, settings, prefill_order)
    clock = clock or MonotonicClock()
    pacer = Pacer(settings.itl_target_s, backend.grain)
    if path is not None and backend.generates:
        pacer.model.calibrate(calibration(backend, limits, settings, path, _measurements(settings)))
    return Engine(
        backend,
        limits,
        clock,
        sink,
        pacer=pacer,
        select=choose_select(settings.selector),
        disk=_disk(backend, settings, limits, clock, path),
        speculation=Speculation(backend.max_draft, head=backend.has_head) if drafts else None,
        story=story,
    )


def model_hash(settings: EngineSettings, path: Path | None) -> str:
    """Return a hash of the model's file; computed once per file, which is noted in the cache folder."""
    if path is None:
        return SCRIPTED
    return model_digest(path, _measurements(settings))


def _disk(
    backend: Backend, settings: EngineSettings, limits: EngineLimits, clock: Clock, path: Path | None
) -> Disk | None:
    """Return what keeps prefixes on disk, if the settings say so; nothing is opened or hashed yet."""
    folder, block = settings.kept.disk_cache_dir, limits.host_block
    if folder is None or (path is None and scripted_tick_s(settings.model) is None):
        return None
    stateless = limits.state_bytes and not limits.n_states
    if stateless or not (limits.n_host_cells or limits.states_alone):
        why = "it is filled from host memory, and there is none"
        if stateless:
            why = "cells of this model are of no use without states, and state_cache_mib has no room for one"
        _log.warning("no_disk_cache", setting="disk_cache_dir", detail=why)
        return None

    def find() -> BlockFiles:
        facts = repr((model_hash(settings, path), backend.cell_kind(), block, limits.cell_bytes))
        projector = projector_path(settings)
        if projector is not None:  # what stands for an image names the file only
            facts += model_digest(projector, _measurements(settings))
        return BlockFiles(
            folder,
            hashlib.sha256(facts.encode()).hexdigest()[:32],
            cell_bytes=limits.cell_bytes,
            block=block,
            most_bytes=settings.kept.disk_bytes,
        )

    return Disk(find, clock, block=block)


def _measurements(settings: EngineSettings) -> Path:
    """Return the folder of what was measured of models."""
    return (settings.cache_dir or default_cache_dir()) / "measurements"


def limits_of(
    backend: Backend, settings: EngineSettings, prefill_order: PrefillOrder = "shortest"
) -> EngineLimits:
    """Return the scheduler's limits: those of the settings, as far as the backend can meet them.

    Called before anything is computed, because the bytes of a cell are measured.
    """
    if not backend.generates:
        settings = settings.replaced(host_cache_mib=0)
    state_bytes, n_states = _state_cache(backend, settings)
    cell_bytes, host_bytes = _host_cache(backend, settings)
    limits, n_ctx = settings.limits, settings.llama.n_ctx
    return limits.on(
        backend.n_slots,  # one for a model without text, fewer than were set where there is less room
        backend.n_ctx_slot if n_ctx == "auto" else n_ctx,
        n_ctx_slot=backend.n_ctx_slot,
        n_cells=backend.n_cells,
        prefill_order=prefill_order,
        min_prefix=limits.min_prefix if backend.cuts_tails or state_bytes else 0,
        copies=backend.copies,
        shares=backend.shares,
        dense=backend.dense,
        grain=backend.grain,
        n_scored_rows=backend.n_scored_rows,
        cell_bytes=cell_bytes,
        keeps_images=backend.projector is None or not backend.projector.spatial,
        n_host_cells=host_bytes // cell_bytes if cell_bytes else 0,
        state_bytes=state_bytes,
        n_states=n_states,
        states_alone=backend.states_alone and state_bytes > 0,
    )


def _state_cache(backend: Backend, settings: EngineSettings) -> tuple[int, int]:
    """Return the bytes of a saved state, and how many may be kept; see states.py."""
    if not settings.limits.min_prefix or not (state_bytes := backend.measure_state()):
        return 0, 0
    most_bytes = _bytes_of(settings.kept.state_cache_mib)
    n_states = most_bytes // state_bytes
    _log.info("state_cache", mib=most_bytes >> 20, n_states=n_states, state_bytes=state_bytes)
    if not n_states:
        _log.warning("no_state_cache", setting="state_cache_mib", detail="a state takes more than it allows")
    return state_bytes, n_states


def _host_cache(backend: Backend, settings: EngineSettings) -> tuple[int, int]:
    """Return the bytes of a cell outside the cache, and those that all may take in host memory."""
    enabled = settings.kept.host_cache_mib or settings.kept.slot_save_path is not None
    if backend.states_alone or not enabled or not settings.limits.min_prefix:
        return 0, 0
    cell_bytes = backend.measure_cell()
    if not cell_bytes:
        _log.warning("no_host_cache", detail="the cells of this model cannot be kept outside its cache")
        return 0, 0
    host_bytes = _bytes_of(settings.kept.host_cache_mib)
    _log.info("host_cache", mib=host_bytes >> 20, n_tokens=host_bytes // cell_bytes, cell_bytes=cell_bytes)
    return cell_bytes, host_bytes


def _bytes_of(mib: int | Literal["auto"]) -> int:
    return int((memory.available_bytes() or 0) * HOST_SHARE) if mib == "auto" else mib << 20


def open_backend(
    settings: EngineSettings, path: Path | None, placed: tuple[TunnelAddress | None, ...] = ()
) -> Backend:
    """Load the model as the settings say. Raises ConfigError that names the setting at fault."""
    if path is None:
        n_slots, n_ctx = sizes_of(settings, path, None)
        return ScriptedBackend(
            n_slots=n_slots,
            n_ctx_slot=n_ctx,
            n_cells=settings.llama.kv_cells,
            n_batch=settings.limits.budget(n_slots, n_ctx),
            tick_s=scripted_tick_s(settings.model) or 0.0,
            strict=False,
            embedder=None if settings.llama.pooling is None else ScriptedEmbedder(n_ctx),
            adapters=adapters_of(settings, path),
        )
    require_servable(settings, path)
    n_threads = _n_threads(settings)
    late = threads.openmp_loaded()
    wait = threads.apply_wait(settings.llama.threads_wait, n_threads=n_threads)
    _log.info("threads", n_threads=n_threads, threads_wait=wait, too_late=late)

    # Imported only now: libgomp reads its wait policy when it loads.
    from cobali_ray.backend.embedding_only import open_llama

    config = replace(llama_config(settings, path), placed=placed)
    if config.n_gpu_layers and not _n_gpu_layers(settings)[1]:
        what = "this llama.cpp was built without a GPU"
        _log.warning("no_gpu", n_gpu_layers=config.n_gpu_layers, detail=what)
    return open_llama(config)


def llama_config(settings: EngineSettings, path: Path) -> LlamaConfig:
    """Return how a model is to be opened; loads llama.cpp. Raises ConfigError."""
    n_gpu_layers, need = _n_gpu_layers(settings)[0], need_here(settings, path)
    sizes = sizes_of(settings, path, need)
    resolved = {"n_ctx": sizes.n_ctx, "n_threads": _n_threads(settings), "n_gpu_layers": n_gpu_layers}
    return LlamaConfig(
        **asdict(settings.llama) | resolved,
        path=path,
        n_slots=sizes.n_slots,
        fewer_slots=settings.limits.n_slots == "auto",
        n_batch=settings.limits.budget(*sizes),
        speculation=settings.speculation == "auto",
        head=settings.speculation == "auto" and brings_head(path),
        mmproj=projector_path(settings),
        adapters=adapters_of(settings, path),
        cache_bytes=None if need is None else cache_bytes(settings, need, sizes),
        measurements=_measurements(settings),
        worker_cache=worker_cache(),
    )


def need_here(settings: EngineSettings, path: Path | None) -> CacheNeed | None:
    """Return what `find_need` does; None where a cache lies on devices."""
    return None if path is None or _n_gpu_layers(settings)[0] else find_need(settings, path)


def lies_on_devices(settings: EngineSettings, path: Path | None) -> bool:
    """Whether all of a model goes to memory that is not this machine's own: a GPU's, or workers'."""
    if path is None:
        return False
    # As in `open_backend`, before llama.cpp is loaded.
    threads.apply_wait(settings.llama.threads_wait, n_threads=_n_threads(settings))
    n_gpu_layers, offload = _n_gpu_layers(settings)
    return n_gpu_layers < 0 and offload and WORKER not in settings.llama.devices


def runs_on(settings: EngineSettings, path: Path | None) -> str:
    """Say in a few words what the model of an open engine is computed on."""
    if path is None:
        return "nothing: a script"
    n_threads = _n_threads(settings)
    cpu = f"{n_threads} CPU thread{'' if n_threads == 1 else 's'}"
    n_gpu_layers, offload = _n_gpu_layers(settings)
    if not (n_gpu_layers and offload):
        return cpu
    named = settings.llama.devices
    where = "GPU" if named == (AUTO,) else " + ".join(named)
    return f"{where}, all layers" if n_gpu_layers < 0 else f"{where}, {n_gpu_layers} layers; {cpu}"


def worker_cache() -> Path:
    """Return the folder for the library by which workers are reached, which is built when it is needed."""
    return default_cache_dir().parent / "rpc"


def _n_threads(settings: EngineSettings) -> int:
    return settings.llama.n_threads or threads.default_n_threads()


def _n_gpu_layers(settings: EngineSettings) -> tuple[int, bool]:
    """Return the layers for the GPU, -1 for all, and whether this llama.cpp can have any there."""
    from cobali_ray.backend.devices import has_gpu

    offload = settings.llama.devices != (AUTO,) or has_gpu()
    n_layers = settings.llama.n_gpu_layers
    return ((-1 if offload else 0) if n_layers == "auto" else n_layers), offload
