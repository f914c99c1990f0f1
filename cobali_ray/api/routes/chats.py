"""/v1/chats: where the page keeps its conversations, if a key wants them on the server."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

from fastapi import Request as HttpRequest
from fastapi import Response
from pydantic import Field

from cobali_ray.api.body.params import whole_number
from cobali_ray.api.body.schema import BodyModel
from cobali_ray.api.call.intake import Intake
from cobali_ray.api.door.context import owner_of
from cobali_ray.api.door.keeping import Keeping
from cobali_ray.api.reply.replies import json_response
from cobali_ray.api.routes.openapi import BODY_STATUSES, STORE_STATUSES, Routes, errors, query
from cobali_ray.errors import InvalidParameterError
from cobali_ray.store import chats

MAX_LISTED: Final = 500
_SANE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_AFTER = query(
    "after", "Return only what has changed since this version.", type="integer", minimum=0, default=0
)


class KeptChatBody(BodyModel):
    """POST /v1/chats/{chat_id}."""

    version: int = Field(ge=0, description="The version that the client knows; 0: none.")
    summary: str = Field(max_length=4096, description="The text that a list shows.")
    data: str = Field(description="The chat.")


def shelf_of(salt: str) -> str:
    """Return a name for the chats of a key, which does not reveal it; "all" where no key is needed."""
    return hashlib.sha256(b"chats:" + salt.encode()).hexdigest()[:16] if salt else "all"


class KeptChats:
    def __init__(self, keeping: Keeping, intake: Intake) -> None:
        self._keeping, self._intake = keeping, intake

    def routes(self) -> Routes:
        routes = Routes("chats")
        path, wrong = "/v1/chats/{chat_id}", errors(*STORE_STATUSES)
        listed = {"parameters": [_AFTER]}
        routes.get("/v1/chats", self.listing, responses=errors(400, 401, 500, 501, 503), openapi_extra=listed)
        routes.get(path, self.find, responses=wrong)
        routes.post(path, self.write, KeptChatBody, errors(*BODY_STATUSES, 409, 501))
        routes.add("DELETE", path, self.delete, responses=wrong)
        return routes

    async def listing(self, http: HttpRequest) -> Response:
        """List this key's chats, or what has changed since a version, the oldest change first."""
        after = whole_number(http.query_params.get("after", "0"), "after", low=0, high=2**63 - 1)
        rows = await self._keeping(chats.listed, owner_of(http), after, MAX_LISTED + 1)
        data = [
            _described(
                row.id,
                row.version,
                **({"deleted": True} if row.summary is None else {"summary": row.summary}),
            )
            for row in rows[:MAX_LISTED]
        ]
        return json_response({"object": "list", "data": data, "has_more": len(rows) > MAX_LISTED})

    async def find(self, http: HttpRequest, chat_id: str) -> Response:
        """Return a chat."""
        version, data = await self._keeping(chats.find, owner_of(http), chat_id, self._keeping.until_s())
        return json_response(_described(chat_id, version, data=data))

    async def write(self, http: HttpRequest, chat_id: str) -> Response:
        """Write a chat, unless it has changed since the client's version."""
        keeping, owner = self._keeping, owner_of(http)
        keeping.require()
        if not _SANE_ID.fullmatch(chat_id):
            raise InvalidParameterError("chat_id", "must be 1 to 64 letters, digits, - and _")
        body = await self._intake.read(http, KeptChatBody)
        texts = (body.summary, body.data)
        version = await keeping(chats.write, owner, chat_id, body.version, texts, keeping.quota())
        return json_response(_described(chat_id, version))

    async def delete(self, http: HttpRequest, chat_id: str) -> Response:
        """Delete a chat; the list reports it to other clients."""
        await self._keeping(chats.delete, owner_of(http), chat_id, self._keeping.until_s())
        return json_response({"id": chat_id, "object": "chat", "deleted": True})


def _described(chat_id: str, version: int, **more: Any) -> dict[str, Any]:
    return {"id": chat_id, "object": "chat", "version": version, **more}
