"""What surrounds every HTTP request: its id, its origin, its key, its log line, an answer to every error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fastapi import Response
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cobali_ray.api.door.clock import ApiClock
from cobali_ray.api.door.context import SCOPE_KEY, RequestContext
from cobali_ray.api.door.faults import ANTHROPIC, Fault, error_shape
from cobali_ray.api.door.ids import HEADER_BYTES, request_id_of
from cobali_ray.api.door.keyring import Keyring
from cobali_ray.api.door.origins import Origins, is_loopback
from cobali_ray.api.door.refused import RefusedKeys, log_refusal
from cobali_ray.errors import (
    ForeignHostError,
    ForeignOriginError,
    ForeignSiteError,
    HeadersTooLargeError,
    WrongKeyError,
)
from cobali_ray.telemetry.names import HttpAnswer

if TYPE_CHECKING:  # OpenTelemetry, for those who want spans
    from cobali_ray.telemetry.tracing import Tracing

OPEN_PATHS = frozenset({"/health", "/ready", "/", "/ui", "/docs", "/openapi.json"})
OPEN_FOLDER = "/ui/"
"""Probes have no keys, the page asks for one itself once its data is refused, and the API is no secret."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
TRACED: Final = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/embeddings", "/v1/rerank", "/v1/reranking", "/v1/score"),
    *("/api/chat", "/api/generate", "/api/embed", "/api/embeddings"),
    *("/chat/completions", "/completion", "/completions", "/infill"),
    *("/embedding", "/embeddings", "/rerank", "/reranking"),
)
"""Routes that get a span; probes, scrapes and viewers would drown them. Longer ones come first."""


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def route_traced(path: str) -> str | None:
    """Return the route that a path asks for, as declared; None if it gets no span."""
    return next((route for route in TRACED if path.endswith(route)), None)


def fault_response(fault: Fault) -> Response:
    return Response(
        fault.body_bytes, fault.status, headers=dict(fault.headers), media_type="application/json"
    )


class Lock:
    """ASGI middleware that lets nobody pass without a key."""

    def __init__(self, app: ASGIApp, *, keyring: Keyring, clock: ApiClock, behind_front: bool) -> None:
        self._app, self._keyring, self._clock, self._behind_front = app, keyring, clock, behind_front
        self._refused = RefusedKeys()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or answer that it needs a key."""
        app = self._app
        if scope["type"] == "http" and not is_open(_path_in_app(scope)):
            context: RequestContext = scope[SCOPE_KEY]
            await self._keyring.refresh()
            headers = Headers(scope=scope)
            if (caller := self._keyring.ring.find(headers)) is None:
                app = fault_response(context.blame(WrongKeyError()))
                peer, *_ = scope.get("client") or ("",)
                log_refusal(
                    self._refused, headers, peer, behind_front=self._behind_front, now_s=self._clock.now()
                )
            else:
                context.caller, context.quota = caller, self._keyring.quota(caller)
        await app(scope, receive, send)


class Frame:
    """ASGI middleware around all routes and around all other middleware."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        origins: Origins,
        listens: str | None,
        echo_id: bool,
        clock: ApiClock,
        count: Callable[[HttpAnswer], None],
        tracer: Tracing | None = None,
    ) -> None:
        """`count` is called with every request that has ended."""
        self._app, self._origins, self._listens, self._echo_id = app, origins, listens, echo_id
        self._clock, self._count, self._tracer = clock, count, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and write its log line, however it ends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        context = RequestContext(
            request_id=request_id_of(headers.get("x-request-id", "")),
            received_s=self._clock.now(),
            count=self._count,
            method=scope["method"] if scope["method"] in METHODS else "other",
            error_shape=error_shape(_path_in_app(scope)),
        )
        scope[SCOPE_KEY] = context
        id_header = [(b"x-request-id", context.request_id.encode("latin-1"))] if self._echo_id else []
        if context.error_shape is ANTHROPIC:  # under the name that its clients read
            id_header += [(b"request-id", context.request_id.encode("latin-1"))]
        if self._tracer is not None and (route := route_traced(scope["path"])) is not None:
            context.span = self._tracer.begin(scope["method"], route, headers)

        async def send_framed(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                message = {
                    **message,
                    "headers": [*message.get("headers", ()), *id_header, *context.headers(self._clock.now())],
                }
            try:
                await send(message)
            except OSError:
                # How ASGI 2.4 servers say that the client has left.
                raise ClientDisconnect from None

        try:
            self._check(headers, scope)
            await self._app(scope, receive, send_framed)
        except (asyncio.CancelledError, ClientDisconnect) as interruption:
            context.cancelled = True
            if isinstance(interruption, asyncio.CancelledError):
                raise
        except Exception as error:
            fault = context.blame(error)
            if context.status is not None:
                raise
            await fault_response(fault)(scope, receive, send_framed)
        finally:
            # The path as declared, never as sent: a log field must not take any value a client invents.
            context.route = getattr(scope.get("route"), "path", context.route)
            context.close(self._clock)

    def _check(self, headers: Headers, scope: Scope) -> None:
        """Refuse requests with long headers, and those that a browser makes for a page from elsewhere."""
        # HAProxy lets no long headers through, Serve's own proxy does.
        if sum(len(name) + len(value) + len(": \r\n") for name, value in headers.raw) > HEADER_BYTES:
            raise HeadersTooLargeError(HEADER_BYTES)
        host = headers.get("host", "").lower()
        listens = self._listens or (scope.get("server") or ("",))[0]
        if is_loopback(listens) and not self._origins.knows(host):
            raise ForeignHostError(host[:128])
        origin = headers.get("origin")
        if origin is not None and not self._origins.allows(origin.lower(), host):
            raise ForeignOriginError(origin[:128])
        # An image or a script of a page from elsewhere: browsers name no origin for these.
        if (
            origin is None
            and headers.get("sec-fetch-site") == "cross-site"
            and headers.get("sec-fetch-mode") != "navigate"
        ):
            raise ForeignSiteError


def _path_in_app(scope: Scope) -> str:
    """Return the path without the prefix under which the app is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
