"""The outcome of a Serve call in the words of this project."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc  # type: ignore[import-untyped]
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from cobali_ray.errors import EngineDiedError


async def outcome(response: Any) -> Any:
    """Await a Serve call; cancelling the wait cancels the call. Raises EngineDiedError."""
    try:
        return await response
    except asyncio.CancelledError:
        response.cancel()
        raise
    except (RayError, RayServeException, grpc.RpcError) as error:
        raise EngineDiedError from error
