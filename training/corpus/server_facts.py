"""What the tables' statements about the server rest on, and what was true of it when they were written.

A claim is one line of text, typed in a table after `@`:

| claim | holds if |
|---|---|
| `POST /v1/embeddings` | the OpenAPI document has this operation |
| `POST /v1/chat/completions: tools` | its body has this field |
| `setting adapters` | there is such a setting |
| `default n_slots` | it has this value, which stands for `{n_slots}` in an answer |
| `tiny: image` | `/v1/models` lists it for `builtin:tiny`, among what it can do or what it reads |
| `not ...` | the rest does not hold |
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

TABLE = "server_facts.json"
_CLAIM = re.compile(r"^@ (?:not )?(.+)$", re.MULTILINE)
_PLACE = re.compile(r"\{([a-z]\w*)\}")


@functools.cache
def recorded_facts() -> Mapping[str, Any]:
    """Return what was true of the server that the tables describe."""
    table: dict[str, Any] = json.loads(_tables().joinpath(TABLE).read_text(encoding="utf-8"))
    return table


def holds(claim: str) -> bool:
    """Say whether a claim of a table is known to hold. One that was never looked up is a KeyError."""
    return not recorded_facts()[claim[4:]] if claim.startswith("not ") else bool(recorded_facts()[claim])


def filled(text: str) -> str:
    """Put the default of each setting where its name stands in braces. An unknown one is a KeyError."""
    return _PLACE.sub(lambda place: _as_text(recorded_facts()[f"default {place[1]}"]), text)


def claims() -> tuple[str, ...]:
    """Return every claim that a table makes, without `not`."""
    names = set()
    for table in _tables().iterdir():
        if table.name.startswith(("server_", "greeting")) and table.name.endswith(".txt"):
            text = table.read_text(encoding="utf-8")
            names |= set(_CLAIM.findall(text))
            answers = "\n".join(re.findall(r"^[=-] (.*)$", text, re.MULTILINE))
            names |= {f"default {name}" for name in _PLACE.findall(answers)}
    return tuple(sorted(names))


def observed(
    models: Mapping[str, Any], openapi: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Look every claim up: in `/v1/models`, in the OpenAPI document and in the defaults of settings."""
    return {claim: _look_up(claim, models, openapi, defaults) for claim in claims()}


def _look_up(
    claim: str, models: Mapping[str, Any], openapi: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Any:
    what, _, name = claim.partition(" ")
    if what == "tiny:":
        (model,) = models["data"]
        return name in {*model["capabilities"], *model["architecture"]["input_modalities"]}
    if what == "setting":
        return name in defaults
    if what == "default":
        return defaults.get(name)
    path, _, field = name.partition(": ")
    operation = openapi["paths"].get(path, {}).get(what.lower())
    return operation is not None and (not field or field in _fields(operation, openapi))


def _fields(operation: Mapping[str, Any], openapi: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    name = schema.get("$ref", "").rpartition("/")[2]
    body: Mapping[str, Any] = openapi["components"]["schemas"][name] if name else schema
    fields: Mapping[str, Any] = body["properties"]
    return fields


def _as_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _tables() -> Any:
    return resources.files("training.corpus") / "tables"
