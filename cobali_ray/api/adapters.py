"""GET and POST /lora-adapters, as llama-server has them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from cobali_ray.api.fleet import Fleet
from cobali_ray.api.openapi import errors, get
from cobali_ray.api.replies import json_response
from cobali_ray.core.adapters import Adapter
from cobali_ray.errors import FixedScalesError


class Adapters:
    """The routes that tell of adapters."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(tags=["facts"])
        get(router, "/lora-adapters", self.tell, responses=errors(400, 401, 404, 500, 503))
        router.post("/lora-adapters", response_model=None, responses=errors(401, 500, 501))(self.change)
        return router

    async def tell(self, model: str | None = None) -> Response:
        """List the adapters of a model, which need not be named where there is but one."""
        card = self._fleet.find(model).card
        return json_response([_told(i, one) for i, one in enumerate(card.adapters)])

    async def change(self) -> Response:
        """Refuse: a scale that changes would change the answers of all others."""
        raise FixedScalesError


def _told(adapter_id: int, adapter: Adapter) -> dict[str, Any]:
    return {"id": adapter_id, "path": adapter.path, "scale": adapter.scale, "model": adapter.name}
