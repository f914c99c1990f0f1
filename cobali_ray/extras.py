"""Optional packages: an extra that is missing is named before anything begins."""

from __future__ import annotations

from importlib.util import find_spec

from cobali_ray.errors import MissingExtraError


def require_extra(extra: str, *modules: str) -> None:
    """Check that the packages of an extra can be imported. Raises MissingExtraError, which names both."""
    for module in modules:
        if not _is_there(module):
            raise MissingExtraError(extra, module)


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it should be part of
        return False
