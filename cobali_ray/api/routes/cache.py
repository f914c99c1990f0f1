"""The routes that show what the cache holds; and llama-server's to see and move slots, for scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request as HttpRequest
from fastapi import Response
from pydantic import Field

from cobali_ray.api.body.schema import BodyModel
from cobali_ray.api.call.intake import Intake
from cobali_ray.api.engines.client import EngineClient
from cobali_ray.api.engines.fleet import Fleet
from cobali_ray.api.reply.replies import json_response
from cobali_ray.api.routes.debug import OF_ENGINE
from cobali_ray.api.routes.openapi import BODY_STATUSES, Routes, errors, query
from cobali_ray.core.views.cache import CacheView, SlotMove, SlotView
from cobali_ray.errors import InvalidParameterError

ACTIONS = ("save", "restore", "erase")
_ACTION = query("action", "What to do with the slot.", type="string", enum=list(ACTIONS)) | {"required": True}


class SlotBody(BodyModel):
    """POST /slots/{id_slot} with action=save or action=restore."""

    filename: str = Field(description="A plain file name, in the folder slot_save_path.")


class Cache:
    """What slots and host memory hold. No text of a prompt is shown."""

    def __init__(self, fleet: Fleet, intake: Intake) -> None:
        self._fleet, self._intake = fleet, intake

    def routes(self) -> Routes:
        routes = Routes("cache")
        fails = errors(400, 401, 500, 503)
        routes.get("/v1/cache", self.cache, responses=fails, openapi_extra=OF_ENGINE)
        routes.get("/slots", self.slots, responses=fails, openapi_extra=OF_ENGINE)
        moves, words = errors(*BODY_STATUSES, 409, 501), [*OF_ENGINE["parameters"], _ACTION]
        routes.post("/slots/{id_slot}", self.move, SlotBody, moves, needs_body=False, parameters=words)
        return routes

    async def cache(self, http: HttpRequest) -> Response:
        """Show what the prefix cache holds, its hits and its limits."""
        return json_response(_described(await self._engine(http).cache()))

    async def slots(self, http: HttpRequest) -> Response:
        """List the slots, in llama-server's format."""
        view = await self._engine(http).cache()
        return json_response([_slot(slot, view.n_ctx_slot) for slot in view.slots])

    async def move(self, http: HttpRequest, id_slot: str) -> Response:
        """Save an idle slot to a file, restore or erase it, as in llama-server."""
        action = http.query_params.get("action", "")
        if action not in ACTIONS:
            raise InvalidParameterError("action", f"must be one of {', '.join(ACTIONS)}")
        if not (id_slot.isascii() and id_slot.isdigit() and len(id_slot) < 6):
            raise InvalidParameterError("id_slot", "must be the number of a slot")
        filename = ""
        if action != "erase":
            filename = (await self._intake.read(http, SlotBody)).filename
        moved = await self._engine(http).move_slot(action, int(id_slot), filename)
        return json_response(_moved(action, moved))

    def _engine(self, http: HttpRequest) -> EngineClient:
        return self._fleet.engine(http.query_params.get("engine"))


def _described(view: CacheView) -> dict[str, Any]:
    return {
        "object": "cache",
        "slots": [
            {
                "slot_id": slot.slot_id,
                "state": "idle" if slot.request_id is None else "busy",
                "n_tokens": slot.n_tokens,
                "request_id": slot.request_id,
            }
            for slot in view.slots
        ],
        "kv_cells": view.kv_cells,
        "host": view.host,
        "states": view.states,
        "disk": view.disk,
        "tiers": _tiers(view.tier_requests, view.tier_tokens),
        "settings": view.settings,
    }


def _tiers(requests: Mapping[str, int], tokens: Mapping[str, int]) -> dict[str, Any]:
    n_requests, n_tokens = sum(requests.values()), sum(tokens.values())
    return {
        tier: {
            "n_requests": requests[tier],
            "n_tokens": tokens[tier],
            "request_share": round(requests[tier] / n_requests, 4) if n_requests else 0.0,
            "token_share": round(tokens[tier] / n_tokens, 4) if n_tokens else 0.0,
        }
        for tier in requests
    }


def _slot(slot: SlotView, n_ctx: int) -> dict[str, Any]:
    """Return what llama-server tells of a slot, as far as slots have it here."""
    busy = slot.request_id is not None
    return {
        "id": slot.slot_id,
        "id_task": slot.request_id or -1,
        "n_ctx": n_ctx,
        "speculative": False,
        "is_processing": busy,
        "n_tokens": slot.n_tokens,
        "n_prompt_tokens": slot.n_prompt if busy else slot.n_tokens,
        "n_prompt_tokens_processed": max(slot.n_prefilled - slot.n_cached, 0),
        "n_prompt_tokens_cache": slot.n_cached,
        "next_token": [{"has_next_token": busy, "n_remain": slot.n_left, "n_decoded": slot.n_output}],
    }


def _moved(action: str, moved: SlotMove) -> dict[str, Any]:
    ms = round(moved.seconds * 1e3, 3)
    if action == "save":
        counts = {"n_saved": moved.n_tokens, "n_written": moved.n_bytes, "timings": {"save_ms": ms}}
    elif action == "restore":
        counts = {"n_restored": moved.n_tokens, "n_read": moved.n_bytes, "timings": {"restore_ms": ms}}
    else:
        return {"id_slot": moved.slot_id, "n_erased": moved.n_tokens}
    return {"id_slot": moved.slot_id, "filename": moved.filename, **counts}
