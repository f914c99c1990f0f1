"""An error -> status, body and headers, in OpenAI's shape. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from cobali_ray.errors import (
    BadRequestError,
    BodyTimeoutError,
    BodyTooLargeError,
    CobaliError,
    DeadlineExceededError,
    DrainingError,
    EngineDiedError,
    LoadingError,
    QueueFullError,
    RefusedError,
    RequestCancelledError,
    UnknownModelError,
    UnsupportedEncodingError,
    WrongKeyError,
)

HTTP_MESSAGES: Mapping[int, str] = {
    404: "Unknown path: {method} {path}.",
    405: "Method {method} is not allowed for {path}.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One error as a client sees it."""

    status: int
    type: str
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body, also what a stream says when it fails halfway."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def body_bytes(self) -> bytes:
        """The body, encoded."""
        return orjson.dumps(self.body)


def fault_of(error: BaseException) -> Fault:
    """Say what a client is told about an error.

    Only errors raised on purpose for the client's eyes speak; everything else is a 500 whose text names
    nothing of the inside.
    """
    match error:
        case BadRequestError():
            return _bad_request(error)
        case RefusedError():
            return _refused(error)
        case DeadlineExceededError():
            return Fault(
                status=504, type="timeout", message=str(error), param="timeout_s", code="deadline_exceeded"
            )
        case EngineDiedError():
            return Fault(status=500, type="server_error", message=str(error), code="engine_died")
        case RequestCancelledError():
            return Fault(status=500, type="server_error", message=str(error), code="request_cancelled")
        case _:
            return Fault(
                status=500,
                type="server_error",
                message="The server failed on this request; its log has the cause under the x-request-id.",
                code="internal_error",
            )


def http_fault(status: int, *, method: str, path: str, headers: Mapping[str, str] | None = None) -> Fault:
    """Say that the router found no route, or none for the method."""
    message = HTTP_MESSAGES.get(status, "HTTP error {status} for {method} {path}.")
    return Fault(
        status=status,
        type="invalid_request_error" if status < 500 else "server_error",
        message=message.format(status=status, method=method, path=path),
        code={404: "unknown_path", 405: "method_not_allowed"}.get(status),
        headers=dict(headers or {}),
    )


def is_our_fault(error: BaseException) -> bool:
    """Whether operators need to see the traceback."""
    expected = (BadRequestError, RefusedError, DeadlineExceededError, RequestCancelledError)
    return not isinstance(error, CobaliError) or not isinstance(error, expected)


_STATUSES: Mapping[type[BadRequestError], int] = {
    WrongKeyError: 401,
    UnknownModelError: 404,
    BodyTimeoutError: 408,
    BodyTooLargeError: 413,
    UnsupportedEncodingError: 415,
}


def _bad_request(error: BadRequestError) -> Fault:
    kind, headers = "invalid_request_error", {}
    if isinstance(error, WrongKeyError):
        kind, headers = "authentication_error", {"www-authenticate": "Bearer"}
    return Fault(
        status=_STATUSES.get(type(error), 400),
        type=kind,
        message=str(error),
        param=error.param,
        code=error.code,
        headers=headers,
    )


def _refused(error: RefusedError) -> Fault:
    headers = {"retry-after": retry_after(error.retry_after_s)}
    if isinstance(error, QueueFullError):
        return Fault(
            status=429, type="rate_limit_error", message=str(error), code="queue_full", headers=headers
        )
    code = {DrainingError: "draining", LoadingError: "loading"}.get(type(error), "unavailable")
    return Fault(status=503, type="server_error", message=str(error), code=code, headers=headers)


def retry_after(seconds: float) -> str:
    """Return whole seconds, rounded up, at least 1: what the Retry-After header holds."""
    return str(max(1, math.ceil(seconds))) if math.isfinite(seconds) else "1"
