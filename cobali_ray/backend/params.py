"""Parameters of a model and its contexts, also where only the memory that they would take is computed."""

from __future__ import annotations

from typing import Any

from cobali_ray.backend.config import FLASH, STATE_DRAFT, LlamaConfig
from cobali_ray.backend.devices import Devices
from cobali_ray.backend.logprobs import n_scored_rows
from cobali_ray.core.plan.goodput import MAX_ROWS

MAX_HEAD_ROWS = 512
"""Tokens that go through a head at once."""


def model_params(lc: Any, config: LlamaConfig, devices: Devices) -> Any:
    """Return the parameters of a model; `devices` must live until it is loaded."""
    params = lc.llama_model_default_params()
    params.n_gpu_layers = config.n_gpu_layers
    params.load_mtp = config.head and config.verifies
    devices.configure(params, config)
    return params


def context_params(lc: Any, model: Any, config: LlamaConfig) -> Any:
    """Return the parameters of a context for a loaded model."""
    params = _context_params(lc, config)
    params.n_batch = params.n_ubatch = config.n_batch
    n_drawn = max(config.n_slots, MAX_ROWS if config.verifies else 0)
    n_scored = n_scored_rows(int(lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))))
    params.n_outputs_max = min(params.n_batch, n_drawn + n_scored)
    params.swa_full = not forgets(lc, model, config)
    if config.verifies and not config.unified and not attends(lc, model):
        params.n_rs_seq = STATE_DRAFT
    return params


def head_params(lc: Any, config: LlamaConfig, trunk: Any) -> Any:
    """Return the parameters of a context for a model's own head, whose other layers another one computes."""
    params = _context_params(lc, config)
    params.ctx_type, params.ctx_other = lc.LLAMA_CONTEXT_TYPE_MTP, trunk
    params.n_batch = params.n_ubatch = min(MAX_HEAD_ROWS, config.n_batch)
    params.n_outputs_max = min(params.n_batch, config.n_slots)
    return params


def _context_params(lc: Any, config: LlamaConfig) -> Any:
    """Return what both have in common."""
    params = lc.llama_context_default_params()
    params.n_ctx, params.n_seq_max = config.n_cells_requested, config.n_slots
    params.n_threads = params.n_threads_batch = config.n_threads
    params.flash_attn_type = FLASH["on" if config.needs_flash else config.flash_attn]
    params.type_k, params.type_v = config.ggml_types
    params.kv_unified, params.no_perf = config.unified, True
    return params


def attends(lc: Any, model: Any) -> bool:
    """Whether a model keeps the keys and values of each token, and not states."""
    return not (lc.llama_model_is_recurrent(model) or lc.llama_model_is_hybrid(model))


def forgets(lc: Any, model: Any, config: LlamaConfig) -> bool:
    """Whether cells that left a window are given to later tokens.

    Drafts are cut where they were wrong, which needs those cells.
    """
    return lc.llama_model_n_swa(model) > 0 and (config.unified or not config.verifies)
