"""Built-in models: the one that is shipped, and those that the laboratory makes, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from cobali_ray.extras import WORKLOADS, is_there, require_extra

FOLDER = Path(__file__).with_name("shipped")
SYNTHETIC = "synthetic-"
"""How the names of all models begin that the laboratory makes."""
_LABORATORY = "cobali_workloads.models"
"""Has `MODELS`, a `Builtin` each, and `make_adapter`."""
Progress = Callable[[str, float], None]
"""Takes what is being done, and how much of it is done, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How a built-in model is wanted. A model that is shipped ready made ignores it."""

    cache_dir: Path
    vocab_gguf: Path | None = None
    """Take the vocabulary of this file, where the model has no vocabulary of its own."""
    seed: int = 0
    progress: Progress


class Builtin(Protocol):
    """A model that `builtin:` names."""

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


class _Tiny:
    name = "tiny"
    description = "a chat model of 4.5 million parameters, trained for demonstrations and tests"
    quants = ("Q8_0",)

    def provide(self, *_: object) -> Path:
        return FOLDER / "tiny-q8-0.gguf"

    def made(self, *_: object) -> tuple[Path, ...]:
        return (self.provide(),)


def builtins() -> Mapping[str, Builtin]:
    """Return the built-in models that are there, by their names."""
    made = laboratory().MODELS if is_there(_LABORATORY) else ()
    return {model.name: model for model in (_Tiny(), *made)}


def laboratory() -> Any:
    """Import what makes models. Raises MissingExtraError, which says how to install it."""
    require_extra(WORKLOADS, _LABORATORY)
    return import_module(_LABORATORY)
