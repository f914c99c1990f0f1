"""The routes that show what the engine does, tick by tick."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import Request as HttpRequest
from fastapi import Response

from cobali_ray.api.body.params import whole_number
from cobali_ray.api.door.context import context_of
from cobali_ray.api.engines.fleet import Fleet
from cobali_ray.api.engines.viewers import MAX_TICKS, N_INITIAL_TICKS, Viewers
from cobali_ray.api.reply.replies import EventsReply
from cobali_ray.api.routes.openapi import Routes, errors, query

_ENGINE = query("engine", "The id of an engine; default: the first.", type="string")
_WHOLE: dict[str, Any] = {"type": "integer", "minimum": 0, "default": 0}
OF_ENGINE: dict[str, Any] = {"parameters": [_ENGINE]}
_TICKS: dict[str, Any] = {
    "parameters": [
        _ENGINE,
        query(
            "last",
            "Maximum number of ticks, the newest ones.",
            **_WHOLE | {"minimum": 1, "maximum": MAX_TICKS, "default": N_INITIAL_TICKS},
        ),
        query("since", "Only ticks with this id or a later one: `next` of the previous answer.", **_WHOLE),
    ]
}
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "`data:` is what `/debug/ticks` answers, from where the event before ended; "
        "`event: gone` where the engine cannot be reached.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


class Debug:
    """Records of ticks and requests: when asked for, or as they come."""

    def __init__(self, fleet: Fleet, viewers: Mapping[str, Viewers]) -> None:
        """`viewers` are those of each engine."""
        self._fleet, self._viewers = fleet, viewers

    def routes(self) -> Routes:
        routes = Routes("ticks")
        fails = errors(400, 401, 500, 503)
        routes.add("GET", "/debug/ticks", self.ticks, responses=fails, openapi_extra=_TICKS)
        routes.add(
            "GET",
            "/debug/stream",
            self.stream,
            response_class=Response,
            responses=_EVENTS | errors(400, 401, 500),
            openapi_extra=OF_ENGINE,
        )
        return routes

    async def ticks(self, http: HttpRequest) -> Response:
        """Return the last ticks and the requests in them."""
        params = http.query_params
        last = whole_number(params.get("last", str(N_INITIAL_TICKS)), "last", low=1, high=MAX_TICKS)
        since = whole_number(params.get("since", "0"), "since", low=0, high=2**63 - 1)
        engine = self._fleet.engine(params.get("engine"))
        feed = await engine.ticks(last=last, since=since)
        tenant = context_of(http).caller.tenant
        return Response(feed.body_for(tenant), media_type="application/json")

    async def stream(self, http: HttpRequest) -> Response:
        """Stream ticks and requests as server-sent events, at most four a second."""
        engine_id = http.query_params.get("engine", next(iter(self._viewers)))
        self._fleet.engine(engine_id)
        context = context_of(http)
        return EventsReply(partial(self._viewers[engine_id].watch, context.caller.tenant), context)
