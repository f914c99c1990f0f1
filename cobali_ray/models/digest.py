"""The SHA-256 of a model's file, computed once per file as it is."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path

from cobali_ray.errors import ConfigError
from cobali_ray.models.files import parts_of
from cobali_ray.models.store import write_whole


def model_digest(path: Path, folder: Path) -> str:
    """Return a hash of all bytes of a model, of all its files where it has several.

    A file is read once: `folder` keeps its hash by its path, length and time.
    """
    digests = [_digest(file, folder) for file in files_of(path)]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def files_of(path: Path) -> list[Path]:
    """Return the files that llama.cpp loads with this one, itself among them."""
    return [file for part in parts_of(path.name) if (file := path.with_name(part)).exists()]


def _digest(path: Path, folder: Path) -> str:
    stat = path.stat()
    facts = repr((str(path.resolve()), stat.st_size, stat.st_mtime_ns))
    note = folder / f"{hashlib.sha256(facts.encode()).hexdigest()[:24]}.sha256"
    with suppress(OSError, UnicodeDecodeError):
        if re.fullmatch(r"[0-9a-f]{64}", stored := note.read_text("ascii")):
            return stored
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(ConfigError):  # the next start computes it again
        write_whole(note, len(digest), lambda part: part.write_text(digest, "ascii"))
    return digest
