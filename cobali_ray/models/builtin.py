"""What a built-in model is to the registry, and what somebody who asks for one may say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cobali_ray.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

Progress = Callable[[str, float], None]
"""Hears what is being done and how much of it, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How a built-in model is wanted. A model that is shipped ready made takes no notice of it."""

    cache_dir: Path
    vocab_gguf: Path | None = None
    """Take the vocabulary of this file, where the model has no vocabulary of its own."""
    seed: int = 0
    progress: Progress

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError("seed", f"must not be negative, got {self.seed}")


class Builtin(Protocol):
    """One row of the registry's table."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def quants(self) -> tuple[str, ...]:
        """The quants there are, the default first."""

    def provide(self, quant: str, order: Order) -> Path:
        """Return the file, made first if need be."""

    def made(self, quant: str, cache_dir: Path) -> tuple[Path, ...]:
        """Return the files of this quant that are there already, whatever their seed and vocabulary."""
