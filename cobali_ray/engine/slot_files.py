"""Slot files: idle slots saved to named files and restored, as llama-server's API has it.

A file holds tokens with their cells and saved states, and says of which model. The tick thread only copies
these, between two ticks; files are read and written by the caller's thread.
"""

from __future__ import annotations

import hashlib
import os
import uuid
import zlib
from array import array
from collections.abc import Callable
from functools import partial, reduce
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from cobali_ray.core.clock import Clock
from cobali_ray.core.views.cache import SlotMove
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.idle_slots import KeptSlot
from cobali_ray.engine.loop import EngineLoop
from cobali_ray.errors import InvalidParameterError, SlotFileError, SlotFilesOffError

MAGIC = b"cobali slot 1\n"
MAX_NAME_BYTES = 200
_MAX_HEAD = 1 << 16


class _Head(msgspec.Struct, frozen=True):
    """The line behind the magic words."""

    model: str
    """Hash of the model's file."""
    kind: str
    """Hash of what the cells mean; see `Backend.cell_kind`."""
    salt: str
    n_tokens: int
    n_cell_bytes: int
    crc32: int
    """Of all behind this line."""
    states: list[tuple[int, int]] = []
    """Behind how many tokens, and how many bytes."""


class SlotFiles:
    """One folder of files, for the slots of one engine. It blocks, and is for one thread at a time."""

    def __init__(self, loop: EngineLoop, clock: Clock, folder: Path | None, model: Callable[[], str]) -> None:
        """`model` returns a hash of the model's file, and may take its time."""
        self._loop, self._clock, self._model = loop, clock, model
        self._folder = folder

    def act(self, action: str, slot_id: int, filename: str) -> SlotMove:
        """Save, restore or erase a slot. Raises BadRequestError."""
        began_s = self._clock.now()
        if self._folder is None:
            raise SlotFilesOffError
        if action == "erase":
            return SlotMove(slot_id, self._loop.act(lambda engine: engine.idle_slots.erase(slot_id)).result())
        path = self._folder / _plain(filename)
        try:
            if action == "save":
                n_tokens, n_bytes = self._save(slot_id, path)
            elif action == "restore":
                n_tokens, n_bytes = self._restore(slot_id, path)
            else:
                raise InvalidParameterError("action", "must be save, restore or erase")
        except OSError as error:
            raise SlotFileError(error.strerror or repr(error)) from error
        return SlotMove(slot_id, n_tokens, filename, n_bytes, self._clock.now() - began_s)

    def _save(self, slot_id: int, path: Path) -> tuple[int, int]:
        def look(engine: Engine) -> tuple[KeptSlot, str]:
            return engine.idle_slots.take_out(slot_id), _kind(engine)

        kept, kind = self._loop.act(look).result()
        cells, states = kept.cells, [state for _, state in kept.states]
        parts = [memoryview(buffer).cast("B") for buffer in (kept.tokens, *cells, *states)]
        crc32 = reduce(lambda crc, part: zlib.crc32(part, crc), parts, 0)
        sizes = [(n, len(state)) for n, state in kept.states]
        n_tokens, n_cell_bytes = len(kept.tokens), sum(map(len, cells))
        head = _Head(self._model(), kind, kept.salt, n_tokens, n_cell_bytes, crc32, sizes)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{uuid.uuid4().hex}.part")
        try:
            with open(part, "xb", opener=partial(os.open, mode=0o600)) as file:
                file.write(MAGIC + msgspec.json.encode(head) + b"\n")
                file.writelines(parts)
                n_bytes = file.tell()
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        return n_tokens, n_bytes

    def _restore(self, slot_id: int, path: Path) -> tuple[int, int]:
        try:
            with path.open("rb") as file:
                head = self._head(file)
                n_bytes = os.fstat(file.fileno()).st_size
                body = file.read()
        except (FileNotFoundError, IsADirectoryError):
            raise SlotFileError("there is no file with this name") from None
        sizes = [4 * head.n_tokens, head.n_cell_bytes, *(size for _, size in head.states)]
        if len(body) != sum(sizes) or zlib.crc32(body) != head.crc32:
            raise SlotFileError("it is damaged")
        ends = list(accumulate(sizes))
        _, cells, *states = [
            np.frombuffer(body, np.uint8)[end - n : end] for n, end in zip(sizes, ends, strict=True)
        ]
        behind = [n for n, _ in head.states]
        tokens = array("i", body[: 4 * head.n_tokens])
        kept = KeptSlot(tokens, head.salt, [cells] if len(cells) else [], [*zip(behind, states, strict=True)])

        def put(engine: Engine) -> None:
            limits, at_end = engine.limits, behind[-1:] == [head.n_tokens]
            fits = len(cells) == head.n_tokens * limits.cell_bytes and at_end == bool(limits.state_bytes)
            if _kind(engine) != head.kind or not fits:
                raise SlotFileError("it was saved with another build, or another setting of the cache")
            engine.idle_slots.put_in(slot_id, kept)

        self._loop.act(put).result()
        return head.n_tokens, n_bytes

    def _head(self, file: BinaryIO) -> _Head:
        line = file.readline(_MAX_HEAD) if file.read(len(MAGIC)) == MAGIC else b""
        try:
            head = msgspec.json.decode(line, type=_Head)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise SlotFileError("it is not a slot file, or it is damaged") from None
        sizes = [head.n_tokens - 1, head.n_cell_bytes, *(n for pair in head.states for n in pair)]
        if min(sizes) < 0 or [n for n, _ in head.states] != sorted({n for n, _ in head.states}):
            raise SlotFileError("it is damaged")
        if head.model != self._model():
            raise SlotFileError("it was saved with another model")
        return head


def _kind(engine: Engine) -> str:
    return hashlib.sha256(engine.backend.cell_kind().encode()).hexdigest()


def _plain(filename: str) -> str:
    """Return the name of a file in the folder. Raises InvalidParameterError for what leads elsewhere."""
    plain = filename.isprintable() and not set(filename) & set("/\\:") and filename[:1] not in {"", "."}
    if not plain or len(filename.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise InvalidParameterError("filename", f"must be a plain name of at most {MAX_NAME_BYTES} bytes")
    return filename
