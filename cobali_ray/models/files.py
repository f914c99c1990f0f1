"""Names of GGUF files: the parts of a split model, the quant in a name, which file is meant. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from cobali_ray.errors import ModelNotFoundError

DEFAULT_QUANT = "Q4_K_M"
"""Taken where a repository has several and none was asked for."""
PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<total>(?!00000)\d{5})\.gguf")
_QUANT = re.compile(
    r"(?:^|(?<=[-_./]))(?:UD[-_])?"
    r"(?:I?Q\d(?:_(?:K|NL|[0-9]|XXS|XS|S|M|L|XL|XXL))*|TQ\d_\d|(?:MX|NV)FP4(?:_MOE)?|BF16|FP?(?:16|32))"
    r"(?=[-./]|$)",
    re.IGNORECASE,
)
_BESIDE_MODELS = re.compile(r"(?:^|/)mmproj|imatrix", re.IGNORECASE)
"""Projectors and statistics, which lie beside models and are none."""


def quant_of(name: str) -> str | None:
    """Return the quant in a file's name, in capitals."""
    quants: list[str] = _QUANT.findall(name)
    return quants[-1].upper() if quants else None


def models_among(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the models among files: by the file to load, all files of it. Split ones must be whole."""
    models: dict[str, tuple[str, ...]] = {}
    parts: dict[tuple[str, str], list[str]] = {}
    for name in sorted(names):
        if not name.endswith(".gguf") or _BESIDE_MODELS.search(name):
            continue
        if match := PART.fullmatch(name):
            parts.setdefault((match["stem"], match["total"]), []).append(name)
        else:
            models[name] = (name,)
    for present in parts.values():
        whole = parts_of(present[0])
        if present == list(whole):
            models[whole[0]] = whole
    return models


def parts_of(name: str) -> tuple[str, ...]:
    """Return the names of all files that a model has, of which one is `name`."""
    match = PART.fullmatch(name)
    if match is None:
        return (name,)
    stem, total = match.group("stem", "total")
    return tuple(f"{stem}-{i:05d}-of-{total}.gguf" for i in range(1, int(total) + 1))


def choose(models: Mapping[str, tuple[str, ...]], quant: str | None, of: str) -> tuple[str, ...]:
    """Return the files of the one model that is meant, where `of` has all of these.

    Raises:
        ModelNotFoundError: none or several are meant; it names what there is.
    """
    if not models:
        raise ModelNotFoundError("model", f"{of} has no GGUF model file")
    if quant is None:
        meant = [name for name in models if _tells(name, DEFAULT_QUANT)]
        meant = meant if len(meant) == 1 else list(models)
    else:
        meant = [name for name in models if _tells(name, quant)]
    if len(meant) == 1:
        return models[meant[0]]
    if meant:
        which = f"several files{f' of {quant.upper()}' if quant else ''}"
        raise ModelNotFoundError("model", f"{of} has {which}; name one of {_listed(meant)}")
    quants = list(dict.fromkeys(quant_of(name) or name for name in models))
    raise ModelNotFoundError("model", f"{of} has no {(quant or '').upper()}; it has {_listed(quants)}")


def _tells(name: str, quant: str) -> bool:
    """Say whether a name has this quant between its separators: Q4_K is not in Q4_K_M."""
    return re.search(rf"(?:^|[-_./]){re.escape(quant)}(?=[-./]|$)", name, re.IGNORECASE) is not None


def _listed(words: list[str], n_most: int = 12) -> str:
    more = f" and {len(words) - n_most} more" if len(words) > n_most else ""
    return ", ".join(words[:n_most]) + more
