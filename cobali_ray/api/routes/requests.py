"""The routes about requests under way: where one is; and to pause all of them, and go on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from fastapi import Request as HttpRequest
from fastapi import Response

from cobali_ray import errors as known_errors
from cobali_ray.api.body.reading import check_choice
from cobali_ray.api.door.context import context_of
from cobali_ray.api.engines.client import EngineClient
from cobali_ray.api.engines.fleet import Fleet
from cobali_ray.api.reply.replies import json_response
from cobali_ray.api.reply.tally import prompt_progress, queue_progress
from cobali_ray.api.routes.debug import OF_ENGINE
from cobali_ray.api.routes.openapi import Routes, errors, query
from cobali_ray.core.dispatch.engines import Phase
from cobali_ray.core.dispatch.request import RequestRecord, Stage
from cobali_ray.core.request.events import RequestProgress
from cobali_ray.core.request.request import Request
from cobali_ray.core.views.progress import RequestView
from cobali_ray.errors import CobaliError, OperatorKeyError, UnknownRequestError

STATES: Final = ("generating", "prefilling", "queued", "loading", "restarting", "ended")
"""Where a choice may be; of several the first of these is where the request is."""
_OF_PAUSE: Final = {
    "parameters": [
        *OF_ENGINE["parameters"],
        query(
            "release",
            "Release the memory of the model and its cache until they are resumed.",
            type="boolean",
            default=False,
        ),
    ]
}
_CHOICE = re.compile(r"(?<=[0-9a-f]{32})-\d+$")


class Requests:
    """Where a request is; and pausing all of them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def routes(self) -> Routes:
        routes = Routes("requests")
        routes.get("/v1/requests/{request_id}", self.where, responses=errors(401, 404, 500))
        fails = errors(400, 401, 403, 500, 503)
        for path, endpoint, extra in (
            ("/v1/pause", self.pause, _OF_PAUSE),
            ("/v1/resume", self.resume, OF_ENGINE),
        ):
            routes.add("POST", path, endpoint, responses=fails, openapi_extra=extra)
        return routes

    async def where(self, http: HttpRequest, request_id: str) -> Response:
        """Show the progress of a request: queued, reading its prompt, answering or ended.

        Name it by the id of its answer, or by the x-request-id that it was sent with.
        """
        tenant = context_of(http).caller.tenant
        engines = self._fleet.engines.values()
        by_engine = await asyncio.gather(*(engine.find(request_id, tenant) for engine in engines))
        views = latest(view for of_engine in by_engine for view in of_engine)
        records = self._fleet.open_requests(request_id, tenant)  # those among them that no engine has yet
        if views:
            life = views[0].life
            names = (life.x_request_id, life.model)
            choices = {view.life.request_id.partition("~")[0]: _choice(view) for view in views}
            records = [r for r in records if _call_id(r.request_id) == _call_id(life.request_id)]
        elif records:
            first, choices = records[0].request, {}
            names = (first.x_request_id, first.model) if isinstance(first, Request) else ("", "")
        else:
            raise UnknownRequestError
        choices = {record.request_id: _elsewhere(record) for record in records} | choices
        ordered = sorted(choices, key=_number)
        return _described(ordered[0], *names, [choices[name] for name in ordered])

    async def pause(self, http: HttpRequest) -> Response:
        """Pause all requests until they are resumed; streams stay open, and memory can be released."""
        check_choice("release", release := http.query_params.get("release", "false"), ("true", "false"))
        if release == "true":
            return await self._switch(http, lambda engine: engine.release(), paused=True)
        return await self._switch(http, lambda engine: engine.pause(), paused=True)

    async def resume(self, http: HttpRequest) -> Response:
        """Resume all requests after a pause."""
        return await self._switch(http, lambda engine: engine.resume(), paused=False)

    async def _switch(
        self, http: HttpRequest, act: Callable[[EngineClient], Awaitable[int]], *, paused: bool
    ) -> Response:
        if not context_of(http).caller.terms.operator:
            raise OperatorKeyError
        engines = self._fleet.engines
        if (engine_id := http.query_params.get("engine")) is not None:
            engines = {engine_id: self._fleet.engine(engine_id)}
        outcomes = await asyncio.gather(*map(act, engines.values()), return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if len(errors) == len(outcomes) or not all(isinstance(error, CobaliError) for error in errors):
            raise errors[0]
        by_engine = {
            id_: {"error": str(outcome)} if isinstance(outcome, BaseException) else {"n_requests": outcome}
            for id_, outcome in zip(engines, outcomes, strict=True)
        }
        return json_response({"paused": paused, "engines": by_engine})


def latest(views: Iterable[RequestView]) -> list[RequestView]:
    """Return one view of each choice, in their order, of the client's request that came last.

    A choice has two views where it went on at another engine. A client may have used the name before.
    """
    views = list(views)
    if not views:
        return []
    newest = max(views, key=lambda view: view.life.received_s or view.life.arrived_s)
    call_id = _call_id(newest.life.request_id)
    of_choice = dict[str, RequestView]()
    for view in sorted(views, key=lambda view: view.life.attempt):
        if _call_id(view.life.request_id) == call_id:
            of_choice[view.life.request_id.partition("~")[0]] = view
    return [of_choice[name] for name in sorted(of_choice, key=_number)]


def _number(request_id: str) -> int:
    """Return the number of the choice that an engine's request is."""
    match = _CHOICE.search(request_id)
    return 0 if match is None else int(match[0][1:])


def _call_id(request_id: str) -> str:
    """Return the id of the answer that an engine's request belongs to."""
    return _CHOICE.sub("", request_id.partition("~")[0])


def _described(request_id: str, x_request_id: str, model: str, choices: Sequence[dict[str, Any]]) -> Response:
    states = {choice["state"] for choice in choices}
    return json_response(
        {
            "id": _call_id(request_id),
            "object": "request",
            "x_request_id": x_request_id,
            "model": model,
            "state": next(state for state in STATES if state in states),
            "choices": [{"index": index} | choice for index, choice in enumerate(choices)],
        }
    )


def _choice(view: RequestView) -> dict[str, Any]:
    life, progress = view
    error = None if life.error is None else getattr(known_errors, life.error).code
    return {
        "state": life.state,
        "queue_progress": queue_progress(progress) if life.state == "queued" else None,
        "prompt_progress": prompt_progress(progress),
        "completion_tokens": life.n_output,
        "finish_reason": life.finish_reason,
        "error": error,
    }


def _elsewhere(record: RequestRecord) -> dict[str, Any]:
    """Describe a choice that no engine has: it waits for one, or is on its way there."""
    released = any(engine.phase is Phase.RELEASED for engine in record.model.engines.values())
    states = {Stage.LOAD: "loading", Stage.RETURN: "queued" if released else "restarting"}
    progress = RequestProgress(record.request_id, 0, 0, record.request.n_prompt, 0.0, None, None)
    return {
        "state": states.get(record.stage, "queued"),
        "queue_progress": None,
        "prompt_progress": prompt_progress(progress),
        "completion_tokens": len(record.tokens),
        "finish_reason": None,
        "error": None,
    }
