"""The models on this machine's disk, and how an operator gets one more from the Hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from starlette.types import Receive, Scope, Send

from cobali_ray.api.body.fields import judge_fields
from cobali_ray.api.body.reading import parse
from cobali_ray.api.body.schema import DownloadBody
from cobali_ray.api.call.intake import Intake
from cobali_ray.api.door.context import RequestContext, context_of
from cobali_ray.api.engines.apart import unless_gone
from cobali_ray.api.reply.answer import SSE
from cobali_ray.api.reply.keepalive import STREAM_HEADERS
from cobali_ray.api.reply.replies import json_response
from cobali_ray.api.routes.openapi import BODY_STATUSES, content, errors, get, post
from cobali_ray.backend.port import Gone
from cobali_ray.errors import ConfigError, DownloadsOffError, InvalidParameterError, OperatorKeyError
from cobali_ray.models.local import hub_cache, local_models
from cobali_ray.models.reference import HubReference, HubRepository, parse_reference
from cobali_ray.models.registry import resolve
from cobali_ray.models.store import free_bytes
from cobali_ray.settings import ApiSettings

REST_S = 0.5
"""Between two events that say how far it is."""


class _LeftError(Exception):
    """Whoever asked for the download has left; what has come is kept, and the next one goes on from there."""


class Downloads:
    """One download at a time; it ends with its reader, so that whoever began it can stop it."""

    def __init__(self, settings: ApiSettings, intake: Intake) -> None:
        self._settings, self._intake = settings, intake
        self._turn = asyncio.Lock()

    def router(self) -> APIRouter:
        router = APIRouter(tags=["models and health"])
        get(router, "/v1/downloads", self.listed, responses=errors(401, 500))
        steps = content("text/event-stream", "`step` and `share` (0 to 1); in the end `model`, or `error`.")
        post(router, "/v1/downloads", self.download, DownloadBody, steps | errors(*BODY_STATUSES, 501))
        return router

    async def listed(self, http: HttpRequest) -> Response:
        """Say whether this key may download models; if so, what is on the disk, and how much room is left."""
        try:
            self._let_in(http)
        except (DownloadsOffError, OperatorKeyError):  # a question is no attempt
            return json_response({"object": "list", "allowed": False, "data": [], "free_bytes": None})
        return json_response(await asyncio.to_thread(_on_disk))

    async def download(self, http: HttpRequest) -> Response:
        """Download a model from the Hub, and say meanwhile how far that is."""
        self._let_in(http)
        context = context_of(http)
        reference = await self._intake.take(http, partial(self._reference, context))
        return DownloadReply(lambda: self._events(reference), context)

    def _let_in(self, http: HttpRequest) -> None:
        if not self._settings.allow_downloads:
            raise DownloadsOffError
        if not context_of(http).caller.terms.operator:
            raise OperatorKeyError

    def _reference(self, context: RequestContext, raw: bytes, gone: Gone) -> str:
        del gone
        body = parse(DownloadBody, raw)
        context.ignore(judge_fields(body.model_extra, strict=self._settings.strict))
        with _as_the_clients_fault():
            if not isinstance(parse_reference(body.model), HubReference | HubRepository):
                raise InvalidParameterError("model", "must begin with hf://, the Hugging Face Hub")
        return body.model

    async def _events(self, reference: str) -> AsyncGenerator[dict[str, Any], None]:
        latest: dict[str, Any] = {"step": "asking the Hub", "share": 0.0}
        left = False

        def progress(step: str, share: float) -> None:
            if left:
                raise _LeftError
            latest.update(step=step, share=round(share, 4))

        if self._turn.locked():
            yield latest | {"step": "waiting for another download"}
        async with self._turn:
            work = asyncio.ensure_future(asyncio.to_thread(resolve, reference, progress=progress))
            work.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody asks
            try:
                while not work.done():
                    yield latest
                    await asyncio.wait((work,), timeout=REST_S)
                with _as_the_clients_fault():
                    work.result()
                yield {"model": reference}
            finally:
                left = True


@contextmanager
def _as_the_clients_fault() -> Iterator[None]:
    """Tell whoever named the model what is wrong with it; by itself, a wrong setting is kept from clients."""
    try:
        yield
    except ConfigError as error:
        raise InvalidParameterError("model", f": {error.message}") from error


def _on_disk() -> dict[str, Any]:
    folder = hub_cache()
    while not folder.exists():
        folder = folder.parent
    models = [{"id": model.reference, "size_bytes": model.size_bytes} for model in local_models()]
    return {"object": "list", "allowed": True, "data": models, "free_bytes": free_bytes(folder)}


class DownloadReply(Response):
    """The events of a download; it ends when its reader leaves."""

    def __init__(
        self, events: Callable[[], AsyncGenerator[dict[str, Any], None]], context: RequestContext
    ) -> None:
        super().__init__()
        self._events, self._context = events, context
        context.stream = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 ASGI's shape
        await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        async def write(event: dict[str, Any], *, more: bool = True) -> None:
            body = b"data: %b\n\n" % orjson.dumps(event)
            await send({"type": "http.response.body", "body": body, "more_body": more})

        headers = [(b"content-type", SSE), *STREAM_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    await write(event)
        except Exception as error:  # the status is out: what went wrong is said in the stream
            await write(self._context.blame(error).body)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
