"""The llama.cpp objects inside a LlamaBackend, for benchmarks that time or ask llama.cpp itself."""

from __future__ import annotations

from typing import Any, NamedTuple

from cobali_ray.backend import library
from cobali_ray.backend.llama import LlamaBackend
from cobali_ray.backend.port import Backend


class LlamaHandles(NamedTuple):
    """Handles as ctypes has them."""

    lc: Any
    """The binding's module."""
    model: Any
    context: Any
    memory: Any
    vocab: Any


def llama_handles(backend: Backend) -> LlamaHandles | None:
    """Return the handles; None for a backend that is not llama.cpp's."""
    if not isinstance(backend, LlamaBackend):
        return None
    lc = library.load()
    model, context = backend._model, backend._context  # noqa: SLF001 - the one place that looks inside
    return LlamaHandles(lc, model, context, lc.llama_get_memory(context), lc.llama_model_get_vocab(model))


def picks_on_device(backend: Backend) -> bool:
    """Tell whether llama.cpp picks the rows' likeliest tokens itself."""
    return isinstance(backend, LlamaBackend) and backend._device is not None  # noqa: SLF001
