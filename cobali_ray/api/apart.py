"""Work that a request begins and that does not end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def begin_apart(work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
    """Begin work that goes on when the client of this request leaves.

    In a context of its own: of a request whose client leaves, Serve cancels every call that was made in its
    context, whichever task made it.
    """
    return asyncio.get_running_loop().create_task(work, context=Context())
