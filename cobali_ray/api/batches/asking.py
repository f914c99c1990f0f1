"""A line is asked: its body goes to the handler of its endpoint, as if a client had sent it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from fastapi import Request as HttpRequest
from fastapi import Response
from starlette.types import Message

from cobali_ray.api.door.clock import ApiClock
from cobali_ray.api.door.context import SCOPE_KEY, RequestContext
from cobali_ray.api.door.faults import error_shape
from cobali_ray.api.door.keys import Caller
from cobali_ray.errors import DeadlineExceededError
from cobali_ray.store.lines import LINE_ID, Answer

Handler = Callable[[HttpRequest], Awaitable[Response]]


class LineResult(NamedTuple):
    """What came of a line."""

    answer: Answer
    error: Exception | None = None
    """What went wrong, if the answer is an error."""


class Asker:
    """Refuses nothing for rate limits: batches take what others leave."""

    def __init__(self, handlers: Mapping[str, Handler], clock: ApiClock) -> None:
        """`handlers` are those of each endpoint."""
        self._handlers, self._clock = handlers, clock

    async def ask(
        self,
        endpoint: str,
        body: bytes,
        caller: Caller,
        *,
        handler: Handler | None = None,
        id_: str = "",
        spend: Callable[[int], None] = lambda _: None,
    ) -> LineResult:
        """Return the answer to a body; an error is one, in the shape of the endpoint's API.

        Another `handler` may answer in the endpoint's place; `id_` is that of the request. `spend` is called
        with the tokens that its prompt did not count, also where there is no answer.
        """
        context = RequestContext(
            request_id=id_ or f"{LINE_ID}{uuid.uuid4().hex}",
            received_s=self._clock.now(),
            method="POST",
            route=endpoint,
            caller=caller,
            error_shape=error_shape(endpoint),
        )
        inbox = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            return next(inbox, None) or await asyncio.Future[Message]()  # the client never leaves

        reply = _Collected()
        http = HttpRequest(_scope(endpoint, context), receive, reply.send)
        try:
            response = await (handler or self._handlers[endpoint])(http)
            await response(http.scope, http.receive, reply.send)
        except asyncio.CancelledError:
            context.cancelled = True
            raise
        except Exception as error:  # whatever it is, it belongs to this line
            fault = context.blame(error)
            context.status = fault.status
            return LineResult(Answer(fault.status, fault.body_bytes, context.request_id), error)
        else:
            context.status = reply.status
            return LineResult(Answer(reply.status, bytes(reply.body), context.request_id))
        finally:
            context.close(self._clock)
            spend(context.n_to_charge)


MAX_ATTEMPTS: Final = 3
"""How often a request is tried on which the server fails; refusals for lack of room do not count."""


def may_again(error: Exception) -> bool:
    """Whether a request may be tried once more: not where the request itself is at fault."""
    return isinstance(error, DeadlineExceededError) or getattr(error, "outcome", "error") in {
        "error",
        "cancelled",
    }


def _scope(path: str, context: RequestContext) -> dict[str, object]:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        SCOPE_KEY: context,
    }


class _Collected:
    """A client that reads everything."""

    def __init__(self) -> None:
        self.status = 500
        self.body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")
