"""The messages of a chat, as a chat template takes them, and how its prompt ends. Pure."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
from pydantic_core import from_json

from cobali_ray.api.body.fields import judge_message_fields
from cobali_ray.api.body.images import ChatImages
from cobali_ray.api.body.reading import check_choice, model_of
from cobali_ray.api.body.schema import ROLES, ChatBody, Message, MessageToolCall
from cobali_ray.errors import InvalidParameterError, UnsupportedParameterError


def messages_of(
    body: ChatBody, *, strict: bool, images: ChatImages | None = None
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the messages as a chat template takes them, and the names of ignored fields.

    `images` takes those of the messages; None: there must be none.
    """
    messages: list[dict[str, Any]] = []
    ignored: dict[str, None] = {}
    names: dict[str, str] = {}
    """Of the functions that were called, by the ids of the calls."""
    function_call_id: str | None = None
    for index, raw in enumerate(body.messages):
        message = model_of(Message, raw, ("messages", index))
        ignored |= dict.fromkeys(judge_message_fields(message.model_extra, index, strict=strict))
        check_choice(("messages", index, "role"), message.role, ROLES)
        plain: dict[str, Any] = {"role": message.role, "content": _text_of(message, index, images)}
        calls = list(message.tool_calls or ())
        if message.function_call is not None:
            function_call_id = f"call{index:05d}"  # nine letters, as Mistral's templates want it
            calls.append(MessageToolCall(id=function_call_id, function=message.function_call))
        if calls:
            if message.role != "assistant":
                name = "tool_calls" if message.tool_calls else "function_call"
                raise InvalidParameterError(("messages", index, name), "is for the role assistant")
            plain["tool_calls"] = [_call(call) for call in calls]
            names |= {call.id: call.function.name for call in calls if call.id}
        if message.role == "tool":
            plain |= _result(message.tool_call_id, message.name, names)
        elif message.role == "function":  # what tools were called before there could be several
            plain |= {"role": "tool"} | _result(function_call_id, message.name, names)
        elif message.name is not None:
            plain["name"] = message.name
        reasoning = message.reasoning_content or message.reasoning
        if reasoning:
            plain["reasoning_content"] = reasoning
        messages.append(plain)
    return messages, tuple(ignored)


def _call(call: MessageToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": _arguments(call.function.arguments or "{}")}
    plain: dict[str, Any] = {"type": "function", "function": function}
    return plain if call.id is None else {"id": call.id} | plain


def _arguments(arguments: str | dict[str, Any]) -> str | dict[str, Any]:
    """Return a call's arguments; of one that was cut short, as far as they were written.

    Many templates refuse what is no object, and with it the rest of a conversation, which may be stored.
    """
    if isinstance(arguments, str):
        with suppress(ValueError):
            orjson.loads(arguments)
            return arguments
        with suppress(ValueError):
            begun = from_json(arguments, allow_partial="trailing-strings")
            return begun if isinstance(begun, dict) else arguments
    return arguments


def _result(call_id: str | None, name: str | None, names: dict[str, str]) -> dict[str, Any]:
    """Return what a tool's message says beside its content; some templates want the function's name."""
    fields = {"tool_call_id": call_id, "name": name or names.get(call_id or "")}
    return {key: value for key, value in fields.items() if value is not None}


def ending_of(body: ChatBody) -> dict[str, Any]:
    """Return how the prompt ends: arguments of `ChatTemplate.render`."""
    if not body.continue_final_message:
        return {"add_generation_prompt": body.add_generation_prompt is not False}
    if body.add_generation_prompt:
        raise InvalidParameterError("continue_final_message", "and add_generation_prompt exclude each other")
    if body.messages[-1].get("role") != "assistant":
        raise InvalidParameterError("continue_final_message", "needs an assistant message at the end")
    return {"continue_final_message": True}


def _text_of(message: Message, index: int, images: ChatImages | None) -> str:
    where = ("messages", index, "content")
    if isinstance(message.content, str):
        return message.content or message.refusal or ""
    if message.content is None:
        if message.role in {"assistant", "function"}:
            return message.refusal or ""
        raise InvalidParameterError(where, f"must not be null for the role {message.role}")
    texts: list[str] = []
    last = None
    for i, part in enumerate(message.content):
        kind = part.get("type")
        if kind == "image_url" and images is not None:
            texts.append(images.take(part, (*where, i)))
        elif kind not in ("text", "refusal"):  # whatever it is, a list too
            supported = "only text" if images is None else "only text and image_url"
            raise UnsupportedParameterError(
                (*where, i, "type"),
                (*where, i),
                f": parts of type {str(kind)[:32]!r} are not supported, {supported}",
            )
        elif not isinstance(text := part.get(kind), str):
            raise InvalidParameterError((*where, i, kind), "must be a string")
        else:
            texts += ["\n" * (last in {"text", "refusal"}), text]
        last = kind
    return "".join(texts)
