"""Sizes: what `n_ctx` and `n_slots` come to if auto, what a model needs, and caches too large."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from cobali_ray.backend import memory
from cobali_ray.backend.cache_need import CacheNeed, cache_need
from cobali_ray.backend.config import DEFAULT_N_CTX, MAX_CELLS, STATE_DRAFT, LlamaConfig
from cobali_ray.backend.head import HEADS
from cobali_ray.core.request.limits import DEFAULT_SLOTS
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
    metadata = read_header(path).metadata
    name, what = metadata.get("general.architecture"), None
    if name in DIFFUSION:
        what = f"a diffusion model ({name}): only models that write one token after another are supported"
    elif name == "clip":
        what = "a projector: set mmproj to it, and model to the model it was made for"
    elif metadata.get("general.type") == "adapter":
        what = "a LoRA adapter: name it in adapters, and set model to the model it was made for"
    if what is not None:
        raise ConfigError("model", f"{path.name} is {what}")
    type_k, type_v = settings.llama.type_k, settings.llama.type_v
    if type_k != type_v and _number(metadata, "attention.key_length_mla"):
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
        tensor.name.endswith(".nextn.eh_proj.weight")
        for file in files
        for tensor in read_header(file).tensors
    )


def _has_head(metadata: Mapping[str, Any]) -> bool:
    return metadata.get("general.architecture") in HEADS and _number(metadata, "nextn_predict_layers") == 1


class Sizes(NamedTuple):
    """How many slots there are, and the tokens of each."""

    n_slots: int
    n_ctx: int


def autos(settings: EngineSettings) -> tuple[str, ...]:
    """Return which of the two sizes are auto."""
    sizes = {"n_ctx": settings.llama.n_ctx, "n_slots": settings.limits.n_slots}
    return tuple([name for name, value in sizes.items() if value == "auto"])


def sizes_of(settings: EngineSettings, path: Path | None, need: CacheNeed | None) -> Sizes:
    """Return both sizes as numbers, where a cache takes `need`; None: it lies on devices, or that is unknown.

    Raises ConfigError for a file that cannot be read.
    """
    n_slots, n_ctx = settings.limits.n_slots, settings.llama.n_ctx
    if n_slots != "auto" and n_ctx != "auto":
        return Sizes(n_slots, n_ctx)
    if path is None:
        return largest_sizes(settings, n_trained=None, need=None, free_bytes=None)
    header = read_header(path)
    n_trained = _number(header.metadata, "context_length")
    available = memory.available_bytes()
    free = None if available is None else max(available - header.size_bytes, 0)
    sizes = largest_sizes(settings, n_trained=n_trained, need=need, free_bytes=free)
    cache = {}
    if need is not None:
        cache = {"cache_bytes": cache_bytes(settings, need, sizes), **need._asdict()}
    _log.info(
        "sizes", auto=autos(settings), **sizes._asdict(), n_ctx_train=n_trained, free_bytes=free, **cache
    )
    return sizes


def needed_bytes(settings: EngineSettings, path: Path | None, need: CacheNeed | None = None) -> int:
    """Return what weights and KV cells will take; at least that much.

    `path` None is the scripted model, which takes nothing. `need` None is what the file's header tells.
    Raises ConfigError for a file that cannot be read.
    """
    if path is None:
        return 0
    header = read_header(path)
    need = need or need_of(header.metadata, settings)
    if need is None or _only_embeds(header.metadata):
        return header.size_bytes
    sizes = sizes_of(settings, path, need)
    n_more = 0 if settings.llama.pooling is None else sizes.n_ctx  # of a second context
    return header.size_bytes + cache_bytes(settings, need, sizes, n_more=n_more)


def cache_bytes(settings: EngineSettings, need: CacheNeed, sizes: Sizes, *, n_more: int = 0) -> int:
    """Return the bytes of a cache, with `n_more` cells of another."""
    n_cells = _n_cells(settings, sizes) + n_more
    return need.total(n_cells, sizes.n_slots, _n_window_cells(settings, need, sizes))


def _n_window_cells(settings: EngineSettings, need: CacheNeed, sizes: Sizes) -> int:
    """Return the cells of layers with windows: all, where drafts have to be cut off (see `LlamaBackend`)."""
    (n_slots, n_ctx), unified = sizes, settings.llama.unified
    if settings.speculation == "auto" and not unified:
        return n_slots * n_ctx
    return need.n_window_cells(n_ctx, n_slots, settings.limits.budget(n_slots, n_ctx), unified=unified)


def refusal_of_cache(settings: EngineSettings, path: Path) -> ConfigError | None:
    """Return an error if it is certain that this machine can never hold the KV cache; else None.

    Weights are not counted: they are mapped, and a model larger than the memory is slow but works.
    """
    most, metadata = memory.most_bytes(), (header := read_header(path)).metadata
    name = metadata.get("general.architecture")
    per_layer = isinstance(metadata.get(f"{name}.attention.head_count_kv"), list)
    if autos(settings) or most is None or name not in PLAIN or per_layer or _only_embeds(metadata):
        return None
    sizes = sizes_of(settings, path, None)
    need, n_cells = need_of(metadata, settings), _n_cells(settings, sizes)
    cell_bytes = 0 if need is None else need.cell_bytes
    if n_cells * cell_bytes <= most:
        return None
    n_free = max((memory.available_bytes() or 0) - header.size_bytes, 0) // cell_bytes
    if settings.llama.kv_cells:
        setting, room, others = "kv_cells", n_free // STEP * STEP, ""
    else:
        setting, room = "n_ctx", n_free // sizes.n_slots // STEP * STEP
        others = f", or to auto, or lower n_slots ({sizes.n_slots})"
    return ConfigError(
        setting,
        f"a KV cache of {n_cells} tokens for {path.name} takes {n_cells * cell_bytes / 1e9:.1f} GB, and this "
        f"machine has {most / 1e9:.1f} GB: " + (f"set it to at most {room}{others}" if room else "lower it"),
    )


def _n_cells(settings: EngineSettings, sizes: Sizes) -> int:
    return settings.llama.kv_cells or sizes.n_slots * sizes.n_ctx


def largest_sizes(
    settings: EngineSettings, *, n_trained: int | None, need: CacheNeed | None, free_bytes: int | None
) -> Sizes:
    """Return slots and the tokens of each, given what is known of a model and of the memory.

    Slots that are left open are the default number, or as many as can have the context that was set, or 4,096
    tokens each if that is open too; one at least. The rest of the memory is for a longer context.
    """
    n_slots, n_ctx = settings.limits.n_slots, settings.llama.n_ctx
    if n_slots == "auto":
        each = min(n_trained or DEFAULT_N_CTX, DEFAULT_N_CTX) if n_ctx == "auto" else n_ctx
        n_slots = _fitting_slots(settings, each, need, free_bytes)
    if n_ctx == "auto":
        n_ctx = _largest_context(settings, n_slots, n_trained, need, free_bytes)
    return Sizes(n_slots, n_ctx)


def _max_slots(settings: EngineSettings) -> int:
    """Return the slots that were set, or the most that auto can come to."""
    n_slots, budget = settings.limits.n_slots, settings.limits.token_budget
    return min(DEFAULT_SLOTS, budget or DEFAULT_SLOTS) if n_slots == "auto" else n_slots


def _fitting_slots(
    settings: EngineSettings, n_ctx: int, need: CacheNeed | None, free_bytes: int | None
) -> int:
    """Return how many slots of so many tokens there is room for, at most the default number."""
    most = _max_slots(settings)
    if need is None or free_bytes is None:
        return most
    choices = [Sizes(n, n_ctx) for n in range(most, 1, -1)]
    fit = (
        sizes.n_slots for sizes in choices if cache_bytes(settings, need, sizes) <= MEMORY_SHARE * free_bytes
    )
    return next(fit, 1)


def _largest_context(
    settings: EngineSettings,
    n_slots: int,
    n_trained: int | None,
    need: CacheNeed | None,
    free_bytes: int | None,
) -> int:
    """Return the tokens of each of these slots; at most 4,096 where what bounds it is unknown.

    `kv_cells` bounds the memory already, where it is set.
    """
    bounds = [MAX_CELLS // n_slots]
    if n_trained:
        bounds.append(n_trained)
    if settings.llama.kv_cells is not None:
        bounds.append(settings.llama.kv_cells)
    elif need is not None and free_bytes is not None:
        most = min(bounds)
        n_window_cells = _n_window_cells(settings, need, Sizes(n_slots, most))
        if n_window_cells == n_slots * most:  # they keep all tokens, as the others do
            need, n_window_cells = need._replace(cell_bytes=need.cell_bytes + need.window_cell_bytes), 0
        for_cells = max(int(MEMORY_SHARE * free_bytes) - need.total(0, n_slots, n_window_cells), 0)
        if need.cell_bytes:  # else a longer text takes no more
            bounds.append(max(for_cells // need.cell_bytes // n_slots // STEP * STEP, STEP))
    else:
        bounds.append(DEFAULT_N_CTX)
    return min(bounds if n_trained else [*bounds, DEFAULT_N_CTX])


def find_need(settings: EngineSettings, path: Path) -> CacheNeed | None:
    """Return what a cache will take here, by its model's file or else by llama.cpp's own account.

    Only the latter loads llama.cpp. None: neither tells. Raises ConfigError for a file that cannot be read.
    """
    metadata, drafts = read_header(path).metadata, settings.speculation == "auto"
    if (need := need_of(metadata, settings)) is not None or _only_embeds(metadata):
        return need
    from cobali_ray.backend.fit import estimated_need

    n_slots = _max_slots(settings)
    overrides = {"n_ctx": DEFAULT_N_CTX, "n_threads": 1, "n_gpu_layers": 0}
    return estimated_need(
        LlamaConfig(
            **asdict(settings.llama) | overrides,
            path=path,
            n_slots=n_slots,
            n_batch=min(settings.limits.budget(n_slots, DEFAULT_N_CTX), n_slots * DEFAULT_N_CTX),
            speculation=drafts,
            head=drafts and brings_head(path),
        )
    )


def need_of(metadata: Mapping[str, Any], settings: EngineSettings) -> CacheNeed | None:
    """Return what a cache will take by a file's metadata; None where they do not tell."""
    llama, drafts = settings.llama, settings.speculation == "auto"
    return cache_need(
        metadata,
        type_k=llama.type_k,
        type_v=llama.type_v,
        n_drafted=STATE_DRAFT if drafts and not llama.unified else 0,
        head=drafts and _has_head(metadata),
    )


def _only_embeds(metadata: Mapping[str, Any]) -> bool:
    """Whether the file is of a model without a KV cache, or one that is not used to generate."""
    name = metadata.get("general.architecture")
    pools = _number(metadata, "pooling_type") not in {None, UNSPECIFIED}
    return pools or metadata.get(f"{name}.attention.causal") is False


def _number(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(f"{metadata.get('general.architecture')}.{key}")
    if isinstance(value, list):  # one per layer
        value = max(value, default=None)
    return value if isinstance(value, int) and value > 0 else None
