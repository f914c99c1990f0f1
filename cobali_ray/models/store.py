"""Where made models lie, and how a file gets there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from cobali_ray.errors import ConfigError

_MARGIN_BYTES = 64 << 20


def default_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for made models; it need not exist yet."""
    if own := environ.get("COBALI_CACHE"):
        root = Path(own).expanduser()
    elif xdg := environ.get("XDG_CACHE_HOME"):
        root = Path(xdg) / "cobali_ray"
    else:
        root = Path.home() / ".cache" / "cobali_ray"
    return root / "models"


def free_bytes(folder: Path) -> int:
    """Return what is left on the disk of an existing folder."""
    return shutil.disk_usage(folder).free


def write_whole(target: Path, n_bytes: int, fill: Callable[[Path], object]) -> None:
    """Let `fill` write a file of about `n_bytes` beside `target`, then move it there in one step.

    Whoever looks at `target` sees nothing or the whole file. Two writers at once use a file each:
    the last one in wins, which is all the same where the content depends on the name only.

    Raises:
        ConfigError: naming `cache_dir`, when the folder cannot be written or the disk has too little room.
    """
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        room = free_bytes(target.parent)
        if room < n_bytes + _MARGIN_BYTES:
            raise _no_room(target, n_bytes, room)
        fill(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())  # a power cut must not leave an empty file under the final name
        part.replace(target)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_room(target, n_bytes, 0) from error
        raise ConfigError("cache_dir", f"cannot write '{target}': {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # what prevents this made the writing fail, and is raised
            part.unlink(missing_ok=True)


def _no_room(target: Path, n_bytes: int, room: int) -> ConfigError:
    return ConfigError(
        "cache_dir",
        f"'{target.name}' needs {n_bytes / 1e6:.0f} MB in {target.parent}, "
        f"which has {room / 1e6:.0f} MB free: "
        "free some space, or point COBALI_CACHE at another disk",
    )
