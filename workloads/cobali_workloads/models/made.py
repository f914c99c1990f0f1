"""A model with random weights as a file in the cache, made when it is asked for first."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from cobali_ray.errors import ConfigError
from cobali_ray.models.ggufmeta import require_gguf

if TYPE_CHECKING:
    from pathlib import Path

    from cobali_ray.models.builtin import Order


class MadeModel(ABC):
    """What all of them have in common: the same name, quant, seed and facts give the same bytes."""

    __slots__ = ()
    name: str

    @abstractmethod
    def _facts(self, quant: str, order: Order) -> str:
        """Return what else the bytes depend on."""

    @abstractmethod
    def _make(self, path: Path, quant: str, order: Order) -> None:
        """Write the file, whole or not at all."""

    def path(self, quant: str, order: Order) -> Path:
        """Return where the file lies or would lie."""
        digest = hashlib.sha256(self._facts(quant, order).encode()).hexdigest()
        return order.cache_dir / f"{self.name}-{quant}-s{order.seed}-{digest[:10]}.gguf"

    def provide(self, quant: str, order: Order) -> Path:
        """Return the file, made first if it is not there whole."""
        path = self.path(quant, order)
        try:
            require_gguf(path)
        except ConfigError:
            self._make(path, quant, order)
            order.progress(f"{self.name} {quant}", 1.0)
        return path

    def made(self, quant: str, cache_dir: Path) -> tuple[Path, ...]:
        """Return the files of this quant that are there already, whatever their seed and vocabulary."""
        return tuple(sorted(cache_dir.glob(f"{self.name}-{quant}-s*.gguf")))
