"""Optional packages: an extra that is missing is named before anything begins, with what installs it."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from urllib.parse import unquote, urlsplit

from cobali_ray.errors import MissingExtraError

WORKLOADS = "workloads"
"""The laboratory, which is a package of its own in a folder of the checkout."""


def require_extra(extra: str, *modules: str) -> None:
    """Check that the packages of an extra can be imported. Raises MissingExtraError, which names both."""
    for module in modules:
        if not is_there(module):
            raise MissingExtraError(module, remedy(extra))


def remedy(extra: str) -> str:
    """Return the command that installs an extra here: from where this package was, as it is on no index.

    So it does for WORKLOADS, which is no extra but the package beside.
    """
    folder, source, editable = Path.cwd(), Path("CHECKOUT"), False
    try:
        origin = json.loads(distribution("cobali-ray").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # imported from a folder
        origin = {}
    if origin.get("url", "").startswith("file:"):
        source = Path(unquote(urlsplit(origin["url"]).path))
        editable = bool(origin.get("dir_info", {}).get("editable"))
    # Not sys.executable, which may be a link to one that is outside the environment.
    pip = Path(sys.prefix) / "bin" / "pip"
    words = [_near(pip, folder) if pip.exists() else "pip", "install", *(["--editable"] if editable else [])]
    place = _laboratory(source, folder) if extra == WORKLOADS else f"{_near(source, folder)}[{extra}]"
    return f"{' '.join(map(quote, words))} '{place}'"


def _laboratory(source: Path, folder: Path) -> str:
    """Return its folder beside what the server's package was installed from; no wheel has it."""
    if source == folder:
        return f"./{WORKLOADS}"  # without ./ pip would look for a package of that name
    return str((Path("CHECKOUT") if source.suffix == ".whl" else source) / WORKLOADS)


def _near(path: Path, folder: Path) -> str:
    """Write a path as one does in this folder."""
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it should be part of
        return False
