"""What a body offers the model to call. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cobali_ray.api.body.reading import model_of
from cobali_ray.api.body.schema import ChatBody, Tool
from cobali_ray.errors import InvalidParameterError, Path, UnsupportedParameterError

MAX_TOOLS = 512
"""More would be a prompt of tools alone."""

ToolDict = Mapping[str, Any]


class Offer(NamedTuple):
    tools: tuple[ToolDict, ...] = ()
    """Those in the prompt: all of them, or none where the model may call none."""
    callable: tuple[ToolDict, ...] = ()
    """What it may call: all of them, or the one that the client named."""
    required: bool = False
    parallel: bool = True


class ToolSelection(NamedTuple):
    """What `tool_choice` asks for."""

    names: tuple[str, ...] = ()
    """Of the functions that may be called; none: all of them."""
    required: bool = False
    one: bool = False


def offer_of(body: ChatBody) -> Offer:
    """Return what the model may call. Raises InvalidParameterError and UnsupportedParameterError.

    With `tool_choice` none the prompt has no tools, so that the model cannot write a call that nobody reads.
    """
    tools = _tools(body.tools or [])
    choice = _choice(body.tool_choice)
    if not tools:
        if choice.names or choice.required:
            raise InvalidParameterError("tool_choice", "needs tools")
        return Offer()
    if body.tool_choice == "none":
        return Offer()
    names = {tool["function"]["name"] for tool in tools}
    for name in choice.names:
        if name not in names:
            raise InvalidParameterError("tool_choice", f"names {name[:64]!r}, which is not one of the tools")
    chosen = tuple(tool for tool in tools if not choice.names or tool["function"]["name"] in choice.names)
    parallel = body.parallel_tool_calls is not False and not choice.one
    return Offer(tools, chosen, required=choice.required, parallel=parallel)


def _tools(entries: list[dict[str, Any]]) -> tuple[ToolDict, ...]:
    if len(entries) > MAX_TOOLS:
        raise InvalidParameterError("tools", f"must have at most {MAX_TOOLS} entries, got {len(entries)}")
    tools: dict[str, ToolDict] = {}
    for index, raw in enumerate(entries):
        where: Path = ("tools", index)
        kind = raw.get("type")
        if isinstance(kind, str) and kind != "function":
            raise UnsupportedParameterError(
                (*where, "type"), where, f": tools of type {kind[:32]!r} are not supported, only function"
            )
        function = model_of(Tool, raw, where).function
        name = function.name
        if (function.parameters or {}).get("type", "object") != "object":
            raise InvalidParameterError((*where, "function", "parameters"), "must be the schema of an object")
        if name in tools:
            raise InvalidParameterError((*where, "function", "name"), f": two tools have the name {name!r}")
        tools[name] = raw
    return tuple(tools.values())


def _choice(choice: str | dict[str, Any] | None) -> ToolSelection:
    """Return what a body asks for. Raises what `offer_of` does."""
    if not isinstance(choice, dict):
        if choice not in {None, "none", "auto", "required"}:
            raise InvalidParameterError(
                "tool_choice", f"must be none, auto, required or a function, got {choice[:32]!r}"
            )
        return ToolSelection(required=choice == "required")
    kind = choice.get("type")
    if kind == "allowed_tools":
        return _allowed(choice.get("allowed_tools"))
    if kind is not None and kind != "function":
        raise UnsupportedParameterError(
            ("tool_choice", "type"), f"{str(kind)[:32]!r} is not supported, only function"
        )
    return ToolSelection((_name(choice, ("tool_choice",)),), required=True, one=True)


def _allowed(allowed: Any) -> ToolSelection:
    """Return the choice of some of the tools. The prompt has all of them, so that it stays the same."""
    where = ("tool_choice", "allowed_tools")
    if not isinstance(allowed, dict) or allowed.get("mode") not in ("auto", "required"):
        raise InvalidParameterError(where, "must have a mode, auto or required")
    tools = allowed.get("tools")
    if not isinstance(tools, list) or not 0 < len(tools) <= MAX_TOOLS:
        raise InvalidParameterError((*where, "tools"), f"must be a list of 1 to {MAX_TOOLS}")
    names = tuple(_name(tool, (*where, "tools", i)) for i, tool in enumerate(tools))
    return ToolSelection(names, required=allowed["mode"] == "required")


def _name(tool: Any, where: Path) -> str:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise InvalidParameterError((*where, "function", "name"), where, " names no function")
    return name


def tool_for_model(tool: ToolDict) -> dict[str, Any]:
    """Return a tool as prompts have it: `strict` is for the server.

    A client may leave out the description and the parameters; many templates fail without them.
    """
    function = {
        key: value for key, value in tool["function"].items() if key != "strict" and value is not None
    }
    function.setdefault("description", "")
    parameters = {key: value for key, value in function.get("parameters", {}).items() if value is not None}
    function["parameters"] = {"type": "object", "properties": {}} | parameters
    return {"type": "function", "function": function}
