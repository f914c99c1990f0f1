"""An error -> status, body and headers, in the shape of the API that was called. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

from cobali_ray.errors import (
    INTERNAL,
    CobaliError,
    InternalError,
    Path,
    PromptTooLongError,
    RefusedError,
    StoreFailedError,
    dotted,
)

HIDDEN = "The server failed on this request; its log has the cause under the x-request-id."


def _openai_error(fault: Fault) -> dict[str, Any]:
    error = {"message": fault.message, "type": fault.type, "param": fault.param, "code": fault.code}
    return {"error": error}


class ErrorShape(NamedTuple):
    """How an API writes an error."""

    body: Callable[[Fault], dict[str, Any]]
    statuses: Mapping[str, int] = {}
    """Of errors that have another status there than elsewhere, by their codes."""


OPENAI = ErrorShape(_openai_error)
"""OpenAI's, and llama-server's."""

_TYPES: Mapping[int, str] = {401: "authentication_error", 429: "rate_limit_error", 504: "timeout"}
"""OpenAI's word for a status, where it is not that of all statuses below 500 or from there on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One error as a client sees it."""

    status: int
    type: str
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""
    shape: ErrorShape = OPENAI

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body, also what a stream says when it fails halfway."""
        return self.shape.body(self)

    @property
    def body_bytes(self) -> bytes:
        return orjson.dumps(self.body)


def fault_of(
    error: BaseException,
    shape: ErrorShape = OPENAI,
    *,
    request_id: str = "",
    named: Callable[[Path], str] = dotted,
) -> Fault:
    """Say what a client is told about an error, and in which shape.

    `named` says what the API calls a field. Only errors raised on purpose for clients say what happened;
    everything else is a 500 whose text tells nothing of the server's inside.
    """
    public = error if isinstance(error, CobaliError) else InternalError()
    headers = {}
    if isinstance(public, RefusedError | StoreFailedError):
        headers["retry-after"] = retry_after(public.retry_after_s)
    if public.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return Fault(
        status=shape.statuses.get(public.code, public.status),
        type=type_of(public.status),
        message=HIDDEN if public.code == INTERNAL else public.text(named),
        param=named(public.path) if public.path else None,
        code=public.code,
        headers=headers,
        request_id=request_id,
        shape=shape,
    )


def is_our_fault(error: BaseException) -> bool:
    """Whether operators need to see the traceback."""
    return not isinstance(error, CobaliError) or error.outcome == "error"


def type_of(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def retry_after(seconds: float) -> str:
    """Return whole seconds, rounded up, at least 1: what the Retry-After header holds."""
    return str(max(1, math.ceil(seconds))) if math.isfinite(seconds) else "1"


_ANTHROPIC_TYPES: Mapping[int, str] = {
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
"""Codes of errors that come of the server's state, not of a client's limit."""


def _anthropic_error(fault: Fault) -> dict[str, Any]:
    """Return an error's body. There is no place for the field at fault but the message.

    By Anthropic's words for it, Claude Code knows that a conversation is too long. By the details, the SDK's
    tool runner knows that it has to send the whole conversation with every turn: it tries first without.
    """
    kind = _ANTHROPIC_TYPES.get(fault.status, "invalid_request_error" if fault.status < 500 else "api_error")
    too_long = "prompt is too long: " if fault.code == PromptTooLongError.code else ""
    error: dict[str, Any] = {"type": kind, "message": too_long + fault.message}
    if fault.param == "thread":
        error["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": error, "request_id": fault.request_id}


def _ollama_error(fault: Fault) -> dict[str, Any]:
    return {"error": fault.message}


ANTHROPIC = ErrorShape(_anthropic_error, dict.fromkeys(_OVERLOADED, OVERLOADED))
OLLAMA = ErrorShape(_ollama_error, {"queue_full": 503, "wait_too_long": 503})
ERROR_SHAPES: Mapping[str, ErrorShape] = {"/v1/messages": ANTHROPIC, "/api/": OLLAMA}
"""By how the paths of an API begin."""


def error_shape(path: str) -> ErrorShape:
    """Return how errors of a path are written; the path is the one in the app."""
    return next((shape for prefix, shape in ERROR_SHAPES.items() if path.startswith(prefix)), OPENAI)
