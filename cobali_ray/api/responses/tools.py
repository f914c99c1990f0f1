"""The tools of a body -> functions of a chat, and back: which item a call of one of them is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import orjson
from pydantic_core import from_json

from cobali_ray.api.body.reading import model_of
from cobali_ray.api.responses.schema import CustomTool, FunctionTool, Namespace
from cobali_ray.errors import InvalidParameterError, Path, UnsupportedParameterError

CALLED = ("function", "custom")
CUSTOM_INPUT = "input"
"""The one argument of a custom tool, which is a function to the model."""


class Callee(NamedTuple):
    """A tool as the client knows it."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None


class Offered(NamedTuple):
    functions: tuple[dict[str, Any], ...]
    """As a chat has them."""
    places: tuple[Path, ...]
    """Where in the body each of them stands."""
    callees: Mapping[str, Callee]
    """By the names that the model knows."""
    left: tuple[Any, ...]
    """Those of the body that are in use, as they were sent."""
    ignored: tuple[str, ...]


def sent_name(name: str, namespace: str | None) -> str:
    """Return the name by which the model knows a tool."""
    return f"{namespace.rstrip('_')}__{name.lstrip('_')}" if namespace else name


def offered(tools: list[dict[str, Any]], *, strict: bool) -> Offered:
    """Return what a body offers. Raises InvalidParameterError and UnsupportedParameterError.

    Tools that a server of OpenAI's would run itself, such as web_search, are offers that a model need not
    take up, and agents list them whoever the server is: they are left out and named, unless there is nothing
    else or the server is `strict`.
    """
    functions, places, callees = list[dict[str, Any]](), list[Path](), dict[str, Callee]()
    left, ignored = list[Any](), list[str]()
    hosted: UnsupportedParameterError | None = None
    for index, raw in enumerate(tools):
        where, kind = ("tools", index), raw.get("type")
        if not isinstance(kind, str):
            raise InvalidParameterError((*where, "type"), "must be a string")
        if kind not in {"function", "custom", "namespace"}:
            refusal = UnsupportedParameterError(
                (*where, "type"),
                where,
                f": no tools of type {kind[:32]!r} here, only function, custom and namespace",
            )
            if strict:
                raise refusal
            hosted = hosted or refusal
            ignored.append(f"tools[].{kind}")
            continue
        left.append(raw)
        for place, namespace, tool in _flat(raw, where):
            function, callee, more = _function(tool, namespace, place, strict=strict)
            functions.append({"type": "function", "function": function})
            places.append(place)
            callees[function["name"]] = callee
            ignored += more
    if hosted is not None and not functions:
        raise hosted
    return Offered(tuple(functions), tuple(places), callees, tuple(left), tuple(ignored))


def _flat(raw: dict[str, Any], where: Path) -> Iterator[tuple[Path, str | None, dict[str, Any]]]:
    """Yield a tool, or those of a namespace, each with its place."""
    if raw["type"] != "namespace":
        yield where, None, raw
        return
    space = model_of(Namespace, raw, where)
    for index, tool in enumerate(space.tools):
        yield (*where, "tools", index), space.name, tool


def _function(
    raw: dict[str, Any], namespace: str | None, where: Path, *, strict: bool
) -> tuple[dict[str, Any], Callee, list[str]]:
    """Return one tool as a function of a chat, its callee, and which of its fields are ignored."""
    if raw.get("type") == "custom":
        return _custom(model_of(CustomTool, raw, where), namespace, where, strict=strict)
    tool = model_of(FunctionTool, raw, where)
    function = {
        "name": sent_name(tool.name, namespace),
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    present = {key: value for key, value in function.items() if value is not None}
    return present, Callee("function", tool.name, namespace), []


def _custom(
    tool: CustomTool, namespace: str | None, where: Path, *, strict: bool
) -> tuple[dict[str, Any], Callee, list[str]]:
    """Return a function of one text. The model reads the tool's grammar, and is not held to it."""
    about, ignored = [tool.description] if tool.description else [], list[str]()
    if tool.format is not None and tool.format.type == "grammar":
        if strict:
            raise UnsupportedParameterError(
                (*where, "format"), ": inputs are not constrained by a grammar (setting strict)"
            )
        about.append(f"Its input follows this {tool.format.syntax} grammar:\n{tool.format.definition}")
        ignored.append("tools[].format")
    function = {
        "name": sent_name(tool.name, namespace),
        "description": "\n\n".join(about),
        "parameters": {
            "type": "object",
            "properties": {CUSTOM_INPUT: {"type": "string", "description": "All that the tool is given."}},
            "required": [CUSTOM_INPUT],
            "additionalProperties": False,
        },
    }
    return function, Callee("custom", tool.name, namespace), ignored


def custom_input(arguments: str) -> str:
    """Return the text in the arguments of a custom tool's call, also of one that was cut short."""
    try:
        parsed = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return arguments
    text = parsed.get(CUSTOM_INPUT, "") if isinstance(parsed, dict) else arguments
    return text if isinstance(text, str) else arguments


def custom_arguments(text: str) -> str:
    return orjson.dumps({CUSTOM_INPUT: text}).decode()


def choice_of(choice: str | dict[str, Any] | None, offer: Offered) -> str | dict[str, Any] | None:
    """Return `tool_choice` as a chat has it. Raises InvalidParameterError and UnsupportedParameterError."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "allowed_tools":
        return _called(choice, offer, ("tool_choice",))
    tools = choice.get("tools")
    if not isinstance(tools, list):
        raise InvalidParameterError(("tool_choice", "tools"), "must be a list")
    ours = [
        (i, tool) for i, tool in enumerate(tools) if not isinstance(tool, dict) or tool.get("type") in CALLED
    ]
    called = [_called(tool, offer, ("tool_choice", "tools", i)) for i, tool in ours]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": called}}


def _called(tool: Any, offer: Offered, where: Path) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in CALLED:
        raise UnsupportedParameterError(
            (*where, "type"), where, f": {str(kind)[:32]!r} is not supported, only function and custom"
        )
    name, namespace = tool.get("name"), tool.get("namespace")
    if not isinstance(name, str) or not isinstance(namespace, str | None):
        raise InvalidParameterError((*where, "name"), "must be a string")
    full_name = sent_name(name, namespace)
    callee = offer.callees.get(full_name)
    if callee is None or callee.kind != kind:
        raise InvalidParameterError(where, f"names {full_name[:64]!r}, which is not a {kind} tool")
    return {"type": "function", "function": {"name": full_name}}
