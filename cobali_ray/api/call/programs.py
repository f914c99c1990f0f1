"""Which agent's task a chat is part of, as far as its body and headers tell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import takewhile
from typing import Any, Final

import orjson

from cobali_ray.api.body.schema import ChatBody
from cobali_ray.api.call.tools import ToolDict
from cobali_ray.core.request.request import Program

HINT_HEADERS: Final = (
    "x-claude-code-session-id", "x-claude-code-agent-id", "x-session-id", "session_id", "conversation_id",
)  # fmt: skip
"""By which coding agents name the conversation of a request."""
_N_BYTES: Final = 16


def program_of(body: ChatBody, tools: Sequence[ToolDict], hints: Sequence[str]) -> Program | None:
    """Return the task that a chat is part of; None where it offers no tools, of which results could come.

    Requests of one task begin with the same messages, up to the first of a user, and have the same `hints`,
    `user` and `prompt_cache_key`.
    """
    if not tools:
        return None
    n_before = sum(1 for _ in takewhile(lambda message: message.get("role") != "user", body.messages))
    beginning = body.messages[: n_before + 1]
    key = (body.model_extra or {}).get("prompt_cache_key")
    since = takewhile(lambda message: message.get("role") != "assistant", reversed(body.messages))
    returns = any(message.get("role") in {"tool", "function"} for message in since)
    names = sorted(tool["function"]["name"] for tool in tools)
    return Program(_digest([*hints, body.user, key, beginning]), _digest(names), returns)


def _digest(parts: Iterable[Any]) -> str:
    return blake2b(orjson.dumps(list(parts)), digest_size=_N_BYTES).hexdigest()
