"""Errors as Anthropic's API writes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cobali_ray.api.faults import ErrorShape, Fault
from cobali_ray.errors import PromptTooLongError

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
OVERLOADED = 529
_OVERLOADED = ("draining", "loading", "no_room", "queue_full", "unavailable", "wait_too_long")
"""Codes of what is the server's state, and not a limit of the client's."""


def body_of(fault: Fault) -> dict[str, Any]:
    """Return an error's body. There is no place for the field at fault but the message.

    By Anthropic's words for it, Claude Code knows that a conversation is too long. By the details, the SDK's
    tool runner knows that it has to send the whole conversation with every turn: it tries first without.
    """
    kind = _TYPES.get(fault.status, "invalid_request_error" if fault.status < 500 else "api_error")
    too_long = "prompt is too long: " if fault.code == PromptTooLongError.code else ""
    told: dict[str, Any] = {"type": kind, "message": too_long + fault.message}
    if fault.param == "thread":
        told["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": told, "request_id": fault.request_id}


ANTHROPIC = ErrorShape(body_of, dict.fromkeys(_OVERLOADED, OVERLOADED))
