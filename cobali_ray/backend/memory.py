"""Will a KV cache fit? Asked before llama.cpp allocates, because Linux says yes first and kills later."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from cobali_ray.backend import cgroup, library
from cobali_ray.core.request.limits import CellType


class CellFormat(NamedTuple):
    """How numbers are stored in cells."""

    ggml_type: int
    """What ggml calls it."""
    n_together: int
    n_bytes: int
    """Of as many numbers as are stored together."""


TYPES: dict[CellType, CellFormat] = {
    "f16": CellFormat(1, 1, 2),
    "bf16": CellFormat(30, 1, 2),
    "q8_0": CellFormat(8, 32, 34),
    "q5_1": CellFormat(7, 32, 24),
    "q5_0": CellFormat(6, 32, 22),
    "q4_1": CellFormat(3, 32, 20),
    "q4_0": CellFormat(2, 32, 18),
    "iq4_nl": CellFormat(20, 32, 18),
}
HOST_CELL_BYTES = 64
"""What llama.cpp remembers of one cell on the host beside keys and values, about."""


def widths(lc: Any, model: Any) -> tuple[int, int]:
    """Return how many numbers a head's key has, and its value."""
    name = library.metadata(lc, model, "general.architecture")
    head_dim = lc.llama_model_n_embd(model) // max(lc.llama_model_n_head(model), 1)
    key = _number(lc, model, f"{name}.attention.key_length") or head_dim
    return key, _number(lc, model, f"{name}.attention.value_length") or head_dim


def kv_bytes(lc: Any, model: Any, n_cells: int, *, type_k: CellType = "f16", type_v: CellType = "f16") -> int:
    """Return the bytes a cache of `n_cells` tokens takes; 0 where the metadata does not tell.

    Recurrent and hybrid models keep states, models with latent attention keep less than keys and values.
    """
    name = library.metadata(lc, model, "general.architecture")
    latent = library.metadata(lc, model, f"{name}.attention.kv_lora_rank")
    if latent or lc.llama_model_is_recurrent(model) or lc.llama_model_is_hybrid(model):
        return 0
    n_heads = int(lc.llama_model_n_layer(model) * lc.llama_model_n_head_kv(model))
    key, value = widths(lc, model)
    tensors = number_bytes(n_heads * key, type_k) + number_bytes(n_heads * value, type_v)
    return n_cells * (tensors + HOST_CELL_BYTES)


def number_bytes(n: int, kind: CellType) -> int:
    form = TYPES[kind]
    return -(-n // form.n_together) * form.n_bytes


def available_bytes(root: Path = cgroup.ROOT) -> int | None:
    """Return the memory this process may still take without swapping; None where Linux does not tell."""
    return _least(_of_machine("MemAvailable", root), cgroup.free_bytes(root))


def most_bytes(root: Path = cgroup.ROOT) -> int | None:
    """Return the memory that all processes may have together; None where Linux does not tell."""
    return _least(_of_machine("MemTotal", root), cgroup.most_bytes(root))


def _of_machine(field: str, root: Path) -> int | None:
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():
        return None
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    return int(fields[field].split()[0]) * 1024 if field in fields else None


def _least(of_machine: int | None, in_group: int | None) -> int | None:
    return min((n for n in (of_machine, in_group) if n is not None), default=None)


def _number(lc: Any, model: Any, key: str) -> int:
    text = library.metadata(lc, model, key)
    return int(text) if text.isdecimal() else 0
