"""/v1/batches: OpenAI's clients make them of a file, and ask about them later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import Request as HttpRequest
from fastapi import Response
from pydantic import Field

from cobali_ray.api.body.params import whole_number
from cobali_ray.api.body.reading import check_choice
from cobali_ray.api.body.schema import BodyModel
from cobali_ray.api.call.intake import Intake
from cobali_ray.api.door.context import context_of, owner_of
from cobali_ray.api.door.keeping import Keeping, page
from cobali_ray.api.reply.replies import json_response
from cobali_ray.api.responses.schema import Metadata
from cobali_ray.api.routes.openapi import BODY_STATUSES, STORE_STATUSES, Routes, errors, query
from cobali_ray.errors import InvalidParameterError, NotInStoreError
from cobali_ray.store import batches, files
from cobali_ray.store.batches import BatchRecord, NewBatch
from cobali_ray.store.connection import StoreConnection
from cobali_ray.store.files import StoreQuota
from cobali_ray.store.lines import ENDPOINTS, OPENAI
from cobali_ray.store.states import BatchStatus

MAX_LISTED, N_LISTED = 100, 20
_LISTED: dict[str, Any] = {
    "parameters": [
        query("after", "The id of the batch before the first one.", type="string"),
        query("limit", "Page size.", type="integer", minimum=1, maximum=MAX_LISTED, default=N_LISTED),
    ]
}


class ExpiresAfter(BodyModel):
    """How long something is kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=30 * 24 * 3600)]


class BatchBody(BodyModel):
    """POST /v1/batches."""

    input_file_id: Annotated[
        str, Field(max_length=64, description="The id of a file that was uploaded with the purpose `batch`.")
    ]
    endpoint: Annotated[str, Field(description=f"What all its lines ask: {', '.join(ENDPOINTS)}.")]
    completion_window: Literal["24h"] = Field(
        description="24h: what has no answer by then is answered by saying so."
    )
    metadata: Metadata | None = Field(
        None, description="At most 16 texts by name, which come back with the batch."
    )
    output_expires_after: ExpiresAfter | None = Field(
        None, description="How long its answers are kept; at most `stored_days`."
    )


class BatchRoutes:
    def __init__(self, keeping: Keeping, intake: Intake, wake: Callable[[], None]) -> None:
        """`wake` says that there is something to do."""
        self._keeping, self._intake, self._wake = keeping, intake, wake

    def routes(self) -> Routes:
        routes = Routes("batches")
        wrong = errors(*STORE_STATUSES)
        path = "/v1/batches/{batch_id}"
        routes.post("/v1/batches", self.create, BatchBody, errors(*BODY_STATUSES, 501))
        routes.get("/v1/batches", self.listing, responses=wrong, openapi_extra=_LISTED)
        routes.get(path, self.find, responses=wrong)
        routes.add("POST", f"{path}/cancel", self.cancel, responses=wrong | errors(409))
        return routes

    async def create(self, http: HttpRequest) -> Response:
        """Start a batch, which answers every line of a file."""
        context, keeping = context_of(http), self._keeping
        keeping.require()
        body = await self._intake.read(http, BatchBody, frozenset(), {})
        check_choice("endpoint", body.endpoint, ENDPOINTS)
        kept_s = None if body.output_expires_after is None else body.output_expires_after.seconds
        caller = context.caller
        new = NewBatch(
            caller.salt, caller.tenant, OPENAI, body.endpoint, body.input_file_id, body.metadata or {}
        )
        batch = await keeping(_create, new, keeping.now_s(), keeping.quota(kept_s))
        self._wake()
        return json_response(written(batch, set()))

    async def listing(self, http: HttpRequest) -> Response:
        """List the batches of this key, the newest first."""
        params, owner = http.query_params, owner_of(http)
        limit = whole_number(params.get("limit", str(N_LISTED)), "limit", low=1, high=MAX_LISTED)
        rows = await self._keeping(_listed, owner, limit + 1, params.get("after"))
        return json_response(page([written(*row) for row in rows], limit))

    async def find(self, http: HttpRequest, batch_id: str) -> Response:
        """Show a batch and its progress."""
        batch, readable = await self._keeping(_find, owner_of(http), batch_id)
        return json_response(written(batch, readable))

    async def cancel(self, http: HttpRequest, batch_id: str) -> Response:
        """Cancel a batch; its answers so far are kept."""
        owner, keeping = owner_of(http), self._keeping
        batch = await keeping(batches.cancel, owner, batch_id, OPENAI, keeping.now_s())
        self._wake()
        return json_response(written(batch, set()))


def _create(db: StoreConnection, new: NewBatch, now_s: int, quota: StoreQuota) -> BatchRecord:
    try:
        file = files.find(db, new.owner, new.input_file_id)
    except NotInStoreError:
        raise InvalidParameterError("input_file_id", ": there is no file with this id") from None
    if file.purpose != files.INPUT:
        raise InvalidParameterError("input_file_id", f"must be of a file with the purpose {files.INPUT!r}")
    return batches.create(db, new, now_s, quota)


def _listed(
    db: StoreConnection, owner: str, limit: int, after: str | None
) -> list[tuple[BatchRecord, set[str]]]:
    return list(batches.output_ids(db, batches.listed(db, owner, OPENAI, limit=limit, after=after)))


def _find(db: StoreConnection, owner: str, batch_id: str) -> tuple[BatchRecord, set[str]]:
    return next(batches.output_ids(db, [batches.find(db, owner, batch_id, OPENAI)]))


def written(batch: BatchRecord, readable: set[str]) -> dict[str, Any]:
    """Return a batch as OpenAI describes it, given which of its output files can be read."""
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": batch.output_file_id if batch.output_file_id in readable else None,
        "error_file_id": batch.error_file_id if batch.error_file_id in readable else None,
        "created_at": batch.created_s,
        "expires_at": batch.expires_s,
        **{f"{status}_at": batch.times.get(status) for status in BatchStatus if status != "validating"},
        "request_counts": {
            "total": batch.n_total,
            "completed": batch.n_completed,
            "failed": batch.n_failed,
        },
        "metadata": dict(batch.metadata) or None,
    }
