"""A body of Anthropic's API -> the chat that it means. Pure.

The places of content change on the way (results of tools become messages, turns of one role become one), so
the paths in errors are translated back (`_named`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from cobali_ray.api.anthropic.body import AnthropicTool, CountBody, MessagesBody, OneMessage
from cobali_ray.api.body.reading import MISSING, model_of
from cobali_ray.api.body.schema import ChatBody
from cobali_ray.api.call.tools import MAX_TOOLS
from cobali_ray.errors import InvalidParameterError, Path, UnsupportedParameterError, dotted

NEUTRAL_FIELDS = frozenset(
    {
        "billing_policy",
        "cache_control",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""They say who the user is, or where and how the answer is computed, kept and billed."""
REFUSED_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "compaction": (),
    "container": (),
    "mcp_servers": ([],),
    "thread": (),
}
"""They would have the server run or keep things; beside each, the values that ask for nothing."""

STAMP: Final = re.compile(r"\Ax-anthropic-billing-header:(?:[ \t]*[\w-]+=[^;\n]*(?:;|(?=\n)|\Z))*\s*")
"""What Claude Code puts before its system text: its version and a stamp that differs each time."""
REMINDER: Final = "<system-reminder>\n{text}\n</system-reminder>"
"""How the model gets a system message between turns; Claude Code's own words for it."""

Block: TypeAlias = dict[str, Any]
Placed: TypeAlias = tuple[Block, Path]
"""A part of a chat's message, and its place in the body."""


def chat_of(body: CountBody) -> tuple[ChatBody, Callable[[Path], str]]:
    """Return the chat, and what the API calls its fields. Raises InvalidParameterError."""
    turns = MessageReader(body)
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": turns.messages,
        "tools": None if body.tools is None else list(_tools(body.tools)),
        "continue_final_message": turns.goes_on or None,
        **_choice(body),
        **_thinking(body),
        **_format(body),
    }
    if isinstance(body, MessagesBody):
        fields |= {
            "max_tokens": body.max_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "stop": body.stop_sequences,
            "stream": body.stream,
        }
    return model_of(ChatBody, fields), partial(_named, places=turns.places)


def _named(path: Path, *, places: Sequence[Sequence[Path]]) -> str:
    """Return what this API calls a field of a chat, whose messages' parts come from these places."""
    match path:
        case "messages", int(message), "content", int(part), *rest if message < len(places):
            own = places[message][min(part, len(places[message]) - 1)]
            path = (*own, *(["source"] if "image_url" in rest else rest))
        case "messages", int(message), *_ if message < len(places):
            path = places[message][0]
        case "tools", int(tool), "function", "parameters", *rest:
            path = ("tools", tool, "input_schema", *rest)
        case "tools", int(tool), "function", *rest:
            path = ("tools", tool, *rest)
        case "tool_choice", "function", *rest:
            path = ("tool_choice", *rest)
        case "response_format", "json_schema", *rest:
            path = ("output_config", "format", *rest)
        case str(name), *rest:
            path = (*_NAMES.get(name, (name,)), *rest)
    return dotted(path)


_NAMES: Final[Mapping[str, Path]] = {
    "reasoning_budget": ("thinking", "budget_tokens"),
    "reasoning_effort": ("output_config", "effort"),
    "stop": ("stop_sequences",),
}


class MessageReader:
    """A body's messages as a chat has them.

    Turns of one role that follow each other are one, as the API has it; results of tools stand before the
    user's text. A system message before all turns is a part of the system text. One between turns becomes
    text of the user: what is new in a long conversation must not change its beginning, and most chat
    templates take no system text there.
    """

    def __init__(self, body: CountBody) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: list[list[Path]] = []
        """Of each message, those of its parts."""
        self._system = [] if body.system is None else _texts(body.system, ("system",))
        self._results: list[tuple[dict[str, Any], list[Placed]]] = []
        self._user_parts: list[Placed] = []
        for index, raw in enumerate(body.messages):
            self._take(model_of(OneMessage, raw, ("messages", index)), ("messages", index, "content"))
        self._flush()
        if not self.messages:
            raise InvalidParameterError("messages", "have no content")
        last = self.messages[-1]
        if "tool_calls" in last:
            place = self.places[-1][0]
            raise InvalidParameterError(place, ": a tool_use needs its tool_result after it")
        self.goes_on = last["role"] == "assistant" and bool(last["content"])
        """Whether the answer goes on from the last message."""

    def _take(self, message: OneMessage, where: Path) -> None:
        if message.content is None:
            raise InvalidParameterError(where, "must not be null")
        if message.role == "assistant":
            self._flush()
            self._take_assistant(message.content, where)
        elif message.role == "user":
            self._take_user(message.content, where)
        elif self.messages or self._user_parts or self._results:
            for block, place in _texts(message.content, where):
                self._user_parts.append((_text(REMINDER.format(text=block["text"])), place))
        else:
            self._system += _texts(message.content, where)

    def _take_user(self, content: str | list[Block], where: Path) -> None:
        for block, place in _placed(content, where):
            if block.get("type") == "tool_result":
                self._results.append(_result(block, place))
            else:
                self._user_parts.append((_part(block, place, "text, image and tool_result"), place))
        if content == []:
            self._user_parts.append((_text(""), where))

    def _take_assistant(self, content: str | list[Block], where: Path) -> None:
        texts: list[str] = []
        reasoning: list[str] = []
        calls: list[dict[str, Any]] = []
        for block, place in _placed(content, where):
            kind = block.get("type")
            if kind == "text":
                texts.append(_string(block, "text", place))
            elif kind == "thinking":
                reasoning.append(_string(block, "thinking", place))
            elif kind == "tool_use":
                calls.append(_call(block, place))
            elif kind != "redacted_thinking":  # nobody but Anthropic can read it
                raise _unknown(kind, place, "text, thinking and tool_use")
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self._add({"role": "assistant", "content": ""}, [where])
        turn = self.messages[-1]
        turn["content"] += "".join(texts)
        if reasoning:
            earlier = turn.get("reasoning_content")
            turn["reasoning_content"] = "\n".join(filter(None, [earlier, *reasoning]))
        if calls:
            turn["tool_calls"] = [*turn.get("tool_calls", ()), *calls]

    def _flush(self) -> None:
        """End the user's turn; before the first one, add the system text."""
        if not self.messages:
            texts = [(text, place) for block, place in self._system if (text := STAMP.sub("", block["text"]))]
            if texts:
                content = "\n".join(text for text, _ in texts)
                self._add({"role": "system", "content": content}, [place for _, place in texts])
        for result, parts in self._results:
            self._add(result | {"content": _joined(parts)}, [place for _, place in parts])
        if self._user_parts:
            self._add(
                {"role": "user", "content": _joined(self._user_parts)},
                [place for _, place in self._user_parts],
            )
        self._results, self._user_parts = [], []

    def _add(self, message: dict[str, Any], places: list[Path]) -> None:
        self.messages.append(message)
        self.places.append(places)


def _joined(parts: list[Placed]) -> str | list[Block]:
    blocks = [block for block, _ in parts]
    if any(block["type"] != "text" for block in blocks):
        return blocks
    return "\n".join(block["text"] for block in blocks)


def _placed(content: str | list[Block], where: Path) -> Iterator[Placed]:
    if isinstance(content, str):
        yield _text(content), where
    else:
        yield from ((block, (*where, index)) for index, block in enumerate(content))


def _texts(content: str | list[Block], where: Path) -> list[Placed]:
    texts = []
    for block, place in _placed(content, where):
        if (kind := block.get("type")) != "text":
            raise _unknown(kind, place, "text")
        texts.append((_text(_string(block, "text", place)), place))
    return texts


def _unknown(kind: Any, place: Path, supported: str) -> UnsupportedParameterError:
    message = f": blocks of type {str(kind)[:32]!r} are not supported, only {supported}"
    return UnsupportedParameterError((*place, "type"), place, message)


def _string(block: Block, name: str, place: Path) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidParameterError((*place, name), "must be a string")
    return value


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _part(block: Block, place: Path, supported: str) -> Block:
    """Return a text or an image as a chat has it."""
    kind = block.get("type")
    if kind == "image":
        return _image(block, place)
    if kind != "text":
        raise _unknown(kind, place, supported)
    return _text(_string(block, "text", place))


def _image(block: Block, place: Path) -> Block:
    source = block.get("source")
    if not isinstance(source, dict):
        raise InvalidParameterError((*place, "source"), "must be an object")
    kind = source.get("type")
    if kind == "url":
        url = _string(source, "url", (*place, "source"))
    elif kind == "base64":
        media_type, data = (_string(source, name, (*place, "source")) for name in ("media_type", "data"))
        url = f"data:{media_type};base64,{data}"
    else:
        raise UnsupportedParameterError(
            (*place, "source", "type"), place, f": images of type {str(kind)[:32]!r} are not supported"
        )
    return {"type": "image_url", "image_url": {"url": url}}


def _result(block: Block, place: Path) -> tuple[dict[str, Any], list[Placed]]:
    """Return a tool's message without its content, and the parts of that."""
    call_id, content = _string(block, "tool_use_id", place), block.get("content")
    blocks = content if isinstance(content, list) else []
    if not isinstance(content, str | list | None) or not all(isinstance(part, dict) for part in blocks):
        raise InvalidParameterError((*place, "content"), "must be a string or a list of blocks")
    parts: list[Placed] = [(_text("Error:"), place)] if block.get("is_error") is True else []
    for part, where in _placed(content or "", (*place, "content")):
        parts.append((_part(part, where, "text and image"), where))
    return {"role": "tool", "tool_call_id": call_id}, parts or [(_text(""), place)]


def _call(block: Block, place: Path) -> dict[str, Any]:
    name, call_id = _string(block, "name", place), _string(block, "id", place)
    arguments = block.get("input", {})
    if not name or not isinstance(arguments, dict):
        raise InvalidParameterError(place, ": a tool_use needs a name, and an object as its input")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tools(tools: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    if len(tools) > MAX_TOOLS:
        raise InvalidParameterError("tools", f"must have at most {MAX_TOOLS} entries, got {len(tools)}")
    for index, raw in enumerate(tools):
        where, kind = ("tools", index), raw.get("type")
        if kind not in (None, "custom"):  # whatever it is, a list too
            message = f": tools of type {str(kind)[:32]!r} are not run by this server, only custom ones"
            raise UnsupportedParameterError((*where, "type"), where, message)
        tool = model_of(AnthropicTool, raw, where)
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        yield {"type": "function", "function": function | {"strict": tool.strict}}


def _choice(body: CountBody) -> dict[str, Any]:
    choice = body.tool_choice
    if choice is None:
        return {}
    if choice.type == "tool":
        if choice.name is None:
            raise InvalidParameterError(("tool_choice", "name"), MISSING)
        tool_choice: Any = {"type": "function", "function": {"name": choice.name}}
    else:
        tool_choice = "required" if choice.type == "any" else choice.type
    return {"tool_choice": tool_choice, "parallel_tool_calls": not choice.disable_parallel_tool_use}


def _thinking(body: CountBody) -> dict[str, Any]:
    """Return whether the model reasons, only if it is asked to, by the names that templates have for it."""
    thinking = body.thinking
    thinks = thinking is not None and thinking.thinks
    fields: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": thinks, "thinking": thinks}}
    if thinking is not None and thinks:
        fields |= {"reasoning_budget": thinking.budget_tokens}
        fields |= {"include_reasoning": False} if thinking.display == "omitted" else {}
    if body.output_config is not None:
        fields["reasoning_effort"] = body.output_config.effort
    return fields


def _format(body: CountBody) -> dict[str, Any]:
    format_ = body.output_format
    if body.output_config is not None and body.output_config.format is not None:
        format_ = body.output_config.format
    if format_ is None:
        return {}
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": format_.schema_}}}
