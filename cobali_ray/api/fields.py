"""What happens to fields that no body lists, by name: accepted, refused, or named back as ignored. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from cobali_ray.errors import UnknownParameterError, UnsupportedParameterError

MAX_NAMED_FIELDS = 32
MAX_NAME_LENGTH = 64

# They say who asks, or where and how the answer is kept and billed; no answer differs by them.
NEUTRAL_FIELDS = frozenset(
    {
        "cache_prompt",
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)

# They would change the answer and are not done here. The values beside each name ask for nothing.
REFUSED_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "grammar": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "guided_json": (),
    "guided_regex": ("",),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "length_penalty": (1,),
    "mirostat": (0,),
    "modalities": ([], ["text"]),
    "moderation": (),
    "n_predict": (),
    "prediction": (),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_n_sigma": (-1, 0),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
    "xtc_probability": (0,),
}

# The same for the fields of one message.
NEUTRAL_MESSAGE_FIELDS = frozenset({"annotations"})
REFUSED_MESSAGE_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": (),
    "refusal": ("",),
    "tool_calls": ([],),
}


def judge_fields(extra: Mapping[str, Any] | None, *, strict: bool) -> tuple[str, ...]:
    """Return the names nobody knows.

    Raises UnsupportedParameterError for a field that asks for what is not done here, and, if `strict`,
    UnknownParameterError for the first unknown name.
    """
    return _judge(extra or {}, NEUTRAL_FIELDS, REFUSED_FIELDS, "", "", strict=strict)


def judge_message_fields(extra: Mapping[str, Any] | None, index: int, *, strict: bool) -> tuple[str, ...]:
    """Do the same for message `index`; unknown names come back without it, as `messages[].name`."""
    where = f"messages[{index}]."
    return _judge(
        extra or {}, NEUTRAL_MESSAGE_FIELDS, REFUSED_MESSAGE_FIELDS, where, "messages[].", strict=strict
    )


def _judge(
    extra: Mapping[str, Any],
    neutral: frozenset[str],
    refused: Mapping[str, tuple[Any, ...]],
    where: str,
    named_as: str,
    *,
    strict: bool,
) -> tuple[str, ...]:
    unknown = []
    for name, value in extra.items():
        if value is None or name in neutral:
            continue
        if name not in refused:
            unknown.append(name)
        elif value not in refused[name]:
            raise UnsupportedParameterError(where + name, f"{where}{name} is not supported by this server")
    if unknown and strict:
        name = where + unknown[0][:MAX_NAME_LENGTH]
        raise UnknownParameterError(name, f"unknown parameter: {name} (setting strict)")
    return tuple(named_as + name for name in unknown)


def header_value(names: tuple[str, ...]) -> str:
    """Return names as one header value: client-made text, so quoted, shortened and counted."""
    unique = list(dict.fromkeys(names))
    shown = [quote(name[:MAX_NAME_LENGTH], safe="[]") for name in unique[:MAX_NAMED_FIELDS]]
    more = [f"and-{len(unique) - MAX_NAMED_FIELDS}-more"] if len(unique) > MAX_NAMED_FIELDS else []
    return ", ".join(shown + more)
