"""An error -> status, body and headers, in the shape of the API that was called. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeAlias

import orjson

from cobali_ray.errors import INTERNAL, CobaliError, InternalError, RefusedError

HTTP_MESSAGES: Mapping[int, str] = {
    404: "Unknown path: {method} {path}.",
    405: "Method {method} is not allowed for {path}.",
}


HIDDEN = "The server failed on this request; its log has the cause under the x-request-id."
ErrorShape: TypeAlias = Callable[["Fault"], dict[str, Any]]
"""How an API writes an error: the JSON body."""


def openai_error(fault: Fault) -> dict[str, Any]:
    """Return an error as OpenAI's API has it, and llama-server's."""
    told = {"message": fault.message, "type": fault.type, "param": fault.param, "code": fault.code}
    return {"error": told}


ERROR_SHAPES: Mapping[str, ErrorShape] = {}
"""Of APIs that have one of their own, by how their paths begin."""


def error_shape(path: str) -> ErrorShape:
    """Return how errors of a path are written; the path is the one in the app."""
    return next((shape for prefix, shape in ERROR_SHAPES.items() if path.startswith(prefix)), openai_error)


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
    shape: ErrorShape = openai_error

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body, also what a stream says when it fails halfway."""
        return self.shape(self)

    @property
    def body_bytes(self) -> bytes:
        """The body, encoded."""
        return orjson.dumps(self.body)


def fault_of(
    error: BaseException, shape: ErrorShape = openai_error, *, named: Callable[[str], str] = str
) -> Fault:
    """Say what a client is told about an error, and in which shape.

    `named` writes the names of OpenAI's fields in a text as the API has them. Only errors raised on purpose
    for the client's eyes speak; everything else is a 500 whose text names nothing of the inside.
    """
    told = error if isinstance(error, CobaliError) else InternalError()
    headers = {}
    if isinstance(told, RefusedError):
        headers["retry-after"] = retry_after(told.retry_after_s)
    if told.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    message = HIDDEN if told.code == INTERNAL else str(told)
    return Fault(
        status=told.status,
        type=type_of(told.status),
        message=message if told.param is None else named(message),
        param=told.param and named(told.param),
        code=told.code,
        headers=headers,
        shape=shape,
    )


def http_fault(
    status: int,
    *,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    shape: ErrorShape = openai_error,
) -> Fault:
    """Say that the router found no route, or none for the method."""
    message = HTTP_MESSAGES.get(status, "HTTP error {status} for {method} {path}.")
    return Fault(
        status=status,
        type=type_of(status),
        message=message.format(status=status, method=method, path=path),
        code={404: "unknown_path", 405: "method_not_allowed"}.get(status),
        headers=dict(headers or {}),
        shape=shape,
    )


def is_our_fault(error: BaseException) -> bool:
    """Whether operators need to see the traceback."""
    return not isinstance(error, CobaliError) or error.outcome == "error"


def type_of(status: int) -> str:
    """Return OpenAI's type of the errors with a status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def retry_after(seconds: float) -> str:
    """Return whole seconds, rounded up, at least 1: what the Retry-After header holds."""
    return str(max(1, math.ceil(seconds))) if math.isfinite(seconds) else "1"
