"""What happens to fields that no body lists, by name: accepted, refused, or named back as ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from cobali_ray.api.body.reading import ShapeT, parse
from cobali_ray.api.door.context import RequestContext
from cobali_ray.api.door.ids import MAX_NAME_LENGTH
from cobali_ray.errors import Path, UnknownParameterError, UnsupportedParameterError

SAMPLERS = ("penalties", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "temperature")
"""Those that this server has, by llama-server's names, in their order."""
NO_PENALTIES = {
    "repetition_penalty": 1.0, "repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
}  # fmt: skip

# They say whose request it is, or how it is kept, billed or cached; no answer differs by them.
NEUTRAL_FIELDS = frozenset(
    {
        "guided_decoding_backend",
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
    }
)

# They would change the answer and are not supported, under every name that clients use. The values beside
# each name ask for nothing: they are what other servers do anyway. Checked in this order, so that a request
# with tools is refused for its `tools`, not for its `tool_choice`. Those that chats have are refused in plain
# completions.
REFUSED_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    # The shape of the answer.
    "guided_whitespace_pattern": (),
    # What the prompt becomes.
    "add_special_tokens": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "enable_thinking": (),
    "include_reasoning": (),
    "reasoning": ({},),
    "reasoning_budget": (-1,),
    "reasoning_effort": (),
    "reasoning_format": (),
    "suffix": ("",),
    "thinking": (),
    "thinking_budget": (),
    "thinking_budget_tokens": (),
    "truncate_prompt_tokens": (),
    # How tokens are drawn; beside each, llama.cpp's own neutral values and defaults.
    "adaptive_target": (-1,),
    "dry_allowed_length": (2,),
    "dry_base": (1.75,),
    "dry_multiplier": (0,),
    "dry_penalty_last_n": (-1, 0),
    "dry_range": (0,),
    "dry_sequence_breakers": ([], ["\n", ":", '"', "*"]),
    "dynatemp_exponent": (1,),
    "dynatemp_high": (0,),
    "dynatemp_low": (0,),
    "dynatemp_range": (0,),
    "early_stopping": (False,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "length_penalty": (1,),
    "min_keep": (0, 1),
    "mirostat": (0,),
    "mirostat_eta": (0.1,),
    "mirostat_mode": (0,),
    "mirostat_tau": (5,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "penalty_last_n": (-1,),
    "repeat_last_n": (-1,),
    "repetition_penalty_range": (-1, 0),
    "samplers": ([*SAMPLERS],),
    "sampler_order": (),
    "sampler_priority": (),
    "smoothing_curve": (1,),
    "smoothing_factor": (0,),
    "tfs": (1,),
    "tfs_z": (1,),
    "top_a": (0,),
    "typical": (1,),
    "use_beam_search": (False,),
    "xtc_probability": (0,),
    "xtc_threshold": (0.1,),
    # Where the answer ends, and what of it is shown.
    "max_length": (),
    "max_new_tokens": (),
    "min_length": (0,),
    "n_predict": (),
    "num_predict": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_sequences": ([],),
    "stopping_strings": ([],),
    # What else comes with it.
    "audio": (),
    "modalities": ([], ["text"]),
    "moderation": (),
    "n_probs": (0,),
    "return_tokens_as_token_ids": (False,),
    "web_search_options": (),
}
IGNORED_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "prediction": (),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
}
"""They change how soon an answer comes or how long it is, and it is right without them. So they are named
back, and refused if strict. The values beside each name ask for nothing."""
SUPPORTED_NAMES: Mapping[str, str] = {
    "function_call": "tool_choice",
    "functions": "tools",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "min_length": "min_tokens",
    "n_probs": "logprobs",
    "reasoning": "reasoning_effort",
    "stop_sequences": "stop",
    "stopping_strings": "stop",
    "thinking_budget": "reasoning_budget",
    "thinking_budget_tokens": "reasoning_budget",
    "typical": "typical_p",
}
"""What to send instead of a name that only other servers know."""

# The same for the fields of one message.
NEUTRAL_MESSAGE_FIELDS = frozenset({"annotations", "provider_specific_fields"})
REFUSED_MESSAGE_FIELDS: Mapping[str, tuple[Any, ...]] = {"audio": ()}


def read_as(
    shape: type[ShapeT],
    context: RequestContext,
    raw: bytes,
    neutral: frozenset[str] = NEUTRAL_FIELDS,
    refused: Mapping[str, tuple[Any, ...]] = REFUSED_FIELDS,
    *,
    strict: bool,
) -> ShapeT:
    """Return a body as its model, and name fields back that change nothing. Raises BadRequestError."""
    body = parse(shape, raw)
    extra, ignored = without_idle(body)
    context.ignore((*ignored, *judge(extra, neutral, refused, strict=strict)))
    return body


def without_idle(body: BaseModel) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a body's unknown fields, but for how far back penalties look where it sets none.

    If it does not switch them off either, the model's own may be on: then these names are returned, too.
    """
    extra = dict(body.model_extra or {})
    if any(getattr(body, name, None) not in (None, neutral) for name, neutral in NO_PENALTIES.items()):
        return extra, ()
    names = tuple(name for name in ("repeat_last_n", "penalty_last_n") if extra.pop(name, None) is not None)
    off = any(getattr(body, name, None) is not None for name in ("repetition_penalty", "repeat_penalty"))
    return extra, () if off else names


def judge_message_fields(extra: Mapping[str, Any] | None, index: int, *, strict: bool) -> tuple[str, ...]:
    """Judge the fields of message `index`; unknown names come back without it, as `messages[].name`."""
    neutral, refused = NEUTRAL_MESSAGE_FIELDS, REFUSED_MESSAGE_FIELDS
    return judge(extra, neutral, refused, where=("messages", index), named_as="messages[].", strict=strict)


def judge(
    extra: Mapping[str, Any] | None,
    neutral: frozenset[str] = NEUTRAL_FIELDS,
    refused: Mapping[str, tuple[Any, ...]] = REFUSED_FIELDS,
    *,
    instead: Mapping[str, str] = SUPPORTED_NAMES,
    where: Path = (),
    named_as: str = "",
    strict: bool,
) -> tuple[str, ...]:
    """Return unknown names. Raises UnsupportedParameterError; if `strict`, UnknownParameterError too.

    `where` is the place of the object that has the fields, `named_as` goes before the names that come back.
    `refused` has the values of each field that ask for nothing, `instead` what to send in place of some.
    """
    extra = extra or {}
    for name, harmless in refused.items():
        value = extra.get(name)
        if value is not None and not _asks_for_nothing(value, harmless):
            other = instead.get(name)
            hint = f"; send {other} instead" if other else ""
            raise UnsupportedParameterError((*where, name), f"is not supported by this server{hint}")
    unknown = [
        name
        for name, value in extra.items()
        if value is not None
        and name not in neutral
        and name not in refused
        and not _asks_for_nothing(value, IGNORED_FIELDS.get(name, ()))
    ]
    if unknown and strict:
        name = unknown[0][:MAX_NAME_LENGTH]
        raise UnknownParameterError((*where, name), ": unknown parameter (setting strict)")
    return tuple(named_as + name for name in unknown)


def _asks_for_nothing(value: Any, harmless: tuple[Any, ...]) -> bool:
    # True == 1 in Python, but a boolean where a number is expected asks for something.
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in harmless)
