"""Errors as the APIs write them that do not write them as OpenAI does. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cobali_ray.api.faults import OPENAI, ErrorShape, Fault
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


def _anthropic_error(fault: Fault) -> dict[str, Any]:
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


def _ollama_error(fault: Fault) -> dict[str, Any]:
    return {"error": fault.message}


ANTHROPIC = ErrorShape(_anthropic_error, dict.fromkeys(_OVERLOADED, OVERLOADED))
OLLAMA = ErrorShape(_ollama_error, {"queue_full": 503, "wait_too_long": 503})
ERROR_SHAPES: Mapping[str, ErrorShape] = {"/v1/messages": ANTHROPIC, "/api/": OLLAMA}
"""By how the paths of an API begin."""


def error_shape(path: str) -> ErrorShape:
    """Return how errors of a path are written; the path is the one in the app."""
    return next((shape for prefix, shape in ERROR_SHAPES.items() if path.startswith(prefix)), OPENAI)
