"""Will a KV cache fit? Asked before llama.cpp allocates, because Linux says yes first and kills later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cobali_ray.backend import cgroup, library

_F16_BYTES = 2
_CELL_BYTES = 64
"""What llama.cpp remembers of one cell on the host beside keys and values, about."""


def kv_bytes(lc: Any, model: Any, n_cells: int) -> int:
    """Return the bytes a cache of `n_cells` f16 tokens takes; 0 where the metadata does not tell.

    Recurrent and hybrid models keep states, models with latent attention keep less than keys and values.
    """
    name = library.metadata(lc, model, "general.architecture")
    latent = library.metadata(lc, model, f"{name}.attention.kv_lora_rank")
    if latent or lc.llama_model_is_recurrent(model) or lc.llama_model_is_hybrid(model):
        return 0
    head_dim = lc.llama_model_n_embd(model) // max(lc.llama_model_n_head(model), 1)
    key = _number(lc, model, f"{name}.attention.key_length") or head_dim
    value = _number(lc, model, f"{name}.attention.value_length") or head_dim
    return n_cells * cell_bytes(
        n_layers=lc.llama_model_n_layer(model),
        n_heads_kv=lc.llama_model_n_head_kv(model),
        key_width=key,
        value_width=value,
    )


def cell_bytes(*, n_layers: int, n_heads_kv: int, key_width: int, value_width: int) -> int:
    """Return the bytes of one cell: the keys and values of one token in every layer, as f16."""
    return n_layers * n_heads_kv * (key_width + value_width) * _F16_BYTES + _CELL_BYTES


def available_bytes(root: Path = cgroup.ROOT) -> int | None:
    """Return the memory this process may still take without swapping; None where Linux does not tell."""
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():
        return None
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    free = [int(fields["MemAvailable"].split()[0]) * 1024] if "MemAvailable" in fields else []
    if (in_group := cgroup.free_bytes(root)) is not None:
        free.append(in_group)
    return min(free, default=None)


def _number(lc: Any, model: Any, key: str) -> int:
    text = library.metadata(lc, model, key)
    return int(text) if text.isdecimal() else 0
