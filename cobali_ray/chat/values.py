"""Values of arguments that are written between tags, as JSON; the tool's schema tells what they do not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from cobali_ray.chat.reading import MAX_DEPTH, BrokenError, as_json

MAX_LINKS = 8
"""Of references and choices that lead to each other without a value between them."""
Schema: TypeAlias = Mapping[str, Any]


def resolved(schema: Any, root: Any) -> Schema:
    """Return what a schema consists of where that is a reference, into `root`, or one part alone."""
    for _ in range(MAX_LINKS):
        if not isinstance(schema, Mapping):
            break
        parts = schema.get("allOf")
        if isinstance(parts, Sequence) and len(parts) == 1 and isinstance(parts[0], Mapping):
            schema = {key: value for key, value in schema.items() if key != "allOf"} | dict(parts[0])
        elif isinstance(schema.get("$ref"), str):
            target: Any = root
            for part in schema["$ref"].removeprefix("#").split("/")[1:]:
                key = part.replace("~1", "/").replace("~0", "~")
                target = target.get(key) if isinstance(target, Mapping) else None
            schema = target
        else:
            return schema
    return {}


class ArgumentTypes:
    """What a tool's parameters say of the kinds of values; the tool may be unknown."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def of(self, key: str, schema: Any = ...) -> Any:
        """Return the schema of an object's property; of an argument, where no object is given."""
        schema = resolved(self._root if schema is ... else schema, self._root)
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            return properties[key]
        return schema.get("additionalProperties")

    def is_string(self, schema: Any) -> bool:
        """Tell whether a schema takes strings and nothing else."""
        return self._kinds(schema) == {"string"}

    def converted(self, raw: str, schema: Any) -> str:
        """Return the JSON of a value whose text is JSON, Python, or a string as it stands."""
        value = as_json(raw)
        if value is None or raw.strip().startswith("'") or self._is_rather_string(value, schema):
            return json.dumps(raw, ensure_ascii=False)
        return value

    def _is_rather_string(self, value: str, schema: Any) -> bool:
        """Tell whether a schema takes strings but not what this JSON is."""
        kinds = self._kinds(schema)
        if "string" not in kinds:
            return False
        kind = kind_of(json.loads(value))
        return kind not in kinds and not (kind == "integer" and "number" in kinds)

    def _kinds(self, schema: Any, depth: int = 0) -> set[str]:
        """Return the kinds of values that a schema takes, as far as it says so itself."""
        schema = resolved(schema, self._root)
        if "type" in schema:
            return {schema["type"]} if isinstance(schema["type"], str) else set(schema["type"])
        if "const" in schema:
            return {kind_of(schema["const"])}
        if isinstance(choices := schema.get("enum"), Sequence):
            return {kind_of(choice) for choice in choices}
        branches = schema.get("anyOf") or schema.get("oneOf") or ()
        if not isinstance(branches, Sequence) or depth == MAX_LINKS:
            return set()
        kinds = [self._kinds(branch, depth + 1) for branch in branches]
        return set[str]().union(*kinds) if all(kinds) else set()

    def from_elements(self, text: str, mark: str, schema: Any, depth: int = 0) -> Any:
        """Return the value of nested elements: a list of items, an object of other names, else a scalar."""
        items = resolved(schema, self._root).get("items")
        opening = re.compile(re.escape(mark) + r"<([^/<>][^<>]*)>")
        elements, at = list[tuple[str, Any]](), 0
        while (match := opening.search(text, at)) is not None and depth < MAX_DEPTH:
            start, end = _element_bounds(text, mark, match)
            inner = items if match[1] == "item" else self.of(match[1], schema)
            elements.append((match[1], self.from_elements(text[match.end() : start], mark, inner, depth + 1)))
            at = end
        if elements:
            is_list = all(key == "item" for key, _ in elements)
            return [value for _, value in elements] if is_list else dict(elements)
        if self.is_string(schema):
            return text
        if (scalar := as_json(text)) is not None and not self._is_rather_string(scalar, schema):
            return json.loads(scalar)
        kinds = self._kinds(schema)
        if text.strip() or "string" in kinds:
            return text
        return [] if "array" in kinds else {} if "object" in kinds else text


def kind_of(value: Any) -> str:
    """Return JSON Schema's name for the kind of a value."""
    kinds = {
        bool: "boolean",
        str: "string",
        int: "integer",
        float: "number",
        type(None): "null",
        list: "array",
    }
    return kinds.get(type(value), "object")


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
