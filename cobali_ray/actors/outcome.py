"""The outcome of a Serve call in the words of this project."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc  # type: ignore[import-untyped]
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from cobali_ray.errors import CobaliError, EngineDiedError, InternalError


async def outcome(response: Any) -> Any:
    """Await a Serve call; cancelling the wait cancels the call.

    Raises:
        EngineDiedError: there is nobody to answer any more.
        InternalError: what was called raised something, and so is there.
    """
    try:
        return await response
    except asyncio.CancelledError:
        response.cancel()
        raise
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
