"""Tools for models whose template has no place for them: explained in words, and shown in the content.

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
    """Return the messages for a template that cannot show calls, or neither tools nor calls.

    The tools are explained in the first system message, or before the first message if none is a system's,
    because some templates refuse that role. Results of tools become a user's words, those of one turn
    together, because many templates want the two sides in turns.
    """
    chat = [dict(message) for message in messages]
    if not form.renders_calls:
        chat = [_without_calls(form.calls, message) for message in chat]
    if form.native:
        return chat
    chat = _with_results(chat)
    if tools and chat:
        place = next((i for i, m in enumerate(chat) if m.get("role") in ("system", "developer")), None)
        if place is None:
            chat[0] = _added(chat[0], explanation(form.calls, tools) + "\n\n", before=True)
        else:
            chat[place] = _added(chat[place], "\n\n" + explanation(form.calls, tools))
    return chat


def explanation(calls: CallFormat, tools: Sequence[Mapping[str, Any]]) -> str:
    """Say which tools there are and how one is called."""
    listed = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    example = written(calls, [("tool_name", {"parameter": "value"})])
    return (
        "You can call tools. Each line is one, with its parameters as JSON Schema:\n"
        f"{listed}\n\n"
        f"To call one, write exactly this, with its name and arguments, and then stop:\n{example}\n"
        "You will get its result in the next message. Answer in words when no tool is needed."
    )


def written(calls: CallFormat, turn: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Write the calls of one turn, names and arguments, as the model would.

    Raises InvalidParameterError for kinds that it cannot write.
    """
    if calls.kind is Kind.JSON:
        fields = (calls.name_field, calls.arguments_field)
        bodies = [json.dumps(dict(zip(fields, call, strict=True)), ensure_ascii=False) for call in turn]
        if calls.joined == "list":
            return f"{calls.start}[{', '.join(bodies)}]{calls.end}"
        if calls.joined == "lines":
            bodies = ["\n".join(bodies)]
        return "\n".join(part for body in bodies for part in (calls.start, body, calls.end) if part)
    if calls.kind is Kind.PYTHON:
        texts = [
            f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
            for name, arguments in turn
        ]
        return f"{calls.section_start}[{', '.join(texts)}]{calls.section_end}"
    raise InvalidParameterError(
        "messages", ": the model's chat template has no place for tool calls of earlier turns"
    )


def _without_calls(calls: CallFormat, message: Mapping[str, Any]) -> dict[str, Any]:
    """Move a message's calls into its content."""
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    functions = [call.get("function", call) for call in message.get("tool_calls") or ()]
    if functions:
        turn = [(function["name"], _arguments(function.get("arguments"))) for function in functions]
        plain = _added(plain, ("\n" if plain.get("content") else "") + written(calls, turn))
    return plain


def _arguments(arguments: Any) -> Mapping[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, Mapping):
        raise InvalidParameterError("messages", ": the arguments of a tool call are not a JSON object")
    return arguments


def _with_results(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with results of tools as a user's words, together with what the user adds."""
    chat: list[dict[str, Any]] = []
    was_result = False
    for message in messages:
        is_result = message.get("role") == "tool"
        if is_result:
            text = f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"
            if was_result:
                chat[-1] = _added(chat[-1], "\n" + text)
            else:
                chat.append({"role": "user", "content": text})
        elif was_result and message.get("role") == "user":
            chat[-1] = _added(message, chat[-1]["content"] + "\n", before=True)
        else:
            chat.append(dict(message))
        was_result = is_result
    return chat


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
