"""The models on this machine's disk, and how an operator gets one more from the Hub."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from fastapi import Request as HttpRequest
from fastapi import Response
from pydantic import Field

from cobali_ray.api.body.schema import BodyModel
from cobali_ray.api.call.intake import Intake
from cobali_ray.api.door.context import context_of
from cobali_ray.api.reply.replies import EventsReply, json_response
from cobali_ray.api.reply.sse import event
from cobali_ray.api.routes.openapi import BODY_STATUSES, Routes, content, errors
from cobali_ray.errors import ConfigError, DownloadsOffError, InvalidParameterError, OperatorKeyError
from cobali_ray.models.local import hub_cache, local_models
from cobali_ray.models.reference import HubReference, HubRepository, parse_reference
from cobali_ray.models.registry import resolve
from cobali_ray.models.store import free_bytes
from cobali_ray.settings import ApiSettings

REST_S = 0.5
"""Between two events of progress."""


class DownloadBody(BodyModel):
    """POST /v1/downloads."""

    model: str = Field(description="hf://owner/repo[:QUANT] or hf://owner/repo/file.gguf.")


class _LeftError(Exception):
    """The client has left; what was downloaded is kept, and the next download goes on from there."""


class Downloads:
    """One download at a time; it ends with its reader, so that the client can stop it."""

    def __init__(self, settings: ApiSettings, intake: Intake) -> None:
        self._settings, self._intake = settings, intake
        self._turn = asyncio.Lock()

    def routes(self) -> Routes:
        routes = Routes("models and health")
        routes.get("/v1/downloads", self.listed, responses=errors(401, 500))
        steps = content("text/event-stream", "`step` and `share` (0 to 1); in the end `model`, or `error`.")
        routes.post("/v1/downloads", self.download, DownloadBody, steps | errors(*BODY_STATUSES, 501))
        return routes

    async def listed(self, http: HttpRequest) -> Response:
        """Show whether this key may download models, which ones are here, and how much disk is free."""
        try:
            self._let_in(http)
        except (DownloadsOffError, OperatorKeyError):  # a question is no attempt
            return json_response({"object": "list", "allowed": False, "data": [], "free_bytes": None})
        return json_response(await asyncio.to_thread(_on_disk))

    async def download(self, http: HttpRequest) -> Response:
        """Download a model from the Hugging Face Hub, and stream the progress."""
        self._let_in(http)
        body = await self._intake.read(http, DownloadBody)
        with _as_the_clients_fault():
            if not isinstance(parse_reference(body.model), HubReference | HubRepository):
                raise InvalidParameterError("model", "must begin with hf://, the Hugging Face Hub")
        return EventsReply(partial(self._events, body.model), context_of(http))

    def _let_in(self, http: HttpRequest) -> None:
        if not self._settings.allow_downloads:
            raise DownloadsOffError
        if not context_of(http).caller.terms.operator:
            raise OperatorKeyError

    async def _events(self, reference: str) -> AsyncGenerator[bytes, None]:
        latest: dict[str, Any] = {"step": "asking the Hub", "share": 0.0}
        left = False

        def progress(step: str, share: float) -> None:
            if left:
                raise _LeftError
            latest.update(step=step, share=round(share, 4))

        if self._turn.locked():
            yield event(latest | {"step": "waiting for another download"})
        async with self._turn:
            work = asyncio.ensure_future(asyncio.to_thread(resolve, reference, progress=progress))
            work.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps never read
            try:
                while not work.done():
                    yield event(latest)
                    await asyncio.wait((work,), timeout=REST_S)
                with _as_the_clients_fault():
                    work.result()
                yield event({"model": reference})
            finally:
                left = True


@contextmanager
def _as_the_clients_fault() -> Iterator[None]:
    """Tell the client what is wrong with the model it named; a ConfigError would be hidden from it."""
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
