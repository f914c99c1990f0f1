"""What the routes declare of themselves for the OpenAPI page."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from cobali_ray.api.schema import ChatBody, CompletionBody, DetokenizeBody, ErrorBody, TokenizeBody

SCHEMA_REF = "#/components/schemas/{model}"
SHAPES: tuple[type[BaseModel], ...] = (ChatBody, CompletionBody, TokenizeBody, DetokenizeBody, ErrorBody)

_ERRORS = {
    400: "The request cannot be done as asked; `param` names the field.",
    401: "A key is needed.",
    404: "No such model.",
    413: "The body is too large.",
    429: "The queue is full; `Retry-After` says when to come back.",
    500: "The server failed.",
    503: "The engine is loading or draining; `Retry-After` says when to come back.",
    504: "The request's deadline passed.",
}

Responses = dict[int | str, dict[str, Any]]


def errors(*statuses: int) -> Responses:
    """Return the declarations of some error answers."""
    schema = {"$ref": SCHEMA_REF.format(model=ErrorBody.__name__)}
    return {
        status: {"description": _ERRORS[status], "content": {"application/json": {"schema": schema}}}
        for status in statuses
    }


def generation_responses() -> Responses:
    """Return what the two generating routes may answer."""
    ok = {
        "description": "The answer, or with `stream` its events.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
    return {200: ok, **errors(*_ERRORS)}


def takes(body: type[BaseModel]) -> dict[str, Any]:
    """Return the declaration of a body that the route reads by itself."""
    schema = {"$ref": SCHEMA_REF.format(model=body.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe(app: FastAPI) -> None:
    """Add the schemas that `takes` and `errors` point to."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        _, definitions = models_json_schema(
            [(model, "validation") for model in SHAPES], ref_template=SCHEMA_REF
        )
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        return document

    app.openapi = openapi  # type: ignore[method-assign]
