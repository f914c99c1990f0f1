"""Read what a GGUF file says about itself: keys, values and tensor headers, in a fraction of a second.

The layout is the GGUF specification's (versions 2 and 3, little endian). Nothing is copied but what is
returned: of a file of many gigabytes only the pages of its header are touched.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cobali_ray.errors import ConfigError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAGIC = b"GGUF"
FLOAT32, _STRING, _ARRAY = 6, 8, 9
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4",
    6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_U64 = struct.Struct("<Q")
_MOST_NESTING = 4
_MOST_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor's header; `shape` is in numpy's order (rows first), `type_id` is ggml's number."""

    name: str
    shape: tuple[int, ...]
    type_id: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """All of a GGUF file but its weights. Array values are lists; strings keep bad bytes as surrogates."""

    version: int
    metadata: Mapping[str, Any]
    tensors: tuple[TensorEntry, ...]
    size_bytes: int
    kinds: Mapping[str, int]
    """The types of the values, by GGUF's numbers."""


def require_gguf(path: Path) -> None:
    """Check that a GGUF file lies at `path`.

    Raises:
        ModelNotFoundError: nothing there, or a directory.
        ConfigError: something else than a GGUF file, or a file that cannot be read.
    """
    if path.is_dir():
        found = ", ".join(sorted(p.name for p in path.glob("*.gguf"))[:5])
        raise ModelNotFoundError(
            "model", f"'{path}' is a directory; name a file in it ({found or 'it has no .gguf file'})"
        )
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except FileNotFoundError:
        raise ModelNotFoundError(
            "model",
            f"there is no file '{path}' (looked for {path.absolute()}); "
            "a file on the Hub is hf://owner/repo/file.gguf, `cobali models list` names what is built in",
        ) from None
    except OSError as error:
        raise ConfigError("model", f"'{path}' cannot be read: {error.strerror}") from error
    if magic != MAGIC:
        raise ConfigError(
            "model", f"'{path}' is not a GGUF file: it starts with {magic!r} instead of {MAGIC!r}"
        )


def read_header(path: Path) -> GgufHeader:
    """Read all keys and tensor headers of the file at `path`.

    Raises:
        ModelNotFoundError, ConfigError: as `require_gguf`, and for a file that is cut short or garbled.
    """
    require_gguf(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Reader(data).header()
        except (struct.error, ValueError, OverflowError) as error:
            raise ConfigError("model", f"'{path}' is a damaged GGUF file: {error}") from error


class _Reader:
    """A position in a mapped file. Reads are checked against the end: a slice past it comes back short."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._size, self._at = data, len(data), len(MAGIC)

    def header(self) -> GgufHeader:
        version = self._number("<u4")
        if version not in {2, 3}:
            raise ValueError(f"GGUF version {version} (2 and 3 are read, little endian)")
        n_tensors, n_keys = self._number("<u8"), self._number("<u8")
        metadata, kinds = dict[str, Any](), dict[str, int]()
        for _ in range(n_keys):
            key = self._string()
            kinds[key] = self._number("<u4")
            metadata[key] = self._value(kinds[key], nesting=0)
        tensors = tuple(self._tensor() for _ in range(n_tensors))
        return GgufHeader(version, metadata, tensors, self._size, kinds)

    def _tensor(self) -> TensorEntry:
        name, n_dimensions = self._string(), self._number("<u4")
        if n_dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {n_dimensions} dimensions")
        shape = tuple(self._number("<u8") for _ in range(n_dimensions))[::-1]
        entry = TensorEntry(name, shape, self._number("<u4"))
        self._number("<u8")  # where its data starts
        return entry

    def _value(self, kind: int, nesting: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(nesting)
        if kind not in _NUMBERS:
            raise ValueError(f"unknown value type {kind}")
        return self._numbers(_NUMBERS[kind], 1)[0]

    def _array(self, nesting: int) -> list[Any]:
        kind, length = self._number("<u4"), self._number("<u8")
        if kind == _STRING:
            return self._strings(length)
        if kind in _NUMBERS:
            return self._numbers(_NUMBERS[kind], length)
        if nesting == _MOST_NESTING:
            raise ValueError("arrays are nested too deep")
        return [self._value(kind, nesting + 1) for _ in range(length)]

    def _number(self, dtype: str) -> int:
        value: int = self._numbers(dtype, 1)[0]
        return value

    def _numbers(self, dtype: str, length: int) -> list[Any]:
        kind = np.dtype(dtype)
        self._require(length * kind.itemsize)
        values: list[Any] = np.frombuffer(self._data, kind, length, self._at).tolist()
        self._at += length * kind.itemsize
        return values

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, length: int) -> list[str]:
        # The hot loop of a vocabulary: three hundred thousand strings, so all names are local.
        data, size, at, u64 = self._data, self._size, self._at, _U64.unpack_from
        out: list[str] = []
        append = out.append
        for _ in range(length):
            start = at + 8
            at = start + u64(data, at)[0]
            if at > size:
                raise ValueError(f"a string at byte {start} ends past the end of the file")
            append(data[start:at].decode("utf-8", "surrogateescape"))
        self._at = at
        return out

    def _require(self, n_bytes: int) -> None:
        if self._at + n_bytes > self._size:
            raise ValueError(f"it ends at byte {self._size}, in the middle of a value")
