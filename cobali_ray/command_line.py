"""Settings on a command line: `--set name=value`."""

from __future__ import annotations

import os
from typing import Any

from cobali_ray.errors import ConfigError


def given_settings(settings: list[str] | None, **options: Any) -> dict[str, Any]:
    """Return what the command line says; it wins over the environment, which wins over a file.

    An option that is None says nothing. Raises ConfigError.
    """
    found = dict(assignment(text) for text in settings or [])
    found |= {name: value for name, value in options.items() if value is not None}
    for name in found:
        os.environ.pop(f"COBALI_{name.upper()}", None)
    return found


def assignment(text: str) -> tuple[str, Any]:
    """Read `name=value`, whose value is YAML. Raises ConfigError."""
    import yaml

    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError("--set", "expected NAME=VALUE, but there is no =")
    try:
        return name.strip(), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(name.strip(), f"the value is not valid YAML{line_of(error)}") from error
    except (ValueError, RecursionError):  # an impossible date, a number too long, brackets without end
        raise ConfigError(name.strip(), "the value is not valid YAML") from None


def line_of(error: Exception) -> str:
    """Say where YAML breaks off. Its own message quotes the line, which may hold a key."""
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f": line {mark.line + 1}, column {mark.column + 1}"
