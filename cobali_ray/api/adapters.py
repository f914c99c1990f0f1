"""GET and POST /lora-adapters, as llama-server has them."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from cobali_ray.api.account import account_of
from cobali_ray.api.fleet import Fleet
from cobali_ray.api.intake import loaded_model
from cobali_ray.api.openapi import TELLING, errors, get
from cobali_ray.api.replies import json_response
from cobali_ray.core.adapters import Adapter
from cobali_ray.errors import FixedScalesError


class Adapters:
    """The routes that tell of adapters."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def router(self) -> APIRouter:
        router = APIRouter(tags=["facts"])
        get(router, "/lora-adapters", self.tell, responses=errors(*TELLING))
        router.post("/lora-adapters", response_model=None, responses=errors(401, 500, 501))(self.change)
        return router

    async def tell(self, http: HttpRequest, model: str | None = None) -> Response:
        """List the adapters of a model; naming it is optional if there is only one."""
        card = (await loaded_model(self._fleet, model, account_of(http))).card
        return json_response([_told(i, one) for i, one in enumerate(card.adapters)])

    async def change(self) -> Response:
        """Refuse: another scale would change the answers of other clients."""
        raise FixedScalesError


def _told(adapter_id: int, adapter: Adapter) -> dict[str, Any]:
    file = PurePath(adapter.path).name  # in which folder is nobody's affair
    return {"id": adapter_id, "path": file, "scale": adapter.scale, "model": adapter.name}
