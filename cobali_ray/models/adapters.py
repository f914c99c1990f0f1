"""Files of adapters: found, and checked against their model before llama.cpp aborts over them.

An adapter holds, for some matrices W of a model, two narrow ones, A and B: W x becomes W x + scale B A x. The
laboratory makes random ones, `builtin:synthetic-adapter[:SEED]`, for whatever model they stand beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cobali_ray.errors import ConfigError
from cobali_ray.models.builtin import laboratory
from cobali_ray.models.digest import files_of
from cobali_ray.models.ggufmeta import FLOAT32, read_header
from cobali_ray.models.reference import BuiltinReference, parse_reference
from cobali_ray.models.registry import resolve
from cobali_ray.models.store import default_cache_dir

SYNTHETIC_ADAPTER = "synthetic-adapter"
_TYPES = {0, 1, 8, 30}
"""What A and B may be, by ggml's numbers: F32, F16, Q8_0, BF16."""
_EMBEDDING = "token_embd.weight"
_INVOCATION = "adapter.alora.invocation_tokens"
_IGNORED = "_norm.weight"
"""llama.cpp leaves vectors of norms out."""
_Shapes = dict[str, tuple[int, ...]]


def find_adapter(reference: str, model: Path, *, cache_dir: Path | None = None) -> Path:
    """Return an adapter's file, made or downloaded first if need be, that fits the model at `model`.

    `reference` is a path, hf://owner/repo/file.gguf or builtin:synthetic-adapter[:SEED]. Raises ConfigError,
    and MissingExtraError where only the laboratory could make it.
    """
    if isinstance(parsed := parse_reference(reference), BuiltinReference):
        seed = parsed.quant or "0"
        if parsed.name != SYNTHETIC_ADAPTER or not seed.isdecimal():
            raise ConfigError(
                "adapters", f"'{reference}' is not builtin:{SYNTHETIC_ADAPTER}[:SEED], the seed a number"
            )
        architecture = read_header(model).metadata["general.architecture"]
        folder, shapes = cache_dir or default_cache_dir(), _shapes_of(model)
        path: Path = laboratory().make_adapter(architecture, shapes, int(seed), folder)
    else:
        path = resolve(reference)
    require_fitting(path, model)
    return path


def invocation_of(adapter: Path) -> tuple[int, ...]:
    """Return the tokens that invoke an activated adapter; none where it is not one. Raises ConfigError."""
    tokens = read_header(adapter).metadata.get(_INVOCATION, [])
    if not isinstance(tokens, list) or not all(type(token) is int and token < 1 << 31 for token in tokens):
        raise ConfigError("adapters", f"'{adapter}' is damaged: {_INVOCATION} is no list of tokens")
    return tuple(tokens)


def _shapes_of(model: Path) -> _Shapes:
    return {tensor.name: tensor.shape for part in files_of(model) for tensor in read_header(part).tensors}


def require_fitting(path: Path, model: Path) -> None:
    """Raise ConfigError for what llama.cpp would refuse without a reason, or crash over."""
    adapter, shapes = read_header(path), _shapes_of(model)
    metadata, architecture = adapter.metadata, read_header(model).metadata.get("general.architecture")
    if metadata.get("general.type") != "adapter" or metadata.get("adapter.type") != "lora":
        raise ConfigError(
            "adapters", f"'{path}' is not a LoRA adapter; llama.cpp's convert_lora_to_gguf.py makes one"
        )
    if (mine := metadata.get("general.architecture")) != architecture:
        raise ConfigError(
            "adapters", f"'{path}' is for models of the architecture {mine!r}, not {architecture!r}"
        )
    if adapter.kinds.get("adapter.lora.alpha", FLOAT32) != FLOAT32:
        raise ConfigError("adapters", f"'{path}' is damaged: adapter.lora.alpha is not a float32")
    invocation_of(path)
    pairs: dict[str, _Shapes] = {}
    for tensor in adapter.tensors:
        name, _, part = tensor.name.rpartition(".")
        if tensor.name.endswith(_IGNORED):
            continue
        if part not in {"lora_a", "lora_b"} or tensor.type_id not in _TYPES:
            raise ConfigError(
                "adapters",
                f"'{path}': tensor {tensor.name!r} of type {tensor.type_id} does not belong in an adapter",
            )
        pairs.setdefault(name, {})[part] = tensor.shape
    if not pairs:
        raise ConfigError("adapters", f"'{path}' changes nothing: it has no tensors")
    for name, pair in pairs.items():
        if problem := _problem(name, pair, shapes):
            raise ConfigError("adapters", f"'{path}' is not for this model: {problem}")


def _problem(name: str, pair: _Shapes, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return why a pair cannot be computed beside its matrix."""
    of_model = shapes.get(name)
    if of_model is None or len(of_model) < 2:
        return f"it changes {name!r}, and the model has no matrix of this name"
    if len(pair) < 2:
        return f"{name!r} has no {'lora_b' if 'lora_a' in pair else 'lora_a'}"
    if name == _EMBEDDING and "output.weight" not in shapes:
        return f"it changes {name!r}, which is the model's output too: llama.cpp cannot do that"
    *deeper, n_out, n_in = of_model
    if name == _EMBEDDING:
        n_out, n_in = n_in, n_out
    a, b = pair["lora_a"], pair["lora_b"]
    rank = b[-1] if b else 0
    expected_a = (*deeper, n_in, rank) if name == _EMBEDDING else (*deeper, rank, n_in)
    if a != expected_a or b != (*deeper, n_out, rank) or rank < 1:
        return f"{name!r} is {of_model}, and its lora_a and lora_b are {a} and {b}"
    return None
