"""Read what a GGUF file says about itself: keys, values and tensor headers, in a fraction of a second.

The layout is the GGUF specification's (versions 2 and 3, little endian). Nothing is copied but what is
returned: of a file of many gigabytes only the pages of its header are touched. gguf's own reader takes
half a minute for a vocabulary of 150 thousand.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cobali_ray.errors import ConfigError, ModelNotFoundError
from cobali_ray.models.files import parts_of

MAGIC = b"GGUF"
_ALIGNMENT = 32
"""Of a file's data, where it does not say so itself."""
FLOAT32, _STRING, _ARRAY = 6, 8, 9
_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i",
    6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""The kinds of numbers, as `struct` writes them."""
_FOREIGN = {
    b"version https://git-lfs": "a Git LFS pointer: run `git lfs pull` in its folder",
    b"<": "a web page: the download went wrong",
    b"PK\x03\x04": "a zip archive, such as PyTorch's",
    b"{": "JSON",
}
"""What is often found in place of a GGUF file, by its first bytes."""
_U64 = struct.Struct("<Q")
_MAX_NUMBERS = 65_536
_MAX_NESTING = 4
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor's header; `shape` is in numpy's order (rows first), `type_id` is ggml's number."""

    name: str
    shape: tuple[int, ...]
    type_id: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """All of a GGUF file but its weights and its vocabulary.

    Array values are lists; strings in them are empty, so that only their number is right. Other strings keep
    bad bytes as surrogates.
    """

    version: int
    metadata: Mapping[str, Any]
    tensors: tuple[TensorEntry, ...]
    size_bytes: int
    kinds: Mapping[str, int]
    """The types of the values, by GGUF's numbers."""
    data_at: int
    """The byte at which the tensors' data begins."""
    offsets: tuple[int, ...]
    """Where the data of each tensor begins, counted from there."""


def require_gguf(path: Path) -> None:
    """Check that a GGUF file lies at `path`.

    Raises:
        ModelNotFoundError: nothing there, or a directory.
        ConfigError: something else than a GGUF file, or a file that cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(max(map(len, _FOREIGN)))
    except IsADirectoryError:
        names = ", ".join(sorted(p.name for p in path.glob("*.gguf"))[:5])
        raise ModelNotFoundError(
            "model", f"'{path}' is a directory; name a file in it ({names or 'it has no .gguf file'})"
        ) from None
    except FileNotFoundError:
        place = "" if path.is_absolute() else f" (looked for {path.absolute()})"
        raise ModelNotFoundError(
            "model",
            f"there is no file '{path}'{place}; "
            "a file on the Hub is hf://owner/repo/file.gguf; `cobali models list` shows those here",
        ) from None
    except OSError as error:
        raise ConfigError("model", f"'{path}' cannot be read: {error.strerror}") from error
    if not start.startswith(MAGIC):
        raise ConfigError("model", f"'{path}' is not a GGUF file{_kind(path, start)}")


def _kind(path: Path, start: bytes) -> str:
    """Say what a file is that begins like this, as far as one can tell."""
    if not start:
        return ": it is empty"
    if path.suffix == ".safetensors":
        return ", but a safetensors file, which llama.cpp's convert_hf_to_gguf.py turns into one"
    foreign = next((what for first, what in _FOREIGN.items() if start.startswith(first)), None)
    return f", but {foreign}" if foreign else f": it starts with {start[: len(MAGIC)]!r} instead of {MAGIC!r}"


def require_whole(path: Path) -> None:
    """Check that a GGUF file lies at `path` with all its data, and beside it all files that it is split into.

    Raises:
        ModelNotFoundError, ConfigError: as `read_header`, and for what llama.cpp would only say "failed" of.
    """
    header = read_header(path)
    if header.size_bytes < (whole := _least_bytes(header)):
        raise ConfigError(
            "model",
            f"'{path}' is truncated: it has {header.size_bytes:,} of {whole:,} bytes; download it again",
        )
    parts = parts_of(path.name)
    place = f"'{path}' is one of {len(parts)} parts of a model"
    if path.name != parts[0]:
        raise ConfigError("model", f"{place}; name the first, {parts[0]}")
    for part in parts:
        if not path.with_name(part).exists():
            raise ModelNotFoundError("model", f"{place}, and {part} is not in the same folder")


def _least_bytes(header: GgufHeader) -> int:
    """Return how long a file has to be for its last tensor to be whole."""
    from gguf import GGML_QUANT_SIZES

    ends = [header.data_at]
    for tensor, offset in zip(header.tensors, header.offsets, strict=True):
        block, n_bytes = GGML_QUANT_SIZES.get(tensor.type_id, (1, 0))  # of a type we do not know, its start
        ends.append(header.data_at + offset + math.prod(tensor.shape) // block * n_bytes)
    return max(ends) if header.tensors else 0


def read_header(path: Path, reader: type[GgufReader] | None = None) -> GgufHeader:
    """Read all keys and tensor headers of the file at `path`.

    Raises:
        ModelNotFoundError, ConfigError: as `require_gguf`, and for a file that is cut short or garbled.
    """
    require_gguf(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return (reader or GgufReader)(data).header()
        except (struct.error, ValueError, OverflowError) as error:
            why = "it ends in its header" if isinstance(error, struct.error) else error
            raise ConfigError("model", f"'{path}' is a damaged GGUF file: {why}") from error


class GgufReader:
    """A position in a mapped file. Reads are checked against the end: a slice past it comes back short."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._size, self._at = data, len(data), len(MAGIC)

    def header(self) -> GgufHeader:
        version = self._number("I")
        if version not in {2, 3}:
            raise ValueError(f"GGUF version {version} (2 and 3 are supported, little endian)")
        n_tensors, n_keys = self._number("Q"), self._number("Q")
        metadata, kinds = dict[str, Any](), dict[str, int]()
        for _ in range(n_keys):
            key = self._string()
            kinds[key] = self._number("I")
            metadata[key] = self._value(kinds[key], nesting=0)
        tensors = [self._tensor() for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"its data cannot be aligned to {alignment!r} bytes")
        return GgufHeader(
            version,
            metadata,
            tuple(tensor for tensor, _ in tensors),
            self._size,
            kinds,
            -(-self._at // alignment) * alignment,
            tuple(offset for _, offset in tensors),
        )

    def _tensor(self) -> tuple[TensorEntry, int]:
        """Read a tensor's header, and where its data starts."""
        name, n_dimensions = self._string(), self._number("I")
        if n_dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {n_dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(n_dimensions))[::-1]
        return TensorEntry(name, shape, self._number("I")), self._number("Q")

    def _value(self, kind: int, nesting: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(nesting)
        if kind not in _NUMBERS:
            raise ValueError(f"unknown value type {kind}")
        return self._numbers(_NUMBERS[kind], 1)[0]

    def _array(self, nesting: int) -> list[Any]:
        kind, length = self._number("I"), self._number("Q")
        if kind == _STRING:
            return self._words(length)
        if kind in _NUMBERS:
            return self._number_array(_NUMBERS[kind], length)
        if nesting == _MAX_NESTING:
            raise ValueError("arrays are nested too deep")
        return [self._value(kind, nesting + 1) for _ in range(length)]

    def _number_array(self, code: str, length: int) -> list[Any]:
        """Return the values; none of a long array, which says nothing of layers and could fill memory."""
        if length <= _MAX_NUMBERS:
            return self._numbers(code, length)
        self._require(n_bytes := length * struct.calcsize(f"<{code}"))
        self._at += n_bytes
        return []

    def _number(self, code: str) -> int:
        value: int = self._numbers(code, 1)[0]
        return value

    def _numbers(self, code: str, length: int) -> list[Any]:
        self._require(n_bytes := length * struct.calcsize(f"<{code}"))
        values = list(struct.unpack_from(f"<{length}{code}", self._data, self._at))
        self._at += n_bytes
        return values

    def _string(self) -> str:
        start = self._at + _U64.size
        self._pass_strings(1)
        return self._data[start : self._at].decode("utf-8", "surrogateescape")

    def _words(self, length: int) -> list[str]:
        self._pass_strings(length)
        return [""] * length

    def _pass_strings(self, length: int) -> None:
        # The hot loop of a vocabulary: three hundred thousand strings, so all names are local.
        data, size, at, u64 = self._data, self._size, self._at, _U64.unpack_from
        for _ in range(length):
            at += _U64.size + u64(data, at)[0]
            if at > size:
                raise ValueError(f"a string ends at byte {at}, past the end of the file")
        self._at = at

    def _require(self, n_bytes: int) -> None:
        if self._at + n_bytes > self._size:
            raise ValueError(f"it ends at byte {self._size}, in the middle of a value")
