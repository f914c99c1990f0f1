"""What was measured of a model on this machine, kept in files so that a later start need not measure."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
import structlog

from cobali_ray.backend import cgroup

_log = structlog.get_logger(__name__)

_CPU = ("model name", "flags", "CPU implementer", "CPU part", "Features")
_T = TypeVar("_T")
Measured: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
"""Seconds; a file with a number that cannot be is ignored. The same holds for cells."""
MeasuredCells: TypeAlias = Annotated[int, msgspec.Meta(gt=0)]


def kept_or_measured(
    folder: Path | None,
    what: str,
    path: Path,
    facts: tuple[object, ...],
    kind: Any,
    measure: Callable[[_T | None], _T | None],
) -> tuple[_T | None, bool]:
    """Return a measurement of the model at `path`, and whether it was kept in `folder` already.

    `measure` gets what is kept and returns it, or what is to be kept instead. It holds for one state of the
    file, build of llama.cpp and processor, and for these facts. What is kept and cannot be read as `kind`,
    the type of it in msgspec's sense, is measured again.
    """
    if folder is None:
        return measure(None), False
    stat = path.stat()
    model = (str(path.resolve()), stat.st_size, stat.st_mtime_ns, _processor(), version("llama-cpp-python"))
    name = hashlib.sha256(repr((*model, *facts)).encode()).hexdigest()[:24]
    file = folder / f"{what}-{name}.json"
    kept: _T | None = None
    with suppress(OSError, msgspec.MsgspecError):
        kept = msgspec.json.decode(file.read_bytes(), type=kind)
    measurement = measure(kept)
    if measurement and measurement is not kept:
        _write(file, msgspec.json.encode(measurement))
    return measurement, kept is not None and measurement is kept


def _processor() -> list[str]:
    """Return what tells this machine's processor from others."""
    info = cgroup.ROOT / "proc/cpuinfo"
    lines = info.read_text().splitlines() if info.exists() else []
    return sorted({line for line in lines if line.startswith(_CPU)})


def _write(file: Path, data: bytes) -> None:
    """Write a file whole or not at all; without one the next start measures again."""
    part = file.with_name(f".{file.name}.{uuid.uuid4().hex}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(file)
    except OSError as error:
        _log.warning("not_kept", file=str(file), error=str(error))
        with suppress(OSError):
            part.unlink(missing_ok=True)
