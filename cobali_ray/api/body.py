"""The bytes of a body -> a wire model, read once and never beyond the limit."""

from __future__ import annotations

from typing import TypeVar

import orjson
from fastapi import Request as HttpRequest
from pydantic import ValidationError

from cobali_ray.api.schema import Shape
from cobali_ray.errors import BodyTooLargeError, InvalidParameterError, MalformedBodyError

ShapeT = TypeVar("ShapeT", bound=Shape)


async def read_body(http: HttpRequest, limit_bytes: int) -> bytes:
    """Return the whole body. Raises BodyTooLargeError as soon as it is over the limit, announced or not."""
    announced = http.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and len(announced) < 20 and int(announced) > limit_bytes:
        raise BodyTooLargeError(limit_bytes)
    pieces, n_bytes = [], 0
    async for piece in http.stream():
        n_bytes += len(piece)
        if n_bytes > limit_bytes:
            raise BodyTooLargeError(limit_bytes)
        pieces.append(piece)
    return b"".join(pieces)


def parse(shape: type[ShapeT], raw: bytes) -> ShapeT:
    """Return the body as its model. Raises MalformedBodyError or InvalidParameterError."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        # The parser's own message may quote the body, so only the place is told.
        raise MalformedBodyError(f"no valid JSON at line {error.lineno} column {error.colno}") from None
    if not isinstance(value, dict):
        raise MalformedBodyError("the outermost value is something else")
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise _first(error) from None


def _first(error: ValidationError) -> InvalidParameterError:
    detail = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = ""
    for step in detail["loc"]:
        # Steps may be keys of the client's making, hence the cut.
        param += f"[{step}]" if isinstance(step, int) else f".{step[:64]}" if param else step[:64]
    if detail["type"] == "missing":
        return InvalidParameterError(param, f"missing required parameter: {param}")
    message = detail["msg"]
    return InvalidParameterError(param, f"{param}: {message[:1].lower()}{message[1:]}")
