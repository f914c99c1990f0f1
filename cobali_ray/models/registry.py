"""From what `model:` says to a file on this machine; what is built in; what a file says about itself."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cobali_ray.errors import ModelNotFoundError
from cobali_ray.models.builtin import Builtin, Order, Progress
from cobali_ray.models.encoder import SYNTHETIC_ENCODERS
from cobali_ray.models.ggufmeta import read_header, require_gguf
from cobali_ray.models.hub import download
from cobali_ray.models.reference import BuiltinReference, HubReference, parse_reference
from cobali_ray.models.shipped import SHIPPED_MODELS
from cobali_ray.models.store import default_cache_dir
from cobali_ray.models.synthetic import SYNTHETIC_MODELS

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROWS: tuple[Builtin, ...] = (*SHIPPED_MODELS, *SYNTHETIC_MODELS, *SYNTHETIC_ENCODERS)
BUILTINS: Mapping[str, Builtin] = {row.name: row for row in _ROWS}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """One built-in model in one quant. `size_bytes` is of all its files in the cache, whatever their seed."""

    name: str
    quant: str
    default: bool
    description: str
    made: bool
    size_bytes: int

    @property
    def reference(self) -> str:
        """What to write after `model:`."""
        return f"builtin:{self.name}" if self.default else f"builtin:{self.name}:{self.quant}"


def resolve(
    reference: str,
    *,
    cache_dir: Path | None = None,
    vocab_gguf: Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Path:
    """Return the GGUF file that `reference` names, made or downloaded first if need be.

    `cache_dir` holds made models (default: `default_cache_dir()`); downloads lie in huggingface_hub's cache.
    `vocab_gguf` and `seed` matter to synthetic models only.

    Raises:
        ConfigError: `reference` cannot be read, or the file cannot be written.
        ModelNotFoundError: it leads nowhere.
    """
    parsed = parse_reference(reference)
    if isinstance(parsed, BuiltinReference):
        order = Order(
            cache_dir=cache_dir or default_cache_dir(),
            vocab_gguf=vocab_gguf,
            seed=seed,
            progress=progress or _silent,
        )
        return _provide(parsed, order)
    path = (
        download(parsed, progress=progress)
        if isinstance(parsed, HubReference)
        else Path(parsed.path).expanduser()
    )
    require_gguf(path)
    return path


def available(*, cache_dir: Path | None = None) -> list[ModelInfo]:
    """List every built-in model in every quant, and whether it is made already."""
    folder = cache_dir or default_cache_dir()
    return [_info(row, quant, row.made(quant, folder)) for row in BUILTINS.values() for quant in row.quants]


def describe(path: Path) -> dict[str, Any]:
    """Read what a GGUF file says about itself, as JSON can hold it; `parameters` counts weights."""
    from gguf import GGMLQuantizationType, LlamaFileType

    header = read_header(path)
    said = header.metadata
    architecture = said.get("general.architecture", "unknown")

    def of_architecture(key: str) -> Any:
        return said.get(f"{architecture}.{key}")

    file_type = said.get("general.file_type")
    return {
        "path": str(path),
        "size_bytes": header.size_bytes,
        "name": said.get("general.name"),
        "description": said.get("general.description"),
        "architecture": architecture,
        "parameters": sum(math.prod(tensor.shape) for tensor in header.tensors),
        "n_layers": of_architecture("block_count"),
        "width": of_architecture("embedding_length"),
        "ffn_width": of_architecture("feed_forward_length"),
        "n_heads": of_architecture("attention.head_count"),
        "n_kv_heads": of_architecture("attention.head_count_kv"),
        "n_ctx_train": of_architecture("context_length"),
        "rope_base": of_architecture("rope.freq_base"),
        "n_vocab": len(said.get("tokenizer.ggml.tokens", ())),
        "quantisation": _name_of(LlamaFileType, file_type).removeprefix("MOSTLY_").removeprefix("ALL_"),
        "tensor_types": dict(Counter(_name_of(GGMLQuantizationType, t.type_id) for t in header.tensors)),
        "has_chat_template": "tokenizer.chat_template" in said,
    }


def _provide(reference: BuiltinReference, order: Order) -> Path:
    row = BUILTINS.get(reference.name)
    if row is None:
        raise ModelNotFoundError(
            "model", f"no model '{reference.name}' is built in; there are {', '.join(BUILTINS)}"
        )
    quant = reference.quant or row.quants[0]
    if quant not in row.quants:
        raise ModelNotFoundError(
            "model", f"builtin:{row.name} has no quant {quant}; it has {', '.join(row.quants)}"
        )
    return row.provide(quant, order)


def _info(row: Builtin, quant: str, files: tuple[Path, ...]) -> ModelInfo:
    return ModelInfo(
        name=row.name,
        quant=quant,
        default=quant == row.quants[0],
        description=row.description,
        made=bool(files),
        size_bytes=sum(file.stat().st_size for file in files),
    )


def _name_of(kinds: Any, value: int | None) -> str:
    try:
        return str(kinds(value).name)
    except ValueError:
        return f"unknown ({value})"


def _silent(_what: str, _done: float) -> None: ...
