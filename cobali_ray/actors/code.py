"""Which code a server runs: a new version installed under it is another one."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
LEFT_OUT = frozenset({"__pycache__"})


def code_version(package: Path = PACKAGE) -> str:
    """Return a name for the files of the package as they are now, by their sizes and times."""
    seen = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        # A folder's time changes with the first cache that is made in it.
        if LEFT_OUT.isdisjoint(path.parts) and not path.is_dir():
            with contextlib.suppress(OSError):  # it is being replaced: the next look sees the new one
                found = path.stat()
                seen.update(f"{path.relative_to(package)} {found.st_size} {found.st_mtime_ns}\n".encode())
    return seen.hexdigest()[:16]
