"""Arguments: a tool's parameters as rules of a grammar, in every syntax that is not one object of JSON.

Numbers are JSON in all of them and are left to llguidance, as is any value of JSON between tags. Strings,
lists and objects are made here. Keys of a schema that these are not held to are in `ignored`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from cobali_ray.chat.format import CallFormat, Kind
from cobali_ray.chat.lark import ANY_TEXT, Rules, escaped, joined, literal, one_of, optional, times
from cobali_ray.chat.values import MAX_LINKS, Schema, kind_of, resolved

Json: TypeAlias = Callable[[Any], str]
"""Returns the reference to a grammar of the JSON that fits a schema."""
Kinds: TypeAlias = Sequence[tuple[str, Schema]]
"""The kinds of values that a schema allows, each with a schema for that kind alone."""

_SAYS_NOTHING = frozenset(
    {
        "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description",
        "example", "examples", "nullable", "readOnly", "title", "type", "writeOnly", "x-guidance",
    }
)  # fmt: skip
_KEYS = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
"""The keys that speak of one kind of value, of those that are held anywhere."""
_ALL = frozenset[str]().union(*_KEYS.values())
_KINDS = ("string", "number", "boolean", "null", "array", "object")
MAX_CHOICES = 4096
"""Branches of the choices in one tool's parameters, each counted as often as references lead there."""
_ANY_KEY = r"/[A-Za-z_][\w.\-]{0,60}/"


class TooManyChoicesError(Exception):
    """Choices whose branches lead to choices multiply."""


class ArgumentsWriter:
    """Writes the arguments of one tool; `root` is the schema of its parameters, where references lead.

    Its rules for values are under the tool's number: of two tools, the same reference leads to two schemas.
    """

    def __init__(self, calls: CallFormat, rules: Rules, json_of: Json, root: Schema, number: int) -> None:
        self._calls, self._rules, self._json, self._root, self._number = calls, rules, json_of, root, number
        self._n_choices = 0
        self.ignored: list[str] = []
        """Keys of schemas that the rules do not hold values to."""

    def written(self) -> str:
        """Return what stands between a call's name and its end."""
        schema = {**resolved(self._root, self._root), "type": "object"}
        if self._calls.kind in (Kind.TAGS, Kind.ELEMENTS):
            self._note_ignored(schema, _KEYS["object"])
            return self._properties(schema)
        if self._calls.kind is Kind.PYTHON:
            return joined('"("', self._listed(schema, lambda key: joined(key, '"="')), '")"')
        return self._object(schema)

    # What a schema says

    def _kinds(self, schema: Any, depth: int = 0) -> Iterator[tuple[str, Schema]]:
        schema = resolved(schema, self._root)
        for key in ("anyOf", "oneOf"):
            branches = schema.get(key)
            if isinstance(branches, Sequence) and branches and depth < MAX_LINKS:
                rest = {name: value for name, value in schema.items() if name != key}
                self._n_choices += len(branches)
                if self._n_choices > MAX_CHOICES:
                    raise TooManyChoicesError
                for branch in branches:
                    yield from self._kinds(rest | dict(resolved(branch, self._root)), depth + 1)
                return
        if "const" in schema or "enum" in schema:
            for value in [schema["const"]] if "const" in schema else schema["enum"]:
                yield kind_of(value), {"const": value}
            return
        kinds = schema.get("type", [kind for kind, keys in _KEYS.items() if keys & schema.keys()] or _KINDS)
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            yield kind, {**schema, "type": kind}

    def _note_ignored(self, schema: Schema, held: frozenset[str]) -> None:
        """Note which keys are not held, of those that speak of this kind of value."""
        kind = schema.get("type")
        others = _ALL - _KEYS.get(kind, frozenset()) if isinstance(kind, str) else frozenset[str]()
        self.ignored += [key for key in schema if key not in _SAYS_NOTHING | held | others]

    def _members(self, schema: Schema) -> tuple[list[tuple[str, Any, bool]], Any]:
        """Return an object's properties as (key, schema, required), and a schema for others or None."""
        properties, extra = schema.get("properties"), schema.get("additionalProperties")
        members = dict(properties) if isinstance(properties, Mapping) else {}
        members = {key: of for key, of in members.items() if of is not False}
        required = list(schema.get("required") or ())
        members |= {key: True for key in required if key not in members}
        names = sorted(members, key=str.lower) if self._calls.quote else list(members)
        if extra is None and properties is None:
            extra = True
        return [(key, members[key], key in required) for key in names], None if extra is False else extra

    # Arguments between marks of their own

    def _properties(self, schema: Schema) -> str:
        """Return what marks each property, one behind the other in the schema's order."""
        members, extra = self._members(schema)
        write = self._tagged if self._calls.kind is Kind.TAGS else self._element
        parts = []
        for key, of, required in members:
            part = joined(self._rules.space, write(key, of))
            parts.append(part if required else optional(part))
        if extra is not None:
            parts.append(f"({joined(self._rules.space, write(None, extra))})*")
        return joined(*parts)

    def _tagged(self, key: str | None, schema: Any) -> str:
        calls, rules = self._calls, self._rules
        kinds = list(self._kinds(schema))
        choices = []
        texts = body = self._texts(kinds)
        if body:
            if calls.cdata:
                whole = f'"<![CDATA[" ({body}) "]]>"'
                body = rf"({body}) & ~/<!\[CDATA\[(?s:.*)/ | {whole}"
            value = rules.until(body, calls.value_end)
            choices.append(joined(rules.marker(calls.string_start), value))
        others = [(kind, of) for kind, of in kinds if kind != "string"]
        if others and texts == ANY_TEXT and not calls.json_starts:
            # Text that looks like another kind of value is read as that.
            if {kind for kind, _ in others} & {"array", "object"}:
                self.ignored += [key for key in ("anyOf", "oneOf") if key in resolved(schema, self._root)]
        elif others:
            choices += self._between(schema, kinds, others)
        name = rules.terminal(_ANY_KEY) if key is None else literal(key)
        return joined(rules.marker(calls.key_start), name, one_of(choices))

    def _between(self, schema: Any, kinds: Kinds, others: Kinds) -> Iterator[str]:
        """Yield what stands behind the key where the value is no text as it is, for each way to mark it."""
        calls, rules = self._calls, self._rules
        end = joined(rules.space, rules.marker(calls.value_end.strip()))
        groups: dict[str, list[tuple[str, Schema]]] = {}
        for kind, of in others:
            word = "number" if kind == "integer" else kind
            starts = [start for start in calls.json_starts if word in start] or calls.json_starts[:1]
            groups.setdefault(starts[0] if starts else calls.string_start.rstrip(), []).append((kind, of))
        for start, group in groups.items():
            whole = schema if len(group) == len(kinds) else {"anyOf": [dict(of) for _, of in group]}
            values = [self._value(whole) if calls.python else self._json(whole)]
            if not calls.json_starts and not calls.python:
                words = {"boolean": ["True", "False"], "null": ["None"]}
                values += [
                    literal(word) for kind, of in group if "const" not in of for word in words.get(kind, ())
                ]
            yield joined(rules.marker(start), rules.space, one_of(values), end)

    def _element(self, key: str | None, schema: Any) -> str:
        rules, mark = self._rules, self._calls.key_start
        if key is None:
            name = rules.terminal(_ANY_KEY)
            any_end = joined(rules.until(ANY_TEXT, mark + "</"), name, '">"')
            return joined(rules.marker(mark + "<"), name, '">"', any_end)
        return rules.recursive(self._name(key, schema), lambda: self._known_element(key, schema))

    def _known_element(self, key: str, schema: Any) -> str:
        rules, mark = self._rules, self._calls.key_start
        kinds = list(self._kinds(schema))
        end = f"{mark}</{key}>"
        body = self._texts(kinds)
        choices = [rules.until(body, end)] if body else []
        for kind, of in kinds:
            if kind == "string":
                continue
            if "const" in of or kind not in ("array", "object"):
                inside = self._scalar(kind, of)
            elif kind == "array":
                self._note_ignored(of, _KEYS["array"])
                low, high = _bounds(of, "minItems", "maxItems")
                item = joined(rules.space, self._element("item", of.get("items", True)))
                inside = "" if high == 0 or of.get("items") is False else f"({item}){times(low, high)}"
            else:
                self._note_ignored(of, _KEYS["object"])
                inside = self._properties(of)
            choices.append(joined(inside, rules.space, rules.marker(end)))
        return joined(rules.marker(f"{mark}<{key}>"), one_of(choices))

    def _texts(self, kinds: Kinds) -> str:
        """Return the body of a terminal for the strings among these, as they stand; "" where none is one."""
        bodies = dict.fromkeys(self._text(of) for kind, of in kinds if kind == "string")
        return ANY_TEXT if ANY_TEXT in bodies else " | ".join(bodies)

    def _text(self, schema: Schema) -> str:
        if "const" in schema:
            return f"/{escaped(schema['const'])}/" if schema["const"] else '""'
        pattern = _whole(schema.get("pattern"))
        self._note_ignored(schema, _KEYS["string"] - ({"format"} if pattern else {"format", "pattern"}))
        low, high = _bounds(schema, "minLength", "maxLength")
        counted = f"/(?s:.{times(low, high)})/" if low or high is not None else ANY_TEXT
        if not pattern:
            return counted
        return f"/{pattern}/ & {counted}" if counted != ANY_TEXT else f"/{pattern}/"

    # Values within each other: Gemma's and Python's

    def _value(self, schema: Any) -> str:
        return self._rules.recursive(
            self._name("", schema), lambda: one_of(list(dict.fromkeys(self._ways(schema))))
        )

    def _name(self, key: str, schema: Any) -> str:
        """Return what tells the rule for a value from all others."""
        return json.dumps([self._number, key, schema])

    def _ways(self, schema: Any) -> Iterator[str]:
        for kind, of in self._kinds(schema):
            if "const" in of:
                yield self._constant(of["const"])
            elif kind == "string":
                yield self._quoted(of)
            elif kind == "array":
                yield self._array(of)
            elif kind == "object":
                yield self._object(of)
            else:
                yield self._scalar(kind, of)

    def _array(self, schema: Schema) -> str:
        self._note_ignored(schema, _KEYS["array"])
        low, high = _bounds(schema, "minItems", "maxItems")
        if high == 0 or schema.get("items") is False:
            return '"[" "]"'
        item = self._value(schema.get("items", True))
        items = item
        if high != 1:
            items += f" ({self._comma} {item}){times(max(low - 1, 0), None if high is None else high - 1)}"
        return joined('"["', items if low else optional(items), '"]"')

    def _object(self, schema: Schema) -> str:
        def before(key: str) -> str:
            if self._calls.quote:
                return joined(key, '":"')
            return joined(one_of([f'"\'" {key} "\'"', f'"\\"" {key} "\\""']), '":"', self._rules.space)

        return joined('"{"', self._listed(schema, before), '"}"')

    def _listed(self, schema: Schema, before: Callable[[str], str]) -> str:
        """Return an object's properties in order with commas between them; `before` writes keys."""
        self._note_ignored(schema, _KEYS["object"])
        members, extra = self._members(schema)
        rules, head, tail = self._rules, "", ""
        if extra is not None:
            pair = joined(before(rules.terminal(_ANY_KEY)), self._value(extra))
            tail = f"({self._comma} {pair})*"
            head = optional(joined(pair, tail))
        for key, of, required in reversed(members):
            pair = rules.rule(joined(before(literal(key)), self._value(of)))
            first, next_one = joined(pair, tail), joined(self._comma, pair)
            head = first if required else one_of([first, head]) if head else optional(first)
            tail = joined(next_one if required else optional(next_one), tail)
            head, tail = rules.rule(head), rules.rule(tail)
        return head

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            return self._quoted({"const": value})
        if isinstance(value, list):
            inner = f" {self._comma} ".join(map(self._constant, value))
            return joined('"["', inner, '"]"')
        if isinstance(value, Mapping):
            properties = {key: {"const": of} for key, of in value.items()}
            return self._object({"properties": properties, "required": list(properties)})
        return self._scalar(kind_of(value), {"const": value})

    def _quoted(self, schema: Schema) -> str:
        rules, quote = self._rules, self._calls.quote
        if quote:
            return joined(rules.marker(quote), rules.until(self._text(schema), quote))
        if "const" in schema:
            return one_of(
                [literal(repr(schema["const"])), literal(json.dumps(schema["const"], ensure_ascii=False))]
            )
        self._note_ignored(schema, frozenset({"minLength", "maxLength"}))
        count = times(*_bounds(schema, "minLength", "maxLength"))
        ways = (f"/{mark}([^{mark}\\\\]|\\\\['\"\\\\nrt]){count}{mark}/" for mark in ("'", '"'))
        return one_of([rules.terminal(way) for way in ways])

    @property
    def _comma(self) -> str:
        return '","' if self._calls.quote else joined('","', self._rules.space)

    def _scalar(self, kind: str, schema: Schema) -> str:
        if "const" in schema:
            return literal(json.dumps(schema["const"], ensure_ascii=False))
        self._note_ignored(schema, _KEYS["number"])
        if kind in ("integer", "number"):
            return self._json({key: schema[key] for key in schema if key in _KEYS["number"] | {"type"}})
        both = {"boolean": ("true", "false", "True", "False"), "null": ("null", "None")}[kind]
        return one_of([literal(word) for word in both])


def _bounds(schema: Schema, low: str, high: str) -> tuple[int, int | None]:
    least, most = schema.get(low), schema.get(high)
    return int(least or 0), None if most is None else int(most)


def _whole(pattern: Any) -> str:
    """Return what a whole text must match, for a pattern that is found in it; "" where that is not clear."""
    if not isinstance(pattern, str) or not pattern:
        return ""
    inner = pattern.removeprefix("^")
    before = inner.removesuffix("$")
    last = before != inner and (len(before) - len(before.rstrip("\\"))) % 2 == 0  # else it is escaped
    inner = before if last else inner
    if re.search(r"(?<!\\)[|/^$]", inner):
        return ""
    start = "" if pattern.startswith("^") else "(?s:.*)"
    return start + inner + ("" if last else "(?s:.*)")
