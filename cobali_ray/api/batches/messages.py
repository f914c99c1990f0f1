"""/v1/messages/batches: Anthropic's Message Batches, over the same store and answered in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import Request as HttpRequest
from fastapi import Response
from pydantic import Field

from cobali_ray.api.anthropic.body import AnthropicErrorBody
from cobali_ray.api.batches.files import FileReply
from cobali_ray.api.body.fields import read_as
from cobali_ray.api.body.params import whole_number
from cobali_ray.api.body.schema import BodyModel, Many
from cobali_ray.api.call.intake import Intake
from cobali_ray.api.door.context import RequestContext, context_of, owner_of
from cobali_ray.api.door.keeping import Keeping
from cobali_ray.api.reply.replies import json_response
from cobali_ray.api.routes.openapi import BODY_STATUSES, STORE_STATUSES, Routes, content, errors, query
from cobali_ray.errors import BatchStateError, InvalidParameterError, NotInStoreError
from cobali_ray.settings import ApiSettings
from cobali_ray.store import batches, files
from cobali_ray.store.batches import BatchRecord, NewBatch
from cobali_ray.store.connection import StoreConnection
from cobali_ray.store.files import FileRecord, Piece, StoreQuota
from cobali_ray.store.lines import ANTHROPIC, MESSAGES, SeenIds, parse_message_request
from cobali_ray.store.states import BatchStatus

MAX_LISTED, N_LISTED = 1000, 20
_LISTED: dict[str, Any] = {
    "parameters": [
        query("after_id", "The id of the batch before the first one.", type="string"),
        query("before_id", "The id of the batch after the last one.", type="string"),
        query("limit", "Page size.", type="integer", minimum=1, maximum=MAX_LISTED, default=N_LISTED),
    ]
}


class MessageBatchBody(BodyModel):
    """POST /v1/messages/batches."""

    requests: Annotated[
        Many[dict[str, Any]],
        Field(
            min_length=1,
            max_length=100_000,
            description="Each with a `custom_id`, and as `params` the body of a message.",
        ),
    ]


class MessageBatchRoutes:
    def __init__(
        self, keeping: Keeping, settings: ApiSettings, intake: Intake, wake: Callable[[], None]
    ) -> None:
        """`wake` says that there is something to do."""
        self._keeping, self._settings, self._intake, self._wake = keeping, settings, intake, wake

    def routes(self) -> Routes:
        routes = Routes("messages")
        wrong = partial(errors, *STORE_STATUSES, body=AnthropicErrorBody)
        path = "/v1/messages/batches/{batch_id}"
        answers = errors(*BODY_STATUSES, 501, body=AnthropicErrorBody)
        routes.post("/v1/messages/batches", self.create, MessageBatchBody, answers)
        routes.get("/v1/messages/batches", self.listing, responses=wrong(), openapi_extra=_LISTED)
        routes.get(path, self.find, responses=wrong())
        results = content("application/x-jsonl", "A result for each request.") | wrong(409)
        routes.get(f"{path}/results", self.results, responses=results)
        routes.add("POST", f"{path}/cancel", self.cancel, responses=wrong(409))
        routes.add("DELETE", path, self.delete, responses=wrong(409))
        return routes

    async def create(self, http: HttpRequest) -> Response:
        """Start a batch of messages."""
        context, keeping = context_of(http), self._keeping
        keeping.require()
        pieces = await self._intake.take(http, self._read)
        caller, now_s = context.caller, keeping.now_s()
        batch = await keeping(_create, caller.salt, caller.tenant, pieces, now_s, keeping.quota())
        self._wake()
        return json_response(written(batch, http))

    async def listing(self, http: HttpRequest) -> Response:
        """List the message batches of this key, the newest first."""
        params = http.query_params
        limit = whole_number(params.get("limit", str(N_LISTED)), "limit", low=1, high=MAX_LISTED)
        after, before = params.get("after_id"), params.get("before_id")
        if after is not None and before is not None:
            raise InvalidParameterError("before_id", "must not be given with after_id")
        records = await self._keeping(
            batches.listed,
            owner_of(http),
            ANTHROPIC,
            limit=limit + 1,
            after=after,
            before=before,
        )
        more = len(records) > limit
        page = records[-limit:] if before is not None else records[:limit]
        data = [written(batch, http) for batch in page]
        ids = {
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
        }
        return json_response({"data": data, "has_more": more, **ids})

    async def find(self, http: HttpRequest, batch_id: str) -> Response:
        """Show a message batch and its progress."""
        batch = await self._keeping(batches.find, owner_of(http), batch_id, ANTHROPIC)
        return json_response(written(batch, http))

    async def results(self, http: HttpRequest, batch_id: str) -> Response:
        """Return the results of a message batch that has ended, in the order of its requests."""
        owner = owner_of(http)
        return FileReply(self._keeping, await self._keeping(_results, owner, batch_id), "application/x-jsonl")

    async def cancel(self, http: HttpRequest, batch_id: str) -> Response:
        """Cancel a message batch; its results so far are kept."""
        owner, keeping = owner_of(http), self._keeping
        batch = await keeping(batches.cancel, owner, batch_id, ANTHROPIC, keeping.now_s())
        self._wake()
        return json_response(written(batch, http))

    async def delete(self, http: HttpRequest, batch_id: str) -> Response:
        """Delete a message batch that has ended, and its results."""
        await self._keeping(batches.delete, owner_of(http), batch_id, ANTHROPIC)
        return json_response({"id": batch_id, "type": "message_batch_deleted"})

    def _read(self, context: RequestContext, raw: bytes) -> list[Piece]:
        body = read_as(MessageBatchBody, context, raw, frozenset(), {}, strict=self._settings.strict)
        seen, pieces = SeenIds(), []
        for number, entry in enumerate(body.requests, 1):
            request = parse_message_request(number, entry)
            seen.add(number, request.custom_id)
            line = {"custom_id": request.custom_id, "params": request.body}
            pieces.append(Piece(number, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE), request))
        return pieces


def _create(
    db: StoreConnection, owner: str, tenant: str, pieces: Sequence[Piece], now_s: int, quota: StoreQuota
) -> BatchRecord:
    file_id = files.begin(db, owner, files.INTERNAL, "", now_s, quota)
    files.append(db, file_id, pieces, now_s, quota)
    files.complete(db, file_id, "requests", quota.kept_until_s)
    new = NewBatch(owner, tenant, ANTHROPIC, MESSAGES, file_id)
    return batches.create(db, new, now_s, quota)


def _results(db: StoreConnection, owner: str, batch_id: str) -> FileRecord:
    batch = batches.find(db, owner, batch_id, ANTHROPIC)
    if not batch.over:
        raise BatchStateError(batch_id, batch.status, "read before it has ended")
    if (file := files.find_own(db, batch.output_file_id)) is None:
        raise NotInStoreError("result of a batch", batch_id)
    return file


def written(batch: BatchRecord, http: HttpRequest) -> dict[str, Any]:
    """Return a batch as Anthropic describes it."""
    ended = max(batch.times.values(), default=batch.created_s) if batch.over else None
    cancelling = batch.status is BatchStatus.CANCELLING
    outcome = "expired" if batch.status is BatchStatus.EXPIRED else "canceled"
    left = {"processing": 0, "canceled": 0, "expired": 0}
    left[outcome if batch.over else "processing"] = batch.n_left
    url = f"{str(http.base_url).rstrip('/')}/v1/messages/batches/{batch.id}/results"
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "canceling" if cancelling else "ended" if batch.over else "in_progress",
        "request_counts": left | {"succeeded": batch.n_completed, "errored": batch.n_failed},
        "created_at": _time(batch.created_s),
        "expires_at": _time(batch.expires_s),
        "ended_at": _time(ended),
        "cancel_initiated_at": _time(batch.times.get(BatchStatus.CANCELLING)),
        "archived_at": None,
        "results_url": url if batch.over else None,
    }


def _time(unix_s: int | None) -> str | None:
    """Write a time as RFC 3339 has it."""
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat()
