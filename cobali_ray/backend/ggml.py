"""ggml's own functions for devices, which llama_cpp exports and does not wrap."""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

from cobali_ray.backend import library

CPU, GPU, INTEGRATED = 0, 1, 2
"""How ggml numbers the kinds of devices; whatever is beyond helps the CPU, and no layers lie there."""
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_backend_dev_count": (c_size_t, ()),
    "ggml_backend_dev_get": (c_void_p, (c_size_t,)),
    "ggml_backend_dev_by_type": (c_void_p, (c_int,)),
    "ggml_backend_dev_name": (c_char_p, (c_void_p,)),
    "ggml_backend_dev_description": (c_char_p, (c_void_p,)),
    "ggml_backend_dev_type": (c_int, (c_void_p,)),
    "ggml_backend_dev_memory": (None, (c_void_p, c_void_p, c_void_p)),
    "ggml_backend_dev_init": (c_void_p, (c_void_p, c_char_p)),
    "ggml_backend_free": (None, (c_void_p,)),
    "ggml_backend_reg_dev_count": (c_size_t, (c_void_p,)),
    "ggml_backend_reg_dev_get": (c_void_p, (c_void_p, c_size_t)),
    "ggml_backend_buft_get_device": (c_void_p, (c_void_p,)),
    "ggml_backend_buft_is_host": (c_bool, (c_void_p,)),
    "ggml_tensor_overhead": (c_size_t, ()),
    "ggml_graph_overhead_custom": (c_size_t, (c_size_t, c_bool)),
    "ggml_set_abort_callback": (c_void_p, (c_void_p,)),
}


@functools.cache
def load() -> Any:
    """Return the library, with the types of what is called in it."""
    library.load()
    from llama_cpp import _ggml

    lib = ctypes.CDLL(_ggml.libggml._name)  # noqa: SLF001 - functions of our own, whose types nobody else sets
    for name, (restype, argtypes) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = restype, argtypes
    return lib


def memory_of(device: int) -> tuple[int, int]:
    """Return the bytes that are free on a device, and all that it has; 0 where it does not tell."""
    free, total = c_size_t(), c_size_t()
    load().ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value
