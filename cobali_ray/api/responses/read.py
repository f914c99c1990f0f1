"""A body of the Responses API -> the body of a chat that asks the same. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import orjson

from cobali_ray.api.body.fields import NEUTRAL_FIELDS, REFUSED_FIELDS, SUPPORTED_NAMES, judge
from cobali_ray.api.body.schema import ChatBody, SampledBody
from cobali_ray.api.responses.items import EarlierItems, read_input
from cobali_ray.api.responses.schema import ResponsesBody
from cobali_ray.api.responses.tools import Callee, choice_of, offered
from cobali_ray.errors import InvalidParameterError, Path, UnsupportedParameterError, dotted

NEUTRAL: Final = NEUTRAL_FIELDS | {"access_programs", "client_metadata", "stream_options"}
REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "context_management": ([],),
    "max_completion_tokens": (),
    "max_tokens": (),
    "messages": (),
    "n": (1,),
    "prompt": (),
    "response_format": (),
    "return_token_ids": (False,),
    **{name: values for name, values in REFUSED_FIELDS.items() if name not in ResponsesBody.model_fields},
}
NAMES: Final[Mapping[str, Path]] = {
    "max_completion_tokens": ("max_output_tokens",),
    "max_tokens": ("max_output_tokens",),
    "messages": ("input",),
    "prompt": ("input",),
    "reasoning_effort": ("reasoning", "effort"),
    "response_format": ("text", "format"),
}
"""What a field of a chat is here."""
INSTEAD: Final[Mapping[str, str]] = {
    **{name: dotted(NAMES.get(field, (field,))) for name, field in SUPPORTED_NAMES.items()},
    **{name: dotted(path) for name, path in NAMES.items()},
    **dict.fromkeys(
        ("chat_template_kwargs", "enable_thinking", "include_reasoning", "thinking"), "reasoning"
    ),
    "prompt": "instructions and input",
}
FUNCTION: Final = {"parameters": None, "strict": False}
"""What every function has in OpenAI's schema of a response."""
LOGPROBS: Final = "message.output_text.logprobs"
INCLUDED: Final = frozenset(
    {
        LOGPROBS,
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""All but the logprobs concern what no answer has: hosted tools, images, encrypted reasoning."""


class ResponseTemplate(NamedTuple):
    echo: Mapping[str, Any]
    """What of the body stands in every response."""
    callees: Mapping[str, Callee]


class ParsedResponsesBody(NamedTuple):
    chat: ChatBody
    written: ResponseTemplate
    named: Callable[[Path], str]
    ignored: tuple[str, ...]


def read(
    body: ResponsesBody,
    *,
    strict: bool,
    kept: bool = False,
    earlier: EarlierItems = EarlierItems(),  # noqa: B008
) -> ParsedResponsesBody:
    """Return the chat that asks the same, after the `earlier` items; `kept`: the response is stored.

    Raises BadRequestError in the words of this API.
    """
    ignored = judge(body.model_extra, NEUTRAL, REFUSED, instead=INSTEAD, strict=strict)
    if body.store and not kept:
        ignored += ("store",)
    text = body.text
    if text is not None and text.verbosity not in {None, "medium"}:
        if strict:
            raise UnsupportedParameterError(
                ("text", "verbosity"), "is not supported by this server (setting strict)"
            )
        ignored += ("text.verbosity",)
    for index, name in enumerate(body.include or ()):
        if name not in INCLUDED:
            message = f"{name[:64]!r} is none of {', '.join(sorted(INCLUDED))}"
            raise InvalidParameterError(("include", index), message)
    items = read_input(body.input, body.instructions, strict=strict, earlier=earlier)
    tools = offered(body.tools or [], strict=strict)
    chat = ChatBody.model_construct(
        **{name: getattr(body, name) for name in SampledBody.model_fields},
        messages=items.messages,
        max_completion_tokens=body.max_output_tokens,
        tools=list(tools.functions),
        tool_choice=choice_of(body.tool_choice, tools),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=body.reasoning.effort if body.reasoning is not None else None,
        response_format=_format(text.format) if text is not None and text.format is not None else None,
        logprobs=LOGPROBS in (body.include or ()) or bool(body.top_logprobs),
        top_logprobs=body.top_logprobs,
        user=body.user,
        prompt_cache_key=body.prompt_cache_key,
    )
    named = partial(_named, messages=items.places, tools=tools.places)
    ignored = tuple(dict.fromkeys([*ignored, *items.ignored, *tools.ignored]))
    return ParsedResponsesBody(
        chat, ResponseTemplate(_echo(body, tools.left, kept=kept), tools.callees), named, ignored
    )


def _named(path: Path, *, messages: Sequence[Path], tools: Sequence[Path]) -> str:
    """Return what this API calls a field of a chat, where `messages` and `tools` come from these places."""
    match path:
        case "messages", int(index), "content", *rest if index < len(messages):
            path = (*messages[index], *rest)
        case "messages", int(index), *rest if index < len(messages):
            path = (*messages[index], *rest)
        case "tools", int(index), "function", *rest if index < len(tools):
            path = (*tools[index], *rest)
        case "tools", int(index), *rest if index < len(tools):
            path = (*tools[index], *rest)
        case "response_format", "json_schema", *rest:
            path = ("text", "format", *rest)
        case "tool_choice", "allowed_tools", *rest:
            path = ("tool_choice", *rest)
        case str(name), *rest:
            path = (*NAMES.get(name, (name,)), *rest)
    return dotted(path)


def _format(text_format: dict[str, Any]) -> dict[str, Any]:
    """Return a format as a chat has it: the schema is one level further down there."""
    if text_format.get("type") != "json_schema":
        return text_format
    return {"type": "json_schema", "json_schema": text_format}


def _echo(body: ResponsesBody, tools: Sequence[Any], *, kept: bool) -> dict[str, Any]:
    """Return what every response repeats; what may be large is encoded here, off the event loop."""
    text = {"format": {"type": "text"}} | (body.text.model_dump(exclude_none=True) if body.text else {})
    reasoning = body.reasoning
    large = {
        "instructions": body.instructions,
        "metadata": body.metadata or {},
        "text": text,
        "tool_choice": body.tool_choice or "auto",
        "tools": [FUNCTION | tool if tool.get("type") == "function" else tool for tool in tools],
    }
    return {name: orjson.Fragment(orjson.dumps(value)) for name, value in large.items()} | {
        "background": bool(body.background),
        "conversation": None if body.conversation is None else {"id": body.conversation},
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": kept,
        "top_logprobs": body.top_logprobs or 0,
        "truncation": "disabled",
        **({} if body.user is None else {"user": body.user}),
    }
