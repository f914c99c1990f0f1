"""Values of arguments that are written between tags, as JSON; the tool's schema tells what they do not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cobali_ray.chat.reading import MAX_DEPTH, BrokenError, as_json


def properties_of(schema: Any) -> dict[str, Any]:
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def is_string(schema: Any) -> bool:
    """Tell whether a schema takes strings and nothing else."""
    if not isinstance(schema, Mapping):
        return False
    if "type" in schema:
        return schema["type"] in ("string", ["string"])
    if isinstance(choices := schema.get("enum"), Sequence) and choices:
        return all(isinstance(choice, str) for choice in choices)
    return isinstance(schema.get("const"), str)


def converted(raw: str, schema: Any) -> str:
    """Return the JSON of a value whose text is JSON, Python, or a string as it stands."""
    found = as_json(raw)
    if found is None or raw.strip().startswith("'") or _is_rather_string(found, schema):
        return json.dumps(raw, ensure_ascii=False)
    return found


def _is_rather_string(value: str, schema: Any) -> bool:
    """Tell whether a schema takes strings but not what this JSON is."""
    kinds, kind = _kinds(schema), _kind(value)
    return "string" in kinds and kind not in kinds and not (kind == "integer" and "number" in kinds)


def _kinds(schema: Any) -> set[str]:
    """Return the kinds of values that a schema takes, as far as it says so itself."""
    if not isinstance(schema, Mapping):
        return set()
    if "type" in schema:
        return {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])
    if isinstance(choices := schema.get("enum"), Sequence):
        return {_kind(json.dumps(choice)) for choice in choices}
    branches = schema.get("anyOf") or schema.get("oneOf") or ()
    found = [_kinds(branch) for branch in branches] if isinstance(branches, Sequence) else []
    return set[str]().union(*found) if all(found) else set()


def _kind(text: str) -> str:
    """Return JSON Schema's name for the kind of this JSON."""
    kinds = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
    return kinds.get(text[0], "integer" if text.lstrip("-").isdigit() else "number")


def from_elements(text: str, mark: str, schema: Any, depth: int = 0) -> Any:
    """Return the value of nested elements: items are a list, other names an object, no elements a scalar."""
    properties, items = properties_of(schema), schema.get("items") if isinstance(schema, Mapping) else None
    opening = re.compile(re.escape(mark) + r"<([^/<>][^<>]*)>")
    found, at = list[tuple[str, Any]](), 0
    while (match := opening.search(text, at)) is not None and depth < MAX_DEPTH:
        start, end = _element_bounds(text, mark, match)
        inner = items if match[1] == "item" else properties.get(match[1])
        found.append((match[1], from_elements(text[match.end() : start], mark, inner, depth + 1)))
        at = end
    if found:
        return [value for _, value in found] if all(key == "item" for key, _ in found) else dict(found)
    if is_string(schema):
        return text
    if (scalar := as_json(text)) is not None and not _is_rather_string(scalar, schema):
        return json.loads(scalar)
    kinds = _kinds(schema)
    if text.strip() or "string" in kinds:
        return text
    return [] if "array" in kinds else {} if "object" in kinds else text


def json_of(value: Any) -> str:
    """Return the JSON of a value; what JSON has no word for, such as 1e999, is no argument."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except ValueError:
        raise BrokenError from None
    return text


def _element_bounds(text: str, mark: str, match: re.Match[str]) -> tuple[int, int]:
    """Return where the element's closing tag begins and ends, past elements of the same name inside it."""
    depth = 1
    tags = re.compile(re.escape(mark) + r"<(/?)" + re.escape(match[1]) + ">")
    for tag in tags.finditer(text, match.end()):
        depth += -1 if tag[1] else 1
        if depth == 0:
            return tag.span()
    raise BrokenError
