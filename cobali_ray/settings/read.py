"""Settings from a file, the environment and the command line, and what is wrong with them in one line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from cobali_ray.errors import ConfigError
from cobali_ray.settings.engine import GROUPS, MAPPINGS, PLACES, SECRETS, EngineSettings, no_such_setting
from cobali_ray.settings.files import short

PREFIX: Final = "COBALI_"
NOT_SETTINGS: Final = frozenset({
    "COBALI_API_KEY", "COBALI_CACHE", "COBALI_COMPILE", "COBALI_DASHBOARDS", "COBALI_KEY",
    "COBALI_RAY_FORK_SERVER", "COBALI_RAY_FRONT_HOST",
})  # fmt: skip
"""Names in the environment that others read: commands that ask a server, caches of models and wheels,
Grafana, the page's snippets, and Ray's workers."""
OF_ALL: Final = frozenset(
    {"engines", *(name for name, group in PLACES.items() if group in {"api", "server"})}
)
"""Allowed only at the top level of the file."""
_OF_SERVICES = re.compile(
    r"COBALI_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_ENGINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def read_settings(values: Mapping[str, Any]) -> EngineSettings:
    """Parse settings; the environment (`COBALI_N_SLOTS=8`) wins over them.

    Raises ConfigError that names the setting.
    """
    return _read({**values, **_exported(os.environ)})


def settings_of_engines(settings: EngineSettings) -> dict[str, EngineSettings]:
    """Return each engine's own settings, on top of what is common; the only one's name is empty.

    Raises ConfigError that names the engine and the setting.
    """
    if not settings.engines:
        return {"": settings}
    common = settings.replaced(engines={}).values()
    by_engine: dict[str, EngineSettings] = {}
    owners: dict[str, str] = {}
    for engine, own in settings.engines.items():
        place = f"engines.{engine}"
        if not _ENGINE_NAME.fullmatch(engine):
            raise ConfigError(place, "a name is made of letters, digits, dots, dashes and underscores")
        for name in OF_ALL.intersection(own):
            raise ConfigError(
                f"{place}.{name}", "applies to all engines: put it next to `engines`, not inside"
            )
        try:
            by_engine[engine] = read = _read(common | own)
        except ConfigError as error:
            raise ConfigError(f"{place}.{error.setting}", error.message) from error
        for name in (*read.names, *read.adapters):
            if name in owners:
                setting = "adapters" if name in read.adapters else "model_id"
                raise ConfigError(
                    f"{place}.{setting}", f"the name {name!r} is taken by engines.{owners[name]}"
                )
            owners[name] = engine
    return by_engine


def _exported(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the environment says. Raises ConfigError for names that nobody reads."""
    exported: dict[str, Any] = {}
    for variable, text in environ.items():
        name = variable.upper()
        if not name.startswith(PREFIX) or name in NOT_SETTINGS or _is_of_service(name, text):
            continue
        setting = name.removeprefix(PREFIX).lower()
        if setting not in PLACES:
            raise ConfigError(name, no_such_setting(name, *(f"{PREFIX}{other.upper()}" for other in PLACES)))
        try:
            exported[setting] = json.loads(text) if setting in MAPPINGS and text.startswith("{") else text
        except ValueError:
            raise ConfigError(setting, "the variable is not valid JSON") from None
    return exported


def _is_of_service(name: str, text: str) -> bool:
    """Whether Kubernetes has set a variable, as it does in every pod beside a service called `cobali...`."""
    return _OF_SERVICES.fullmatch(name) is not None or (name.endswith("_PORT") and "://" in text)


def _read(values: Mapping[str, Any]) -> EngineSettings:
    for name in values:
        if not isinstance(name, str):
            raise ConfigError(short(name), "there is no such setting")
    try:
        return EngineSettings.model_validate(values)
    except RecursionError:
        raise ConfigError("engines", "is nested too deeply") from None
    except ValidationError as error:
        raise _named(error) from error


def _named(error: ValidationError) -> ConfigError:
    """Return pydantic's report as an error of the first setting in it."""
    reports = [(_place(report["loc"]), report) for report in error.errors()]
    where, first = reports[0]
    # Of a union, one report per member.
    messages = (report["msg"].removeprefix("Value error, ") for place, report in reports if place == where)
    message = "; ".join(dict.fromkeys(messages))
    if not where:
        name, _, why = message.partition(": ")
        return ConfigError(name if why else "settings", why or message)
    value = "" if where in SECRETS else f" (got {short(first['input'])})"
    return ConfigError(where, f"{message}{value}")


def _place(path: tuple[int | str, ...]) -> str:
    """Return the setting that a report is about; "" for several at once."""
    names = path[1:] if path and path[0] in GROUPS else path
    return str(names[0]) if names else ""
