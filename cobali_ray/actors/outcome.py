"""The outcome of a Serve call in the words of this project."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc  # type: ignore[import-untyped]
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from cobali_ray.errors import CobaliError, EngineDiedError, InternalError


def outcome(response: Any) -> asyncio.Task[Any]:
    """Wait for a Serve call; cancelling the wait cancels it. Raises EngineDiedError and InternalError."""
    waiting = asyncio.ensure_future(_outcome(response))
    waiting.add_done_callback(lambda done: response.cancel() if done.cancelled() else None)
    return waiting


async def _outcome(response: Any) -> Any:
    try:
        return await response
    except RayTaskError as error:
        if isinstance(error.cause, RayError):
            raise EngineDiedError from error
        raise InternalError(repr(error.cause)) from error
    except (RayError, RayServeException, grpc.RpcError) as error:
        raise EngineDiedError from error
    except CobaliError:
        raise
    except Exception as error:  # over gRPC, Serve raises what was raised there
        raise InternalError(repr(error)) from error
