"""POST /v1/responses and what belongs to it."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from cobali_ray.api.body.reading import parse
from cobali_ray.api.door.context import RequestContext
from cobali_ray.api.reply.replies import json_response
from cobali_ray.api.responses.frames import ID_PREFIX, ResponseWriter
from cobali_ray.api.responses.read import read
from cobali_ray.api.responses.schema import ResponsesBody
from cobali_ray.api.routes.generation import Dialect, Generation, ParsedBody
from cobali_ray.api.routes.openapi import BODY_STATUSES, errors, generation_responses, post
from cobali_ray.backend.port import Gone
from cobali_ray.errors import NotStoredError
from cobali_ray.settings import ApiSettings

RESPONSE_PATH = "/v1/responses/{response_id}"
STORED_ROUTES = (
    ("GET", RESPONSE_PATH),
    ("DELETE", RESPONSE_PATH),
    ("GET", f"{RESPONSE_PATH}/input_items"),
    ("POST", f"{RESPONSE_PATH}/cancel"),
)
"""Routes of responses that are kept, which none is here."""


class Responses:
    def __init__(self, generation: Generation, settings: ApiSettings) -> None:
        self._generation, self._settings = generation, settings

    def router(self) -> APIRouter:
        router = APIRouter(tags=["responses"])
        post(router, "/v1/responses", self.create, ResponsesBody, generation_responses())
        post(router, "/v1/responses/input_tokens", self.count, ResponsesBody, errors(*BODY_STATUSES))
        for method, path in STORED_ROUTES:
            router.add_api_route(path, self.kept, methods=[method], include_in_schema=False)
        return router

    async def create(self, http: HttpRequest) -> Response:
        """Create a response, in one piece or as events."""
        return await self._generation.answer(http, self._read)

    async def count(self, http: HttpRequest) -> Response:
        """Count the input tokens, with everything else the model reads."""
        prompted = await self._generation.prompt(http, self._read)
        return json_response({"object": "response.input_tokens", "input_tokens": len(prompted.tokens)})

    async def kept(self, response_id: str) -> None:
        """Say that no response is kept."""
        raise NotStoredError(response_id[:64])

    def _read(self, context: RequestContext, raw: bytes, gone: Gone) -> ParsedBody:
        del gone
        found = read(parse(ResponsesBody, raw), strict=self._settings.strict)
        context.ignore(found.ignored)
        context.named = found.named
        return ParsedBody(found.chat, Dialect(ID_PREFIX, partial(ResponseWriter, found.written)))
