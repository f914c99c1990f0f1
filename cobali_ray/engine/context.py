"""Contexts: what `n_ctx: auto` comes to, what a model needs, and a cache that can never be held."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from cobali_ray.backend import memory
from cobali_ray.backend.cache_need import CacheNeed, cache_need
from cobali_ray.backend.config import DEFAULT_N_CTX, MAX_CELLS, STATE_DRAFT
from cobali_ray.backend.head import HEADS
from cobali_ray.errors import ConfigError
from cobali_ray.models.files import parts_of
from cobali_ray.models.ggufmeta import read_header
from cobali_ray.settings import EngineSettings

_log = structlog.get_logger(__name__)

MEMORY_SHARE = 0.5
"""Part of the memory beside the weights that all slots together may take; buffers for computing, the other
processes and what else the machine does have the rest."""
UNSPECIFIED = (1 << 32) - 1
"""A kind of pooling that is none."""
STEP = 256
"""llama.cpp's own step of contexts."""
PLAIN: Final = frozenset(
    {
        "command-r", "gemma", "granite", "internlm2", "llama", "mistral3", "phi3", "qwen2", "qwen2moe",
        "qwen3", "qwen3moe", "smollm3", "stablelm", "starcoder2",
    }
)  # fmt: skip
"""Architectures of which llama.cpp keeps the keys and values of every token in every layer. Others, with
windows, states or layers that share a cache, may take less than their metadata seem to say."""

DIFFUSION: Final = frozenset({"dream", "llada", "llada-moe", "rnd1"})
"""Architectures that llama.cpp loads and that write a whole text at once, in any order."""


def require_servable(settings: EngineSettings, path: Path) -> None:
    """Raise ConfigError for what a file's header says cannot be served, before anything is loaded."""
    said = read_header(path).metadata
    name, what = said.get("general.architecture"), None
    if name in DIFFUSION:
        what = f"a diffusion model ({name}): only models that write one token after another are supported"
    elif name == "clip":
        what = "a projector: set mmproj to it, and model to the model it was made for"
    elif said.get("general.type") == "adapter":
        what = "a LoRA adapter: name it in adapters, and set model to the model it was made for"
    if what is not None:
        raise ConfigError("model", f"{path.name} is {what}")
    type_k, type_v = settings.llama.type_k, settings.llama.type_v
    if type_k != type_v and _number(said, "attention.key_length_mla"):
        raise ConfigError(
            "type_k",
            f"{path.name} has latent attention, which stores keys and values as one: set type_k "
            f"({type_k}) and type_v ({type_v}) to the same type",
        )


def brings_head(path: Path) -> bool:
    """Whether a model's file has a head to guess with, of a kind that is used. Raises ConfigError."""
    if not _has_head(read_header(path).metadata):
        return False
    files = [path.with_name(name) for name in parts_of(path.name)]
    return any(
        one.name.endswith(".nextn.eh_proj.weight") for file in files for one in read_header(file).tensors
    )


def _has_head(said: Mapping[str, Any]) -> bool:
    return said.get("general.architecture") in HEADS and _number(said, "nextn_predict_layers") == 1


def n_ctx_of(settings: EngineSettings, path: Path | None, *, on_gpu: bool = False) -> int:
    """Return the tokens of one request as a number. Raises ConfigError for a file that cannot be read."""
    if settings.llama.n_ctx != "auto":
        return settings.llama.n_ctx
    if path is None:
        return DEFAULT_N_CTX
    header = read_header(path)
    n_trained = _number(header.metadata, "context_length")
    need = None if on_gpu else need_of(header.metadata, settings)
    available = memory.available_bytes()
    free = None if available is None else max(available - header.size_bytes, 0)
    n_ctx = largest_context(settings, n_trained=n_trained, need=need, free_bytes=free)
    told = {} if need is None else need._asdict()
    _log.info("n_ctx_auto", n_ctx=n_ctx, n_ctx_train=n_trained, free_bytes=free, **told)
    return n_ctx


def needed_bytes(settings: EngineSettings, path: Path | None) -> int:
    """Return what weights and KV cells will take, as far as the file's header tells; at least that much.

    `path` None is the scripted model, which takes nothing; nor does what lies with workers.
    Raises ConfigError for a file that cannot be read.
    """
    if path is None or settings.llama.lies_elsewhere:
        return 0
    header = read_header(path)
    if _only_embeds(header.metadata):
        return header.size_bytes
    n_ctx = n_ctx_of(settings, path)
    n_cells = _n_cells(settings, n_ctx)
    if settings.llama.pooling is not None:  # a second context
        n_cells += n_ctx
    need = need_of(header.metadata, settings)
    return header.size_bytes + (0 if need is None else _total(settings, need, n_cells, n_ctx))


def cache_bytes(settings: EngineSettings, path: Path, n_ctx: int) -> int | None:
    """Return what the cache of a model will take; None where its file does not tell."""
    need = need_of(read_header(path).metadata, settings)
    return None if need is None else _total(settings, need, _n_cells(settings, n_ctx), n_ctx)


def _total(settings: EngineSettings, need: CacheNeed, n_cells: int, n_ctx: int) -> int:
    return need.total(n_cells, settings.limits.n_slots, _n_window_cells(settings, need, n_ctx))


def _n_window_cells(settings: EngineSettings, need: CacheNeed, n_ctx: int) -> int:
    """Return the cells of layers with windows: all, where drafts have to be cut off (see `LlamaBackend`)."""
    n_slots, unified = settings.limits.n_slots, settings.llama.unified
    if settings.speculation == "auto" and not unified:
        return n_slots * n_ctx
    return need.n_window_cells(n_ctx, n_slots, settings.limits.budget(n_ctx), unified=unified)


def refusal_of_cache(settings: EngineSettings, path: Path) -> ConfigError | None:
    """Return an error if it is certain that this machine can never hold the KV cache; else None.

    Weights are not counted: they are mapped, and a model larger than the memory is slow but works.
    """
    most, said = memory.most_bytes(), (header := read_header(path)).metadata
    name = said.get("general.architecture")
    per_layer = isinstance(said.get(f"{name}.attention.head_count_kv"), list)
    n_ctx = settings.llama.n_ctx
    if n_ctx == "auto" or most is None or name not in PLAIN or per_layer or _only_embeds(said):
        return None
    need, n_cells = need_of(said, settings), _n_cells(settings, n_ctx)
    cell_bytes = 0 if need is None else need.cell_bytes
    if n_cells * cell_bytes <= most:
        return None
    n_free = max((memory.available_bytes() or 0) - header.size_bytes, 0) // cell_bytes
    if settings.llama.kv_cells:
        setting, room, others = "kv_cells", n_free // STEP * STEP, ""
    else:
        n_slots = settings.limits.n_slots
        setting, room = "n_ctx", n_free // n_slots // STEP * STEP
        others = f", or to auto, or lower n_slots ({n_slots})"
    return ConfigError(
        setting,
        f"a KV cache of {n_cells} tokens for {path.name} takes {n_cells * cell_bytes / 1e9:.1f} GB, and this "
        f"machine has {most / 1e9:.1f} GB: " + (f"set it to at most {room}{others}" if room else "lower it"),
    )


def _n_cells(settings: EngineSettings, n_ctx: int) -> int:
    return settings.llama.kv_cells or settings.limits.n_slots * n_ctx


def largest_context(
    settings: EngineSettings, *, n_trained: int | None, need: CacheNeed | None, free_bytes: int | None
) -> int:
    """Return the tokens of one slot, given what is known: nothing that is unknown makes it longer than 4,096.

    `kv_cells` bounds the memory already, where it is set.
    """
    n_slots = settings.limits.n_slots
    bounds = [MAX_CELLS // n_slots]
    if n_trained:
        bounds.append(n_trained)
    if settings.llama.kv_cells is not None:
        bounds.append(settings.llama.kv_cells)
    elif need is not None and free_bytes is not None:
        most = min(bounds)
        n_window_cells = _n_window_cells(settings, need, most)
        if n_window_cells == n_slots * most:  # they keep all tokens, as the others do
            need, n_window_cells = need._replace(cell_bytes=need.cell_bytes + need.window_cell_bytes), 0
        for_cells = max(int(MEMORY_SHARE * free_bytes) - need.total(0, n_slots, n_window_cells), 0)
        if need.cell_bytes:  # else a longer text takes no more
            bounds.append(max(for_cells // need.cell_bytes // n_slots // STEP * STEP, STEP))
    else:
        bounds.append(DEFAULT_N_CTX)
    return min(bounds if n_trained else [*bounds, DEFAULT_N_CTX])


def need_of(said: Mapping[str, Any], settings: EngineSettings) -> CacheNeed | None:
    """Return what a cache will take by a file's metadata; None where they do not tell."""
    llama, drafts = settings.llama, settings.speculation == "auto"
    return cache_need(
        said,
        type_k=llama.type_k,
        type_v=llama.type_v,
        n_drafted=STATE_DRAFT if drafts and not llama.unified else 0,
        head=drafts and _has_head(said),
    )


def _only_embeds(said: Mapping[str, Any]) -> bool:
    """Whether the file is of a model without a KV cache, or one that is not used to generate."""
    name = said.get("general.architecture")
    pools = _number(said, "pooling_type") not in {None, UNSPECIFIED}
    return pools or said.get(f"{name}.attention.causal") is False


def _number(said: Mapping[str, Any], key: str) -> int | None:
    value = said.get(f"{said.get('general.architecture')}.{key}")
    if isinstance(value, list):  # one per layer
        value = max(value, default=None)
    return value if isinstance(value, int) and value > 0 else None
