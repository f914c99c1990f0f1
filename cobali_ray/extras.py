"""Optional packages: an extra that is missing is named before anything begins, with what installs it."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
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

    Also for WORKLOADS, which is no extra but a package of its own in the same checkout.
    """
    try:
        origin = json.loads(distribution("cobali-ray").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # imported from a folder
        origin = {}
    url = urlsplit(origin.get("url", ""))
    source = unquote(url.path) if url.scheme == "file" else "CHECKOUT"
    if extra == WORKLOADS:  # no wheel has it
        place = f"{'CHECKOUT' if source.endswith('.whl') else source}/{WORKLOADS}"
    else:
        place = f"{source}[{extra}]"
    editable = "--editable " if origin.get("dir_info", {}).get("editable") else ""
    # Not sys.executable, which may be a link to one that is outside the environment.
    return f"{quote(f'{sys.prefix}/bin/pip')} install {editable}'{place}'"


def is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it should be part of
        return False
