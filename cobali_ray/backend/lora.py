"""LoraAdapters: the adapters loaded beside a model, of which a context computes under one at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from cobali_ray.backend import library
from cobali_ray.core.plan.adapters import Adapter
from cobali_ray.errors import BackendError, ConfigError


class LoraAdapters:
    """Adapters by key. They are freed with their model."""

    def __init__(self, lc: Any, model: Any, adapters: Sequence[Adapter]) -> None:
        """Load them, each file once. Raises ConfigError that names the adapter."""
        self._lc = lc
        self._loaded: dict[str, tuple[Any, float]] = {}
        files: dict[str, Any] = {}
        for adapter in adapters:
            if adapter.path not in files:
                library.forget_errors()
                files[adapter.path] = lc.llama_adapter_lora_init(model, adapter.path.encode())
            if not files[adapter.path]:
                why = f"llama.cpp cannot load {adapter.path}: {library.errors()}"
                raise ConfigError(f"adapters.{adapter.name}", why)
            if adapter.key:
                self._loaded[adapter.key] = files[adapter.path], adapter.scale

    @property
    def keys(self) -> Sequence[str]:
        """The keys that `use` takes beside ""."""
        return list(self._loaded)

    def use(self, context: Any, key: str) -> None:
        """Have a context compute under one of them from the next pass on; "" is none."""
        if not key:
            self._lc.llama_set_adapters_lora(context, None, 0, None)
            return
        if key not in self._loaded:
            raise BackendError(f"no adapter {key} is loaded")
        adapter, scale = self._loaded[key]
        adapters = (self._lc.llama_adapter_lora_p_ctypes * 1)(adapter)
        self._lc.llama_set_adapters_lora(context, adapters, 1, (ctypes.c_float * 1)(scale))
