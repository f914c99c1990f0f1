"""Every spelling of "the answer must look like this" -> one constraint. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from cobali_ray.api.body.reading import MISSING
from cobali_ray.api.body.schema import GenerationBody
from cobali_ray.backend.grammar import Kind
from cobali_ray.errors import InvalidParameterError, Path, UnsupportedParameterError

ANY_OBJECT = '{"type":"object"}'


class Constraint(NamedTuple):
    """What a body asks of its answer's shape."""

    path: Path
    """Where in the body it stands."""
    kind: Kind
    text: str
    strict: bool = False
    """Of a schema: refuse keys that cannot be honoured."""
    compact: bool = False
    """Of a schema: no white space between the tokens of JSON."""


def constraint_of(body: GenerationBody) -> Constraint | None:
    """Return what the answer must look like. Raises InvalidParameterError if two fields say it."""
    constraints = list(_constraints(body))
    if len(constraints) > 1:
        first, second = constraints[0].path, constraints[1].path
        raise InvalidParameterError(second, second, " and ", first, " exclude each other: send one of them")
    return constraints[0] if constraints else None


def _constraints(body: GenerationBody) -> Iterator[Constraint]:
    if body.response_format is not None:
        yield from _response_format(body.response_format)
    if body.structured_outputs is not None:
        yield from _structured_outputs(body.structured_outputs)
    for name in ("json_schema", "guided_json"):
        if (schema := getattr(body, name)) is not None:
            yield _schema((name,), schema)
    for name in ("grammar", "guided_grammar", "ebnf"):
        if (text := getattr(body, name)) is not None:
            yield _text((name,), "grammar", text)
    for name in ("regex", "guided_regex"):
        if (text := getattr(body, name)) is not None:
            yield _text((name,), "regex", text)
    if body.guided_choice is not None:
        yield _choice(("guided_choice",), body.guided_choice)


def _response_format(value: dict[str, Any]) -> Iterator[Constraint]:
    kind = value.get("type")
    if kind == "text":
        return
    if kind == "json_object":
        if (schema := value.get("schema")) is not None:
            yield _schema(("response_format", "schema"), schema)
        else:
            yield Constraint(("response_format",), "json_schema", ANY_OBJECT)
        return
    if kind != "json_schema":
        raise UnsupportedParameterError(
            ("response_format", "type"), f"must be text, json_object or json_schema, got {str(kind)[:32]!r}"
        )
    # llama-server has the schema right beside the type.
    where: Path = ("response_format", "json_schema") if "json_schema" in value else ("response_format",)
    spec = value.get("json_schema", value)
    if not isinstance(spec, dict):
        raise InvalidParameterError(where, "must be an object")
    if (schema := spec.get("schema")) is None:
        raise InvalidParameterError((*where, "schema"), MISSING)
    strict = spec.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidParameterError((*where, "strict"), "must be true or false")
    yield _schema((*where, "schema"), schema, strict=bool(strict))


_SAYS_WHAT = ("json", "regex", "choice", "grammar", "json_object")


def _structured_outputs(value: Mapping[str, Any]) -> Iterator[Constraint]:
    """Return what vLLM's object asks for."""
    where = ("structured_outputs",)
    compact = value.get("disable_any_whitespace") is True
    supported = {*_SAYS_WHAT, "disable_any_whitespace", "disable_fallback"}
    for name, setting in value.items():
        if name not in supported and setting not in (None, False):
            raise UnsupportedParameterError((*where, name[:64]), "is not supported by this server")
    if not any(value.get(name) not in (None, False) for name in _SAYS_WHAT):
        raise InvalidParameterError(where, f"must have one of {', '.join(_SAYS_WHAT)}, or be left out")
    if (schema := value.get("json")) not in (None, False):
        yield _schema((*where, "json"), schema, compact=compact)
    if value.get("json_object"):
        yield Constraint((*where, "json_object"), "json_schema", ANY_OBJECT, compact=compact)
    texts: tuple[Kind, ...] = ("regex", "grammar")
    for kind in texts:
        if (text := value.get(kind)) is not None:
            yield _text((*where, kind), kind, text)
    if (choices := value.get("choice")) is not None:
        yield _choice((*where, "choice"), choices)


def _schema(path: Path, schema: Any, *, strict: bool = False, compact: bool = False) -> Constraint:
    """Return the constraint of a schema, which some clients send as a text."""
    if isinstance(schema, str):
        try:
            schema = orjson.loads(schema)
        except orjson.JSONDecodeError:
            raise InvalidParameterError(path, "is not valid JSON") from None
    if not isinstance(schema, dict | bool):
        raise InvalidParameterError(path, "must be a JSON schema: an object")
    try:
        text = orjson.dumps(schema).decode()
    except TypeError:
        raise InvalidParameterError(path, "is nested too deeply") from None
    return Constraint(path, "json_schema", text, strict, compact)


def _text(path: Path, kind: Kind, text: Any) -> Constraint:
    if not isinstance(text, str):
        raise InvalidParameterError(path, "must be a string")
    if not (text.strip() if kind == "grammar" else text):
        raise InvalidParameterError(path, "is empty; leave it out for an answer without it")
    return Constraint(path, kind, text)


def _choice(path: Path, choices: Any) -> Constraint:
    if (
        not isinstance(choices, list)
        or not choices
        or not all(isinstance(choice, str) and choice for choice in choices)
    ):
        raise InvalidParameterError(path, "must be a list of one or more texts, none of them empty")
    return Constraint(path, "choice", orjson.dumps(choices).decode())
