"""BlockFiles: blocks of cells and states in files, one each, which several engines may share.

    FOLDER/KIND/NAME.kv     a head (magic, name, length, checksum), then the cells, or the state

`KIND` stands for all that makes cells unreadable to others. A file is whole or absent: it is written under
another name and then renamed, and one whose head, length or checksum is wrong is not read. The time of a file
is that of its last use, and a microsecond earlier for each block before it in its sequence, so that no block
is left without those before it when the oldest file is deleted.
"""

from __future__ import annotations

import os
import re
import struct
import time
import uuid
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cobali_ray.core.cache.disk_tier import is_state
from cobali_ray.core.cache.host_tier import NAME_BYTES

_CELLS, _STATE = b"cobaliKV", b"cobaliST"
_HEAD = struct.Struct("<8s20sQI")
_KIND = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{42})?\.kv")
_PART = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{42})?\.[0-9a-f]{32}\.part")
_STALE_NS = 3600 * 10**9
"""Age after which a half-written file is taken for that of a killed engine."""
_BEHIND_NS = 1000
_LOOK = 16
"""After this part of the bound was written, the folder is listed again; other engines may write there."""
_FAIR = 4
"""At most one in so many parts of the bound is freed for one file."""


class DamagedError(ValueError):
    """A file's content is not what its name promises."""


class _BlockFile(NamedTuple):
    used_ns: int
    n_bytes: int
    path: Path


class BlockFiles:
    """The files of one kind. Every method may raise OSError; none is called by the tick thread."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        *,
        cell_bytes: int,
        block: int,
        most_bytes: int,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`cell_bytes`: of one token, of `block` in a block. `most_bytes`: of all files here, of any kind."""
        self._folder, self._home = folder, folder / kind
        self._cell_bytes, self._block_bytes = cell_bytes, block * cell_bytes
        self._most_bytes, self._now_ns = most_bytes, now_ns
        self.n_bytes = 0
        """What all files take, as far as is known."""
        self._n_unseen = 0
        """Bytes written since the folder was listed."""

    def open(self) -> set[bytes]:
        """Make the folder, make it small enough, and return the names of the blocks that are there."""
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.tidy()

    def is_whole(self, name: bytes, n_bytes: int) -> bool:
        """Return whether so many bytes are a whole block."""
        return not is_state(name) and n_bytes == self._block_bytes

    def full(self, n_bytes: int) -> bool:
        """Return whether the folder should be listed before so many more bytes are written."""
        size = _HEAD.size + n_bytes
        too_much = self.n_bytes + size > self._most_bytes
        return too_much or self._n_unseen + size > self._most_bytes // _LOOK

    def tidy(self, n_bytes: int = 0) -> set[bytes]:
        """List all files, and delete those used longest ago until there is room for so many bytes.

        Returns the names of our kind that are left. Whatever else lies there is left alone.
        """
        files: list[_BlockFile] = []
        for kind in os.scandir(self._folder):
            if _KIND.fullmatch(kind.name) and kind.is_dir(follow_symlinks=False):
                files += self._look(Path(kind.path))
        files.sort()
        in_all, n_removed = sum([file.n_bytes for file in files]), 0
        room_bytes = min(_HEAD.size + max(n_bytes, self._block_bytes), self._most_bytes // _FAIR)
        most = self._most_bytes - max(self._most_bytes // _LOOK, room_bytes)
        while in_all > most and n_removed < len(files):
            files[n_removed].path.unlink(missing_ok=True)
            in_all -= files[n_removed].n_bytes
            n_removed += 1
        self.n_bytes, self._n_unseen = in_all, 0
        ours = [file for file in files[n_removed:] if file.path.parent == self._home]
        names = [(bytes.fromhex(file.path.stem), file.n_bytes) for file in ours]
        return {name for name, size in names if self._fits(name, size)}

    def _fits(self, name: bytes, n_bytes: int) -> bool:
        """Whether a file of that size can be what it is called."""
        size = n_bytes - _HEAD.size
        if is_state(name):
            return size > 0
        return 0 < size <= self._block_bytes and size % self._cell_bytes == 0

    def _look(self, home: Path) -> list[_BlockFile]:
        block_files = []
        with os.scandir(home) as files:
            for file in files:
                with suppress(FileNotFoundError):  # another engine tidies too
                    if _FILE.fullmatch(file.name):
                        stat = file.stat(follow_symlinks=False)
                        block_files.append(_BlockFile(stat.st_mtime_ns, stat.st_size, Path(file.path)))
                    elif _PART.fullmatch(file.name):
                        age_ns = self._now_ns() - file.stat(follow_symlinks=False).st_mtime_ns
                        if age_ns > _STALE_NS:
                            Path(file.path).unlink()
        return block_files

    def use(self, name: bytes, depth: int) -> bool:
        """Mark a block, the one with this number in its sequence, as used; False if it is gone."""
        path = self._path(name)
        try:
            if not self._fits(name, path.stat().st_size):  # nobody waited for the disk when it was written
                return False
            os.utime(path, ns=self._times(depth))
        except FileNotFoundError:
            return False
        return True

    def write(self, name: bytes, cells: NDArray[np.uint8], depth: int) -> bool:
        """Keep a block; False if there is no room for it."""
        data = cells.data
        if not self._fits(name, n_bytes := _HEAD.size + len(data)):
            raise DamagedError(f"{len(data)} bytes in a block of {self._block_bytes}")
        if self.n_bytes + n_bytes > self._most_bytes:
            return False
        path = self._path(name)
        part = path.with_name(f"{path.stem}.{uuid.uuid4().hex}.part")
        try:
            with open(part, "wb", buffering=0, opener=_private) as file:
                _write_all(file.fileno(), _head(name, data))
                _write_all(file.fileno(), data)
            os.utime(part, ns=self._times(depth))
            part.replace(path)
        except OSError:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        self.n_bytes += n_bytes
        self._n_unseen += n_bytes
        return True

    def read(self, name: bytes, depth: int) -> NDArray[np.uint8]:
        """Return the cells of a block. Raises DamagedError."""
        path = self._path(name)
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            data = np.empty(size if self._fits(name, size) else 0, np.uint8)
            n_read = 0
            while n_read < len(data) and (n := file.readinto(data.data[n_read:])):
                n_read += n
        cells = data[_HEAD.size :]
        if not n_read or n_read < len(data) or data[: _HEAD.size].tobytes() != _head(name, cells.data):
            raise DamagedError(f"{path} is no whole block")
        with suppress(OSError):
            self.use(name, depth)
        return cells

    def forget(self, names: Sequence[bytes]) -> None:
        for name in names:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: bytes) -> Path:
        return self._home / f"{name.hex()}.kv"

    def _times(self, depth: int) -> tuple[int, int]:
        used_ns = self._now_ns() - depth * _BEHIND_NS
        return used_ns, used_ns


def _head(name: bytes, data: memoryview) -> bytes:
    magic = _STATE if is_state(name) else _CELLS
    return _HEAD.pack(magic, name[-NAME_BYTES:], len(data), zlib.crc32(data))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write_all(file: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
