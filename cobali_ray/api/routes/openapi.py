"""What the routes declare of themselves for the OpenAPI page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

SCHEMA_REF = "#/components/schemas/{model}"
_ERRORS = {
    400: "The request is not valid; `param` names the field.",
    401: "A key is needed.",
    403: "The key may not use the model.",
    404: "No such model, or no such path.",
    408: "The body stopped before its end.",
    409: "The slot or the model is busy, or a newer request replaced this one.",
    413: "The body is too large.",
    415: "The body's content encoding is not supported.",
    429: "The queue is full; `Retry-After` says when to come back.",
    500: "The server failed.",
    501: "The server is not set up for this; the message names the setting.",
    503: "The engine is loading or draining; `Retry-After` says when to come back.",
    507: "The model can never fit into memory.",
    504: "The request's deadline passed.",
    529: "The queue is full, or the engine is loading or draining; `Retry-After` says when to come back.",
}

Responses = dict[int | str, dict[str, Any]]


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every answer that is no success."""

    error: ErrorDetail


def errors(*statuses: int, body: type[BaseModel] = ErrorBody) -> Responses:
    schema = {"$ref": SCHEMA_REF.format(model=body.__name__)}
    return {
        status: {"description": _ERRORS[status], "content": {"application/json": {"schema": schema}}}
        for status in statuses
    }


BODY_STATUSES: tuple[int, ...] = (400, 401, 403, 404, 408, 413, 415, 429, 500, 503)
"""What may go wrong wherever a body is read."""
STORE_STATUSES: tuple[int, ...] = (400, 401, 404, 500, 501, 503)
"""What may go wrong where something is looked for in the store."""
MODEL_STATUSES: tuple[int, ...] = (400, 401, 403, 404, 429, 500, 503, 507)
"""What may go wrong where a query names a model, which may have to be loaded."""
KEYS: dict[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


class DeclaredRoute(Route):
    """A route that FastAPI reads when the first request comes, or with the document: all take 50 ms."""

    def __init__(self, methods: set[str], path: str, endpoint: Callable[..., Any], **declared: Any) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.methods = methods  # Starlette's own has HEAD wherever there is GET
        self._declared = {"methods": methods - {"HEAD"}, "response_model": None, **declared}

    @cached_property
    def declared(self) -> APIRoute:
        return APIRoute(self.path, self.endpoint, **self._declared)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        if match is not Match.NONE:
            child_scope["route"] = self
        return match, child_scope

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.app = self.declared.app
        await super().handle(scope, receive, send)


class Routes(list[DeclaredRoute]):
    """The routes of one group of operations."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self._tag = tag

    def add(self, method: str, path: str, endpoint: Callable[..., Any], **declared: Any) -> None:
        self.append(DeclaredRoute({method}, path, endpoint, tags=[self._tag], **declared))

    def get(self, path: str, endpoint: Callable[..., Any], **declared: Any) -> None:
        """Add a route for GET, and for HEAD, of which the server sends only the headers."""
        self.append(DeclaredRoute({"GET", "HEAD"}, path, endpoint, tags=[self._tag], **declared))

    def post(
        self,
        path: str,
        endpoint: Callable[..., Any],
        body: type[BaseModel],
        responses: Responses,
        *,
        needs_body: bool = True,
        **more: Any,
    ) -> None:
        """Add one for POST, which reads its body by itself; `more` is what the document also says of it."""
        schema = {"$ref": SCHEMA_REF.format(model=body.__name__)}
        request = {"required": needs_body, "content": {"application/json": {"schema": schema}}}
        self.add("POST", path, endpoint, responses=responses, openapi_extra={"requestBody": request} | more)


def query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    """Return the declaration of a parameter that the route reads by itself."""
    return {"name": name, "in": "query", "description": description, "schema": schema}


def content(media_type: str, description: str) -> Responses:
    return {200: {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}}


def tells(stream: str) -> Responses:
    """Return the declaration of an answer that is JSON, or a stream of another media type."""
    ok = {
        "description": "The answer, or with `stream` its events.",
        "content": {"application/json": {"schema": {"type": "object"}}, stream: {"schema": {}}},
    }
    return {200: ok}


def generation_responses() -> Responses:
    """Return what the two generating routes may answer."""
    return tells("text/event-stream") | errors(*BODY_STATUSES, 409, 504, 507)


TAGS = {
    "generation": "Chats and completions, as OpenAI's API has them.",
    "embeddings": "Vectors of texts, reranking and scores.",
    "responses": "OpenAI's Responses API.",
    "messages": "Anthropic's Messages API.",
    "ollama": "Ollama's API.",
    "llama-server": "llama-server's own routes.",
    "models and health": "Models, health, metrics, tokens and adapters.",
    "batches": "Files and batches, as OpenAI's API has them.",
    "chats": "The page's conversations, where they are kept on the server.",
    "requests": "Progress of a request; pause and resume.",
    "cache": "The prefix cache and its slots.",
    "ticks": "What the scheduler did, tick by tick.",
    "page": "The web page and this documentation.",
}
"""The groups of operations, in the order in which they are shown."""


def describe(app: FastAPI, *, keyed: bool, is_open: Callable[[str], bool]) -> None:
    """Make the document true: add the schemas that routes point to, and, if `keyed`, how keys are sent."""

    @cache  # it takes tens of milliseconds, and the event loop belongs to all
    def openapi() -> dict[str, Any]:
        routes = [route.declared for route in app.routes if isinstance(route, DeclaredRoute)]
        document = get_openapi(title=app.title, version=app.version, routes=routes)
        named = set(re.findall(SCHEMA_REF.format(model=r"(\w+Body)"), orjson.dumps(document).decode()))
        shapes = {shape.__name__: shape for shape in _below(BaseModel) if shape.__name__ in named}
        _, definitions = models_json_schema(
            [(shape, "validation") for shape in shapes.values()], ref_template=SCHEMA_REF
        )
        document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
        _title(document)
        components = document.setdefault("components", {})
        components.setdefault("schemas", {}).update(definitions["$defs"])
        components["securitySchemes"] = KEYS
        for path, operations in document["paths"].items():
            for operation in operations.values():
                # FastAPI's own answer to bad input, which our routes judge themselves.
                operation["responses"].pop("422", None)
                if keyed and not is_open(path):
                    operation["security"] = [{name: []} for name in KEYS]
        for name in ("HTTPValidationError", "ValidationError"):
            components["schemas"].pop(name, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _title(document: dict[str, Any]) -> None:
    """Give each operation a title: the first line of its docstring, or which other path is the same."""
    first: dict[bytes, str] = {}
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            own = {"operationId", "summary", "tags"}
            meaning = {name: value for name, value in operation.items() if name not in own}
            original = first.setdefault(orjson.dumps([verb, meaning]), path)
            line = operation["description"].partition("\n")[0].removesuffix(".")
            operation["summary"] = line if original == path else f"The same as {original}"


def _below(shape: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for subclass in shape.__subclasses__():
        yield subclass
        yield from _below(subclass)
