"""Schemas made from a seed: what the collections of others have, and all keys that the server names."""

from __future__ import annotations

from random import Random
from typing import Any

Schema = dict[str, Any]

NAMES = ("id", "name", "a b", 'q"uote', "é", "tags", "x-y", "$ref", "type", "0")
FORMATS = ("date", "date-time", "time", "email", "ipv4", "ipv6", "uuid", "uri", "hostname", "duration")
PATTERNS = ("^[a-f0-9]{2,6}$", "^(GET|POST)$", "[0-9]", "^x-", "a+b?$", r"^\d{3}-\w+$", r"^[^\s]{1,5}$")
UNHELD = (
    {"not": {"type": "null"}},
    {"uniqueItems": True},
    {"contains": {"type": "integer"}},
    {"if": {"type": "string"}, "then": {"maxLength": 2}},
    {"dependentRequired": {"id": ["name"]}},
    {"propertyNames": {"maxLength": 3}},
    {"format": "phone", "type": "string"},
    {"minProperties": 2, "type": "object", "properties": {"id": {"type": "null"}}},
    {"oneOf": [{"type": "integer"}, {"type": "number"}]},
)
"""With keys that no answer is held to."""


def make(seed: int) -> Schema:
    """Return a schema with definitions, one of which may hold itself."""
    random = Random(seed)
    held = {
        "leaf": _leaf(random),
        "tree": {
            "type": "object",
            "properties": {"value": _leaf(random), "next": {"$ref": "#/$defs/tree"}},
            "required": ["value"],
            "additionalProperties": False,
        },
    }
    return {**_any(random, 3), "$defs": held}


def _any(random: Random, depth: int) -> Schema:
    if depth == 0:
        return _leaf(random)
    kinds = [_object, _object, _object, _list, _list, _choice, _both, _tuple]
    if random.random() < 0.06:
        return dict(random.choice(UNHELD))
    return random.choice(kinds)(random, depth - 1)


def _leaf(random: Random) -> Schema:
    low = random.randint(-50, 50)
    return random.choice(
        [
            {"type": "string"},
            {"type": "string", "minLength": random.randint(0, 3), "maxLength": random.randint(3, 12)},
            {"type": "string", "format": random.choice(FORMATS)},
            {"type": "string", "pattern": random.choice(PATTERNS)},
            {"enum": ["red", "bl\nue", 7, None, {"k": [1.5, "é"]}]},
            {"const": random.choice(["x", 0, False, [], {"a": {"b": 1}}])},
            {"type": "integer", "minimum": low, "maximum": low + random.randint(0, 300)},
            {"type": "integer", "multipleOf": random.choice([2, 5, 100])},
            {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": low + 1.5},
            {"type": "number", "minimum": -0.25},
            {"type": ["integer", "null"], "minimum": 0},
            {"type": "boolean"},
            {"type": "null"},
            {"$ref": "#/$defs/" + random.choice(["leaf", "tree"])},
        ]
    )  # fmt: skip


def _object(random: Random, depth: int) -> Schema:
    names = random.sample(NAMES, random.randint(1, 5))
    made: Schema = {"type": "object", "properties": {name: _any(random, depth) for name in names}}
    if random.random() < 0.8:
        made["required"] = random.sample(names, random.randint(0, len(names)))
    if random.random() < 0.6:
        made["additionalProperties"] = random.choice([False, False, {"type": "integer"}, _leaf(random)])
    if random.random() < 0.15:
        made["patternProperties"] = {"^z[0-9]$": _leaf(random)}
    return made


def _list(random: Random, depth: int) -> Schema:
    low = random.randint(0, 2)
    return {
        "type": "array", "items": _any(random, depth), "minItems": low, "maxItems": low + random.randint(0, 2)
    }  # fmt: skip


def _tuple(random: Random, depth: int) -> Schema:
    return {
        "type": "array",
        "prefixItems": [_any(random, depth), _leaf(random)],
        "items": False,
        "minItems": 1,
    }


def _choice(random: Random, depth: int) -> Schema:
    if random.random() < 0.5:
        return {"anyOf": [_any(random, depth), _leaf(random)]}
    kinds = random.sample(["cat", "dog", "eel"], 2)  # told apart by a constant, so that oneOf can be held
    return {
        "oneOf": [
            {
                "type": "object", "properties": {"kind": {"const": kind}, "of": _any(random, depth)},
                "required": ["kind"], "additionalProperties": False,
            }
            for kind in kinds
        ]
    }  # fmt: skip


def _both(random: Random, depth: int) -> Schema:
    first, second = {"first": _any(random, depth)}, {"second": _leaf(random)}
    return {
        "allOf": [
            {"type": "object", "properties": first, "required": ["first"]},
            {"properties": second, "required": ["second"]},
        ]
    }
