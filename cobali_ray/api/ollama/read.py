"""A body of Ollama's API -> the chat or the completion that it means. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cobali_ray.api.body.fields import judge
from cobali_ray.api.body.params import NO_LIMIT
from cobali_ray.api.body.reading import model_of
from cobali_ray.api.body.schema import ChatBody, CompletionBody
from cobali_ray.api.ollama.body import OllamaBody, OllamaChatBody, OllamaGenerateBody, OllamaMessage, Options
from cobali_ray.errors import InvalidParameterError, Path, UnsupportedParameterError, dotted

NEUTRAL_FIELDS = frozenset({"shift", "truncate"})
"""Nothing is shifted or cut here: what is too long is refused."""
REFUSED_FIELDS: Mapping[str, tuple[Any, ...]] = {"suffix": ("",), "template": ("",)}
"""Beside each, the values that ask for nothing."""
NEUTRAL_OPTIONS = frozenset(
    {
        "embedding_only",
        "f16_kv",
        "logits_all",
        "low_vram",
        "main_gpu",
        "num_batch",
        "num_gpu",
        "num_keep",
        "num_thread",
        "numa",
        "use_mlock",
        "use_mmap",
        "vocab_only",
    }
)
"""They say how the model is to be run, which the operator decides."""
REFUSED_OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "mirostat": (0,),
    "mirostat_eta": (0.1,),
    "mirostat_tau": (5,),
    "penalize_newline": (True,),
    "tfs_z": (1,),
}
SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p"),
    *("repeat_penalty", "presence_penalty", "frequency_penalty"),
)
IMAGES: Mapping[str, str] = {"/9j/": "jpeg", "iVBOR": "png", "R0lGOD": "gif", "UklGR": "webp"}
"""What images of a kind begin with in base64."""


def chat_of(body: OllamaChatBody) -> ChatBody:
    tools = body.tools and [tool if tool.get("type") else tool | {"type": "function"} for tool in body.tools]
    fields = {"messages": _messages(body.messages or []), "tools": tools}
    return model_of(ChatBody, fields | _shared(body) | _logprobs(body) | _thinking(body))


def prompt_chat_of(body: OllamaGenerateBody) -> ChatBody:
    messages: list[dict[str, Any]] = [{"role": "user", "content": _content(body.prompt, body.images)}]
    if body.system is not None:
        messages.insert(0, {"role": "system", "content": body.system})
    return model_of(ChatBody, {"messages": messages} | _shared(body) | _logprobs(body) | _thinking(body))


def raw_of(body: OllamaGenerateBody) -> CompletionBody:
    for name in ("system", "images", "context"):
        if getattr(body, name):
            raise UnsupportedParameterError(name, "is not supported with raw")
    n_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return model_of(CompletionBody, {"prompt": body.prompt, "logprobs": n_logprobs} | _shared(body))


def ignored_of(body: OllamaBody, n_ctx_slot: int, *, strict: bool) -> tuple[str, ...]:
    """Return the names of what changes nothing. Raises what `judge` does."""
    options = body.options or Options()
    ignored = judge(body.model_extra, NEUTRAL_FIELDS, REFUSED_FIELDS, strict=strict)
    ignored += judge(
        options.model_extra,
        NEUTRAL_OPTIONS,
        REFUSED_OPTIONS,
        where=("options",),
        named_as="options.",
        strict=strict,
    )
    return (*ignored, "options.num_ctx") if (options.num_ctx or 0) > n_ctx_slot else ignored


def named(path: Path) -> str:
    match path:
        case "messages", int(index), "content", int(), *_:
            path = ("messages", index, "images")
        case "response_format", "json_schema", "schema", *rest:
            path = ("format", *rest)
        case str(name), *_ if name in Options.model_fields:
            path = ("options", *path)
    return dotted(path)


def _messages(raw_messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []
    """Ids and names of calls without a result: results may name neither."""
    for index, raw in enumerate(raw_messages):
        turn = model_of(OllamaMessage, raw, ("messages", index))
        message: dict[str, Any] = {"role": turn.role, "content": _content(turn.content, turn.images)}
        if turn.thinking:
            message["reasoning_content"] = turn.thinking
        if turn.tool_calls:
            calls: list[dict[str, Any]] = []
            for call in turn.tool_calls:
                # Nine digits, because the templates of Mistral refuse all other lengths.
                call_id = call.id or f"{index:04d}{len(calls):05d}"
                function = {"name": call.function.name, "arguments": call.function.arguments}
                calls.append({"id": call_id, "type": "function", "function": function})
                open_calls.append((call_id, call.function.name))
            message["tool_calls"] = calls
        if turn.role == "tool":
            matches = [pair for pair in open_calls if turn.tool_call_id == pair[0]]
            if not matches and (turn.tool_call_id is None or turn.tool_name is not None):
                matches = [pair for pair in open_calls if turn.tool_name in {None, pair[1]}]
            open_call = matches[0] if matches else None
            if open_call is not None:
                open_calls.remove(open_call)
            message["tool_call_id"] = turn.tool_call_id or (open_call and open_call[0])
            message["name"] = turn.tool_name or (open_call and open_call[1])
        messages.append(message)
    return messages


def _content(text: str | None, images: list[str] | None) -> str | list[dict[str, Any]]:
    if not images:
        return text or ""
    urls = [f"data:image/{_kind(data)};base64,{data}" for data in images]
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"type": "text", "text": text or ""}, *parts]


def _kind(data: str) -> str:
    return next((kind for begin, kind in IMAGES.items() if data.startswith(begin)), "png")


def _shared(body: OllamaBody) -> dict[str, Any]:
    options = body.options or Options()
    n_most = options.num_predict
    return {
        "model": body.model,
        "stream": body.stream is not False,
        "max_tokens": NO_LIMIT if n_most is not None and n_most <= 0 else n_most,
        "seed": None if options.seed is None or options.seed < 0 else options.seed,
        "stop": list(options.stop),
        "response_format": _format(body.format),
        **{name: getattr(options, name) for name in SAMPLING},
    }


def _logprobs(body: OllamaBody) -> dict[str, Any]:
    return {"logprobs": body.logprobs, "top_logprobs": body.top_logprobs}


def _thinking(body: OllamaBody) -> dict[str, Any]:
    """Return the fields that tell the template whether to reason; none: what the model does by itself."""
    if body.think is None:
        return {}
    if isinstance(body.think, str):
        thinks = {"enable_thinking": True, "thinking": True}
        return {"reasoning_effort": body.think, "chat_template_kwargs": thinks}
    return {"chat_template_kwargs": {"enable_thinking": body.think, "thinking": body.think}}


def _format(format_: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if isinstance(format_, dict):
        return {"type": "json_schema", "json_schema": {"schema": format_}}
    if format_ in {None, ""}:
        return None
    if format_ != "json":
        raise InvalidParameterError("format", f"must be json or a schema, got {format_[:32]!r}")
    return {"type": "json_object"}
