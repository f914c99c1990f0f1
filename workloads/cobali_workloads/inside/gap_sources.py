"""Where spans of device work are written down: Nsight Systems' SQLite export, and our own tick log."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from cobali_ray.errors import ConfigError
from cobali_workloads.inside.gaps import Busy, passes_of

_KERNELS = """
    SELECT kernel.start, kernel.end, kernel.deviceId
    FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel
    LEFT JOIN StringIds AS name ON name.id = kernel.demangledName
    WHERE name.value LIKE ? OR (? = '%%')
    ORDER BY kernel.deviceId, kernel.start
"""


def read_nsight(path: Path, *, kernel: str = "") -> dict[int, list[Busy]]:
    """Return the kernels of each device from `nsys export --type sqlite`, those whose name has `kernel`.

    Times are nanoseconds in the file, seconds here. Raises ConfigError if it is no such file.
    """
    if not path.is_file():
        raise ConfigError("--nsight", f"there is no file {path}")
    pattern = f"%{kernel}%"
    found: dict[int, list[Busy]] = {}
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            for start, end, device_id in connection.execute(_KERNELS, (pattern, pattern)):
                found.setdefault(device_id, []).append(Busy(start / 1e9, end / 1e9))
    except sqlite3.Error as error:
        raise ConfigError("--nsight", f"{path} is no SQLite export with CUDA kernels: {error}") from error
    if not found:
        raise ConfigError("--nsight", f"{path} holds no kernel whose name has {kernel!r}")
    return found


def read_tick_log(path: Path) -> list[Busy]:
    """Return the forward passes of a file that the setting log_ticks made. Raises ConfigError."""
    if not path.is_file():
        raise ConfigError("--ticks", f"there is no file {path}")
    try:
        spans = passes_of(_lines(path))
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError("--ticks", f"{path} is no tick log: {error}") from error
    if not spans:
        raise ConfigError("--ticks", f"{path} holds no tick")
    return spans


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            # The last line of a log that is still being written may be cut.
            if line.endswith(b"\n"):
                yield orjson.loads(line)
