"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from functools import partial

from fastapi import Request as HttpRequest
from fastapi import Response

from cobali_ray.api.anthropic.answer import MessageWriter
from cobali_ray.api.anthropic.body import AnthropicErrorBody, CountBody, MessagesBody
from cobali_ray.api.anthropic.read import NEUTRAL_FIELDS, REFUSED_FIELDS, chat_of
from cobali_ray.api.body.fields import read_as
from cobali_ray.api.door.context import RequestContext
from cobali_ray.api.door.faults import OVERLOADED
from cobali_ray.api.reply.replies import json_response
from cobali_ray.api.routes.generation import Dialect, Generation, ParsedBody
from cobali_ray.api.routes.openapi import Routes, errors, tells
from cobali_ray.settings import ApiSettings

MESSAGES = Dialect("msg_", MessageWriter)
BODY_STATUSES = (400, 401, 403, 404, 408, 413, 415, 429, 500, OVERLOADED)


class Messages:
    def __init__(self, generation: Generation, settings: ApiSettings) -> None:
        self._generation, self._settings = generation, settings

    def routes(self) -> Routes:
        routes = Routes("messages")
        wrong = partial(errors, *BODY_STATUSES, body=AnthropicErrorBody)
        answers = tells("text/event-stream") | wrong(409, 504, 507)
        routes.post("/v1/messages", self.messages, MessagesBody, answers)
        routes.post("/v1/messages/count_tokens", self.count, CountBody, wrong())
        return routes

    async def messages(self, http: HttpRequest) -> Response:
        """Create a message."""
        return await self._generation.answer(http, partial(self._read, MessagesBody))

    async def count(self, http: HttpRequest) -> Response:
        """Count the input tokens of a message."""
        prompted = await self._generation.prompt(http, partial(self._read, CountBody))
        return json_response({"input_tokens": len(prompted.tokens)})

    # -- in a thread of the intake

    def _read(self, shape: type[CountBody], context: RequestContext, raw: bytes) -> ParsedBody:
        body = read_as(shape, context, raw, NEUTRAL_FIELDS, REFUSED_FIELDS, strict=self._settings.strict)
        chat, context.named = chat_of(body)
        return ParsedBody(chat, MESSAGES)
