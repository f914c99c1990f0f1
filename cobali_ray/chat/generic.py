"""Tools for models whose template has no place for them: told in words, and shown in the content.

What the model then writes is read by the Splitter with the same format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cobali_ray.chat.format import CallFormat, Format, Kind
from cobali_ray.errors import InvalidParameterError


def tell(
    form: Format, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the messages in the words of a template that cannot show calls, or neither tools nor calls.

    The tools are explained in the first system message, or before the first message if none is a system's,
    because some templates refuse that role. Results of tools become a user's words, those of one turn
    together, because many templates want the two sides in turns.
    """
    told = [dict(message) for message in messages]
    if not form.renders_calls:
        told = [_without_calls(form.calls, message) for message in told]
    if form.native:
        return told
    told = _with_results(told)
    if tools and told:
        place = next((i for i, m in enumerate(told) if m.get("role") in ("system", "developer")), None)
        if place is None:
            told[0] = _added(told[0], explanation(form.calls, tools) + "\n\n", before=True)
        else:
            told[place] = _added(told[place], "\n\n" + explanation(form.calls, tools))
    return told


def explanation(calls: CallFormat, tools: Sequence[Mapping[str, Any]]) -> str:
    """Say which tools there are and how one is called."""
    listed = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    example = written(calls, "tool_name", {"parameter": "value"})
    return (
        "You can call tools. Each line is one, with its parameters as JSON Schema:\n"
        f"{listed}\n\n"
        f"To call one, write exactly this, with its name and arguments, and then stop:\n{example}\n"
        "You will get its result in the next message. Answer in words when no tool is needed."
    )


def written(calls: CallFormat, name: str, arguments: Mapping[str, Any]) -> str:
    """Write one call as the model would. Raises InvalidParameterError where nobody needed that yet."""
    if calls.kind is Kind.JSON:
        body = json.dumps({calls.name_field: name, calls.arguments_field: arguments}, ensure_ascii=False)
        return "\n".join(part for part in (calls.start, body, calls.end) if part)
    if calls.kind is Kind.PYTHON:
        inside = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        return f"{calls.section_start}[{name}({inside})]{calls.section_end}"
    raise InvalidParameterError(
        "messages", ": the model's chat template has no place for tool calls of earlier turns"
    )


def _without_calls(calls: CallFormat, message: Mapping[str, Any]) -> dict[str, Any]:
    """Move a message's calls into its content."""
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        text = written(calls, function["name"], _arguments(function.get("arguments")))
        plain = _added(plain, ("\n" if plain.get("content") else "") + text)
    return plain


def _arguments(given: Any) -> Mapping[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError):
            given = None
    if not isinstance(given, Mapping):
        raise InvalidParameterError("messages", ": the arguments of a tool call are not a JSON object")
    return given


def _with_results(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Make results of tools a user's words."""
    told: list[dict[str, Any]] = []
    was_result = False
    for message in messages:
        is_result = message.get("role") == "tool"
        if not is_result:
            told.append(dict(message))
        else:
            text = f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"
            if was_result:
                told[-1] = _added(told[-1], "\n" + text)
            else:
                told.append({"role": "user", "content": text})
        was_result = is_result
    return told


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _added(message: Mapping[str, Any], text: str, *, before: bool = False) -> dict[str, Any]:
    """Add text to a message's content, whatever form that has."""
    content = message.get("content")
    if isinstance(content, list):
        part = {"type": "text", "text": text}
        return dict(message) | {"content": [part, *content] if before else [*content, part]}
    content = content or ""
    return dict(message) | {"content": text + content if before else content + text}
