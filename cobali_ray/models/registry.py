"""From what `model:` says to a file on this machine; what is built in; what a file says about itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cobali_ray.errors import ModelNotFoundError
from cobali_ray.models.builtin import SYNTHETIC, Builtin, Order, Progress, builtins, laboratory
from cobali_ray.models.digest import files_of
from cobali_ray.models.files import parts_of
from cobali_ray.models.ggufmeta import read_header, require_whole
from cobali_ray.models.hub import cached_file, choose_file, download
from cobali_ray.models.local import local_models, meant_by, near
from cobali_ray.models.reference import (
    SOURCES,
    BuiltinReference,
    HubReference,
    HubRepository,
    NameReference,
    PathReference,
    parse_reference,
)
from cobali_ray.models.store import default_cache_dir


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

    `cache_dir` holds made models (default: `default_cache_dir()`); downloads are in huggingface_hub's cache.
    `vocab_gguf` and `seed` matter to synthetic models only.

    Raises:
        ConfigError: `reference` cannot be read, or the file cannot be written.
        ModelNotFoundError: it leads nowhere.
        MissingExtraError: it is a synthetic model, and the laboratory, which makes those, is not installed.
    """
    parsed = parse_reference(reference)
    order = Order(
        cache_dir=cache_dir or default_cache_dir(),
        vocab_gguf=vocab_gguf,
        seed=seed,
        progress=progress or (lambda *_: None),
    )
    if isinstance(parsed, NameReference):
        parsed = _named(parsed, order.cache_dir)
    if isinstance(parsed, BuiltinReference):
        row, quant = _builtin(parsed)
        return row.provide(quant, order)
    if isinstance(parsed, HubRepository):
        parsed = choose_file(parsed)
    if isinstance(parsed, HubReference):
        parts = [replace(parsed, filename=part) for part in parts_of(parsed.filename)]
        path, *_ = [download(part, progress=progress) for part in parts]
    else:
        path = _expanded(parsed)
    require_whole(path)
    return path


def look_up(reference: str, *, cache_dir: Path | None = None) -> Path | None:
    """Return the GGUF file that `reference` names, if it is here; None: `resolve` would make or download it.

    Asks no network, and makes nothing. Raises what `resolve` raises of a file that is here.
    """
    parsed, folder = parse_reference(reference), cache_dir or default_cache_dir()
    if isinstance(parsed, NameReference):
        parsed = _named(parsed, folder)
    if isinstance(parsed, BuiltinReference):
        row, quant = _builtin(parsed)
        return next(iter(row.made(quant, folder)), None)
    path = _expanded(parsed) if isinstance(parsed, PathReference) else cached_file(parsed)
    if path is not None:
        require_whole(path)
    return path


def available(*, cache_dir: Path | None = None) -> list[ModelInfo]:
    """List every built-in model in every quant, and whether it is made already."""
    folder = cache_dir or default_cache_dir()
    return [
        ModelInfo(
            name=row.name,
            quant=quant,
            default=quant == row.quants[0],
            description=row.description,
            made=bool(files),
            size_bytes=sum(file.stat().st_size for file in files),
        )
        for row in builtins().values()
        for quant in row.quants
        for files in [row.made(quant, folder)]
    ]


def describe(path: Path) -> dict[str, Any]:
    """Read what a model's files say about it, as JSON can hold it; `parameters` counts weights.

    `prompts_begin` is where one may part from an earlier one. A token takes `cell_bytes` in the cache and in
    host memory, a saved state `state_bytes`; None: the file does not say.
    """
    from gguf import GGMLQuantizationType, LlamaFileType

    from cobali_ray.backend.cache_need import begins, cache_need

    headers = [read_header(file) for file in files_of(path) or [path]]
    tensors = [tensor for header in headers for tensor in header.tensors]
    metadata = headers[0].metadata
    architecture = metadata.get("general.architecture", "unknown")

    def of_architecture(key: str) -> Any:
        return metadata.get(f"{architecture}.{key}")

    need = cache_need(metadata)
    return {
        "path": str(path),
        "size_bytes": sum(header.size_bytes for header in headers),
        "name": metadata.get("general.name"),
        "description": metadata.get("general.description"),
        "architecture": architecture,
        "parameters": sum(math.prod(tensor.shape) for tensor in tensors),
        "n_layers": of_architecture("block_count"),
        "width": of_architecture("embedding_length"),
        "ffn_width": of_architecture("feed_forward_length"),
        "n_heads": of_architecture("attention.head_count"),
        "n_kv_heads": of_architecture("attention.head_count_kv"),
        "n_ctx_train": of_architecture("context_length"),
        "rope_base": of_architecture("rope.freq_base"),
        "n_vocab": len(metadata.get("tokenizer.ggml.tokens", ())),
        "quant": _quant(LlamaFileType, metadata),
        "tensor_types": dict(Counter(_name_of(GGMLQuantizationType, t.type_id) for t in tensors)),
        "has_chat_template": "tokenizer.chat_template" in metadata,
        "prompts_begin": begins(metadata),
        "cell_bytes": None if need is None else need.cell_bytes,
        "state_bytes": None if need is None else need.state_bytes,
    }


def _expanded(reference: PathReference) -> Path:
    try:
        return Path(reference.path).expanduser()
    except RuntimeError:
        raise ModelNotFoundError("model", f"'{reference.path}': there is no such user") from None


def _named(reference: NameReference, cache_dir: Path) -> PathReference | BuiltinReference:
    """Return what other programs, or this one, know by this name. Raises ModelNotFoundError."""
    with suppress(OSError):  # a name that no file can have, as it is too long
        if reference.source is None and Path(reference.name).exists():
            return PathReference(reference.name)
    models, builtins = local_models(), [info.reference for info in available(cache_dir=cache_dir)]
    meant = {model.reference: model.files[0] for model in meant_by(reference, models)}
    own = [name for name in builtins if name == f"builtin:{reference.name}" and reference.source is None]
    if own and not meant:
        name, _, quant = reference.name.partition(":")
        return BuiltinReference(name, quant or None)
    if len(meant) == 1 and not own:
        return PathReference(str(next(iter(meant.values()))))
    if meant:
        which = ", ".join([*own, *meant])
        raise ModelNotFoundError("model", f"'{reference}' matches several models here; name one of {which}")
    alike = near(reference, models, () if reference.source else builtins)
    hint = f"did you mean {' or '.join(alike)}? " if alike else ""
    where = f"{SOURCES[reference.source]} has no model" if reference.source else "there is no file or model"
    raise ModelNotFoundError(
        "model", f"{where} '{reference.name}' here; {hint}`cobali models list` shows what there is"
    )


def _builtin(reference: BuiltinReference) -> tuple[Builtin, str]:
    """Return a built-in model and its quant that is meant. Raises ModelNotFoundError, MissingExtraError."""
    rows = builtins()
    row = rows.get(reference.name)
    if row is None:
        if reference.name.startswith(SYNTHETIC):
            laboratory()
        raise ModelNotFoundError(
            "model", f"there is no built-in model '{reference.name}'; there are {', '.join(rows)}"
        )
    quant = reference.quant or row.quants[0]
    if quant not in row.quants:
        raise ModelNotFoundError(
            "model", f"builtin:{row.name} has no quant {quant}; it has {', '.join(row.quants)}"
        )
    return row, quant


def _quant(kinds: Any, metadata: Mapping[str, Any]) -> str:
    return _name_of(kinds, metadata.get("general.file_type")).removeprefix("MOSTLY_").removeprefix("ALL_")


def _name_of(kinds: Any, value: int | None) -> str:
    try:
        return str(kinds(value).name)
    except ValueError:
        return f"unknown ({value})"
