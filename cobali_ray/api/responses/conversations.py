"""/v1/conversations: items, stored apart from the responses that add them."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson
from fastapi import Request as HttpRequest
from fastapi import Response

from cobali_ray.api.body.fields import read_as
from cobali_ray.api.body.reading import ShapeT
from cobali_ray.api.call.intake import Intake
from cobali_ray.api.door.context import RequestContext, owner_of
from cobali_ray.api.door.keeping import Keeping, page
from cobali_ray.api.reply.replies import json_response
from cobali_ray.api.responses.items import read_input, with_ids
from cobali_ray.api.responses.routes import LISTED, requested_page
from cobali_ray.api.responses.schema import ConversationBody, ConversationItemsBody, ConversationUpdateBody
from cobali_ray.api.routes.openapi import BODY_STATUSES, STORE_STATUSES, Routes, errors
from cobali_ray.settings import ApiSettings
from cobali_ray.store import conversations
from cobali_ray.store.conversations import ConversationRecord

_Read = tuple[Any, list[dict[str, Any]]]


class ConversationRoutes:
    def __init__(self, keeping: Keeping, settings: ApiSettings, intake: Intake) -> None:
        self._keeping, self._settings, self._intake = keeping, settings, intake

    def routes(self) -> Routes:
        routes = Routes("responses")
        wrong, takes = errors(*STORE_STATUSES), errors(*BODY_STATUSES, 501)
        path = "/v1/conversations/{conversation_id}"
        item = f"{path}/items/{{item_id}}"
        routes.post("/v1/conversations", self.create, ConversationBody, takes)
        routes.get(path, self.find, responses=wrong)
        routes.post(path, self.update, ConversationUpdateBody, takes)
        routes.add("DELETE", path, self.delete, responses=wrong)
        routes.post(f"{path}/items", self.add, ConversationItemsBody, takes)
        routes.get(f"{path}/items", self.items, responses=wrong, openapi_extra=LISTED)
        routes.get(item, self.item, responses=wrong)
        routes.add("DELETE", item, self.delete_item, responses=wrong)
        return routes

    async def create(self, http: HttpRequest) -> Response:
        """Create a conversation."""
        keeping = self._keeping
        body, items = await self._take(http, ConversationBody)
        new = (owner_of(http), body.metadata or {}, items)
        record = await keeping(conversations.create, *new, keeping.now_s(), keeping.quota())
        return json_response(_written(record))

    async def find(self, http: HttpRequest, conversation_id: str) -> Response:
        """Describe a conversation."""
        record = await self._keeping(conversations.find, owner_of(http), conversation_id)
        return json_response(_written(record))

    async def update(self, http: HttpRequest, conversation_id: str) -> Response:
        """Change the metadata of a conversation."""
        self._keeping.require()
        body = await self._intake.read(http, ConversationUpdateBody, frozenset(), {})
        if "metadata" not in body.model_fields_set:
            return await self.find(http, conversation_id)
        owner = owner_of(http)
        record = await self._keeping(conversations.update, owner, conversation_id, body.metadata or {})
        return json_response(_written(record))

    async def delete(self, http: HttpRequest, conversation_id: str) -> Response:
        """Delete a conversation; its responses stay, but cannot be continued."""
        await self._keeping(conversations.delete, owner_of(http), conversation_id)
        return json_response({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    async def add(self, http: HttpRequest, conversation_id: str) -> Response:
        """Add items to a conversation."""
        keeping, owner = self._keeping, owner_of(http)
        _, items = await self._take(http, ConversationItemsBody)
        await keeping(conversations.add, owner, conversation_id, items, keeping.quota())
        return json_response(page(items, len(items)))

    async def items(self, http: HttpRequest, conversation_id: str) -> Response:
        """List the items of a conversation."""
        after, limit, newest = requested_page(http)
        owner = owner_of(http)
        rows = await self._keeping(
            conversations.listed, owner, conversation_id, after=after, limit=limit + 1, newest=newest
        )
        return json_response(page([orjson.loads(row) for row in rows], limit))

    async def item(self, http: HttpRequest, conversation_id: str, item_id: str) -> Response:
        """Return an item of a conversation."""
        owner = owner_of(http)
        row = await self._keeping(conversations.item, owner, conversation_id, item_id)
        return Response(row, media_type="application/json")

    async def delete_item(self, http: HttpRequest, conversation_id: str, item_id: str) -> Response:
        """Delete an item of a conversation."""
        owner = owner_of(http)
        return json_response(
            _written(await self._keeping(conversations.delete_item, owner, conversation_id, item_id))
        )

    async def _take(self, http: HttpRequest, shape: type[ShapeT]) -> _Read:
        """Return a body, and its items as they are kept."""
        self._keeping.require()
        return await self._intake.take(http, partial(self._read, shape))

    def _read(self, shape: type[ShapeT], context: RequestContext, raw: bytes) -> _Read:
        strict = self._settings.strict
        body = read_as(shape, context, raw, frozenset(), {}, strict=strict)
        items: list[dict[str, Any]] = getattr(body, "items", None) or []
        parsed = read_input(items, None, strict=strict, field="items")
        context.ignore(parsed.ignored)
        return body, with_ids(items)


def _written(record: ConversationRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": "conversation",
        "created_at": record.created_s,
        "metadata": record.metadata,
    }
