"""/v1/files: files that batches are made of, and those that they write."""

from __future__ import annotations

from typing import Any

from fastapi import Request as HttpRequest
from fastapi import Response
from starlette.types import Receive, Scope, Send

from cobali_ray.api.batches.upload import take_upload
from cobali_ray.api.body.params import whole_number
from cobali_ray.api.body.reading import check_choice
from cobali_ray.api.door.context import owner_of
from cobali_ray.api.door.keeping import Keeping, page
from cobali_ray.api.engines.apart import unless_gone
from cobali_ray.api.reply.replies import json_response
from cobali_ray.api.routes.openapi import STORE_STATUSES, Routes, content, errors, query
from cobali_ray.errors import StoreFailedError
from cobali_ray.settings import ApiSettings
from cobali_ray.store import batches, files
from cobali_ray.store.files import FileRecord

JSON_LINES = "application/jsonl"
MAX_LISTED = 10_000
_LISTED: dict[str, Any] = {
    "parameters": [
        query("purpose", "Only files of this purpose: batch or batch_output.", type="string"),
        query("after", "The id of the file before the first one.", type="string"),
        query("limit", "Page size.", type="integer", minimum=1, maximum=MAX_LISTED, default=MAX_LISTED),
        query("order", "By creation time: asc or desc.", type="string", default="desc"),
    ]
}
_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": [files.INPUT]},
                    },
                }
            }
        },
    }
}


class FileRoutes:
    def __init__(self, keeping: Keeping, settings: ApiSettings) -> None:
        self._keeping, self._max_line_bytes = keeping, settings.max_body_bytes

    def routes(self) -> Routes:
        routes = Routes("batches")
        wrong = errors(*STORE_STATUSES)
        path = "/v1/files/{file_id}"
        refused = errors(*STORE_STATUSES, 408, 413, 415)
        routes.add("POST", "/v1/files", self.upload, responses=refused, openapi_extra=_FORM)
        routes.get("/v1/files", self.listing, responses=wrong, openapi_extra=_LISTED)
        routes.get(path, self.find, responses=wrong)
        routes.get(f"{path}/content", self.content, responses=content(JSON_LINES, "The file.") | wrong)
        routes.add("DELETE", path, self.delete, responses=wrong | errors(409))
        return routes

    async def upload(self, http: HttpRequest) -> Response:
        """Upload a file of requests; each of its lines is checked."""
        owner = owner_of(http)
        return json_response(written(await take_upload(http, owner, self._keeping, self._max_line_bytes)))

    async def listing(self, http: HttpRequest) -> Response:
        """List this key's files."""
        params = http.query_params
        check_choice("order", order := params.get("order", "desc"), ("asc", "desc"))
        limit = whole_number(params.get("limit", str(MAX_LISTED)), "limit", low=1, high=MAX_LISTED)
        records = await self._keeping(
            files.listed,
            owner_of(http),
            purpose=params.get("purpose"),
            after=params.get("after"),
            limit=limit + 1,
            newest=order == "desc",
        )
        return json_response(page([written(record) for record in records], limit))

    async def find(self, http: HttpRequest, file_id: str) -> Response:
        """Describe a file."""
        return json_response(written(await self._keeping(files.find, owner_of(http), file_id)))

    async def content(self, http: HttpRequest, file_id: str) -> Response:
        """Return a file."""
        record = await self._keeping(files.find, owner_of(http), file_id)
        return FileReply(self._keeping, record, JSON_LINES)

    async def delete(self, http: HttpRequest, file_id: str) -> Response:
        """Delete a file, unless a batch still needs it."""
        await self._keeping(_delete, owner_of(http), file_id)
        return json_response({"id": file_id, "object": "file", "deleted": True})


def _delete(db: Any, owner: str, file_id: str) -> None:
    files.find(db, owner, file_id)  # nobody learns what another's is used for
    batches.require_unused(db, file_id)
    files.delete(db, owner, file_id)


def written(file: FileRecord) -> dict[str, Any]:
    """Return a file as OpenAI describes it."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_s,
        "expires_at": file.expires_s,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


class FileReply(Response):
    """A file as it is read, about a megabyte at a time."""

    def __init__(self, keeping: Keeping, file: FileRecord, media_type: str) -> None:
        super().__init__(media_type=media_type)
        self._keeping, self._file = keeping, file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await unless_gone(receive, self._send(send, with_body=scope["method"] != "HEAD"))

    async def _send(self, send: Send, *, with_body: bool) -> None:
        size = str(self._file.bytes).encode()
        headers = [(b"content-type", str(self.media_type).encode()), (b"content-length", size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        n_left, after_n = self._file.bytes if with_body else 0, -1
        while n_left > 0:
            block = await self._keeping(files.block, self._file.id, after_n)
            if block is None:
                raise StoreFailedError("the file was deleted while it was read")
            data, after_n = block
            n_left -= len(data)
            await send({"type": "http.response.body", "body": data, "more_body": n_left > 0})
        if not self._file.bytes or not with_body:
            await send({"type": "http.response.body", "body": b""})
