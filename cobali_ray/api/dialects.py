"""Which API a path belongs to, where its errors are not written as OpenAI writes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from cobali_ray.api.anthropic.errors import ANTHROPIC
from cobali_ray.api.faults import OPENAI, ErrorShape
from cobali_ray.api.ollama.errors import OLLAMA

ERROR_SHAPES: Mapping[str, ErrorShape] = {"/v1/messages": ANTHROPIC, "/api/": OLLAMA}
"""By how the paths of an API begin."""


def error_shape(path: str) -> ErrorShape:
    """Return how errors of a path are written; the path is the one in the app."""
    return next((shape for prefix, shape in ERROR_SHAPES.items() if path.startswith(prefix)), OPENAI)
