"""Errors as Ollama's API writes them. Pure."""

from __future__ import annotations

from typing import Any

from cobali_ray.api.faults import ErrorShape, Fault


def _body_of(fault: Fault) -> dict[str, Any]:
    return {"error": fault.message}


OLLAMA = ErrorShape(_body_of, {"queue_full": 503, "wait_too_long": 503})
