"""Write the tables of docs/api.md: `make reference`.

They come from what the server itself describes: its OpenAPI document and the models of its bodies. Each table
stands between two comments; what is around them is written by hand. A test compares.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cobali_ray.api.app import build_api
from cobali_ray.api.body.fields import NEUTRAL_FIELDS, REFUSED_FIELDS
from cobali_ray.api.engines.fleet import Fleet
from cobali_ray.settings import ApiSettings

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
MARKED = re.compile(r"(<!-- (?P<name>[\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SHARED = "GenerationBody"
"""What all bodies that generate have in common; their own tables leave it out."""


def main() -> None:
    """Write the page anew."""
    page = written(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page, encoding="utf-8")


def written(page: str) -> str:
    """Return the page with all tables as they should be. Raises KeyError for a table that nobody makes."""
    document = build_api(Fleet([]), ApiSettings()).openapi()
    tables, places = made(document), set(marked(page))
    others = [name for name in dict.fromkeys(_bodies(document)) if name not in places]
    tables["other bodies"] = "\n\n".join(
        f"{_heading(document, name)}\n\n{tables.pop(name)}" for name in others
    )
    if missing := tables.keys() - places:
        raise KeyError(f"docs/api.md has no place for {', '.join(sorted(missing))}")
    return MARKED.sub(lambda match: f"{match[1]}\n{tables[match['name']]}\n\n{match[3]}", page)


def marked(page: str) -> list[str]:
    """Return the names of the tables that a page has."""
    return [match["name"] for match in MARKED.finditer(page)]


def made(document: Mapping[str, Any]) -> dict[str, str]:
    """Return every table by its name."""
    schemas = document["components"]["schemas"]
    bodies = dict.fromkeys(_bodies(document))
    shared = set(schemas["CompletionBody"]["properties"]) & set(schemas["ChatBody"]["properties"])
    shared -= {"logprobs"}  # one name, two meanings
    tables = {"endpoints": _endpoints(document), SHARED: _fields(schemas["ChatBody"], shared)}
    for name in bodies:
        own = schemas[name]["properties"].keys()
        generates = shared <= own
        tables[name] = _fields(schemas[name], own - shared if generates else own)
    tables["accepted"] = _names(NEUTRAL_FIELDS)
    tables["refused"] = _names(REFUSED_FIELDS)
    return tables


def _endpoints(document: Mapping[str, Any]) -> str:
    rows = [
        (
            f"`{verb.upper()}`",
            f"`{path}`",
            re.sub(r"(?<=The same as )(.+)", r"`\1`", operation["summary"]) + ".",
        )
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    ]
    return _table(("method", "path", "what"), rows)


def _bodies(document: Mapping[str, Any]) -> Iterable[str]:
    for verbs in document["paths"].values():
        for operation in verbs.values():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:  # else it is a form
                yield content["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]


def _heading(document: Mapping[str, Any], name: str) -> str:
    """Return a heading that says which routes take a body."""
    paths = [
        f"`{path}`" for path, verbs in document["paths"].items() if name in _bodies({"paths": {path: verbs}})
    ]
    return f"#### {', '.join(paths)}"


def _fields(schema: Mapping[str, Any], names: Iterable[str]) -> str:
    chosen, required = set(names), schema.get("required", ())
    rows = [
        (f"`{name}`", _kind(field) + (", required" if name in required else ""), field.get("description", ""))
        for name, field in schema["properties"].items()
        if name in chosen
    ]
    return _table(("parameter", "kind", "meaning"), rows)


def _kind(schema: Mapping[str, Any]) -> str:
    """Return in a few words what a value looks like."""
    if "$ref" in schema:
        return "object"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        kinds = dict.fromkeys(_kind(option) for option in schema["anyOf"] if option.get("type") != "null")
        return " or ".join(kinds)
    kind = schema.get("type", "any")
    return f"list of {_kind(schema['items'])}" if kind == "array" and "items" in schema else str(kind)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _names(names: Iterable[str]) -> str:
    return textwrap.fill(", ".join(f"`{name}`" for name in sorted(names)) + ".", 118)


if __name__ == "__main__":
    main()
