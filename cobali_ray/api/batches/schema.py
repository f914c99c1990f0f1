"""The wire models of batches: shapes and kinds only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from cobali_ray.api.body.schema import BodyModel, Many
from cobali_ray.api.responses.schema import Metadata
from cobali_ray.store.lines import ENDPOINTS


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
