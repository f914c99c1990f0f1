"""Loading a model and opening its context: with which parameters, and whether there is room for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from cobali_ray.backend import attention, library, memory
from cobali_ray.backend.config import FLASH, LlamaConfig
from cobali_ray.backend.devices import Devices
from cobali_ray.backend.micro_batch import micro_batch
from cobali_ray.backend.params import attends, context_params, model_params
from cobali_ray.errors import ConfigError, ModelNotFoundError

_log = structlog.get_logger(__name__)
MICRO_BATCH = 256
"""Tokens that plain attention computes at once; more are no faster each, and take more memory."""
_SCORE_BYTES = 8
"""Of a row, a head and a cell: a score and, where the allocator needs it, its softmax."""
SLOW_CELLS = "with flash attention on a CPU, prompts take 2 to 7 times as long as f16 where much is cached"


def load_model(config: LlamaConfig, devices: Devices) -> Any:
    """Load the model. Raises ConfigError."""
    lc = library.load()
    params = model_params(lc, config, devices)
    library.forget_errors()
    model = lc.llama_model_load_from_file(str(config.path).encode(), params)
    if not model:
        raise ModelNotFoundError("model", f"llama.cpp cannot load {config.path}: {_cause(library.errors())}")
    if lc.llama_model_has_encoder(model):
        lc.llama_model_free(model)
        raise ConfigError("model", f"{config.path} is not a decoder-only language model")
    return model


def _cause(errors: str) -> str:
    """Return why a model does not load, without the lines that only say that it does not."""
    lines = [line.removeprefix("llama_model_load: error loading model: ") for line in errors.split("; ")]
    return "; ".join(line for line in lines if not line.endswith(": failed to load model")) or errors


def check_types(lc: Any, model: Any, config: LlamaConfig) -> None:
    """Raise ConfigError for types of cells that the model's heads do not fit."""
    kinds = {"type_k": config.type_k, "type_v": config.type_v}
    for (setting, kind), width in zip(kinds.items(), memory.widths(lc, model), strict=True):
        together = memory.TYPES[kind].n_together
        if width % together:
            raise ConfigError(
                setting,
                f"{kind} stores {together} numbers in a group; this model's heads have {width}",
            )


def plain_attention(
    lc: Any, model: Any, config: LlamaConfig, n_ubatch: int
) -> attention.AttentionTimes | None:
    """Measure both kinds of attention if need be; return None where llama.cpp's own choice holds.

    Plain attention keeps the scores of a whole micro-batch, which must fit beside the cache.
    """
    if not config.measures_attention or lc.llama_model_n_swa(model) > 0 or not attends(lc, model):
        return None
    times = attention.measured(lc, model, config)
    scores = n_ubatch * config.n_ctx * int(lc.llama_model_n_head(model)) * _SCORE_BYTES
    available = memory.available_bytes()
    fits = available is None or _kv_bytes(lc, model, config) + scores <= available
    return times if times is not None and times.off_wins and fits else None


def plain_micro_batch(config: LlamaConfig, *, whole: bool) -> int:
    """Return how many tokens plain attention computes at once. `whole`: an image must be in one pass."""
    return config.n_batch if whole else min(config.n_batch, max(MICRO_BATCH, config.n_slots))


def open_context(
    lc: Any,
    model: Any,
    config: LlamaConfig,
    *,
    plain: bool,
    whole: bool,
    n_devices: int,
    configure: Callable[[Any], None] | None,
) -> tuple[Any, int]:
    """Return a context, and how many rows of logits one pass may have. Raises ConfigError.

    `plain`: without flash attention. `whole`: an image must be in one micro-batch. `n_devices` share the
    layers, if they hold all of them, else 0. `configure` changes the parameters for sampling on a device.
    """
    params = context_params(lc, model, config)
    if plain:
        params.flash_attn_type, params.n_ubatch = FLASH["off"], plain_micro_batch(config, whole=whole)
    elif n_devices and config.split_mode == "layer" and not whole:
        params.n_ubatch = micro_batch(lc, model, config, n_devices)
    if configure is not None:
        configure(params)
    if not config.n_gpu_layers:
        _require_memory(lc, model, config)
    library.forget_errors()
    context = lc.llama_init_from_model(model, params)
    if not context:
        raise ConfigError(
            "n_ctx", f"no context for {config.n_slots} slots of n_ctx {config.n_ctx}: {library.errors()}"
        )
    if not plain and config.flash_attn != "off" and not config.n_gpu_layers:
        for setting, kind in (("type_k", config.type_k), ("type_v", config.type_v)):
            if kind != "f16":
                _log.warning("slow_cells", setting=setting, type=kind, detail=SLOW_CELLS)
    return context, int(params.n_outputs_max)


def _require_memory(lc: Any, model: Any, config: LlamaConfig) -> None:
    needed = _kv_bytes(lc, model, config)
    available = memory.available_bytes()
    if available is not None and needed > available:
        raise ConfigError(
            "n_ctx",
            f"a KV cache of {config.n_cells_requested} tokens takes {needed / 1e9:.1f} GB and "
            f"{available / 1e9:.1f} GB are free: lower n_ctx ({config.n_ctx}), "
            f"n_slots ({config.n_slots}) or kv_cells",
        )


def _kv_bytes(lc: Any, model: Any, config: LlamaConfig) -> int:
    if config.cache_bytes is not None:
        return config.cache_bytes
    return memory.kv_bytes(lc, model, config.n_cells_requested, type_k=config.type_k, type_v=config.type_v)
