"""Models that come with the package: nothing to make, nothing to download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cobali_ray.models.builtin import Order

FOLDER = Path(__file__).with_name("shipped")


@dataclass(frozen=True, slots=True)
class ShippedModel:
    """A model whose files lie in the package; `files` has a name by quant, the default first."""

    name: str
    description: str
    files: Mapping[str, str]

    @property
    def quants(self) -> tuple[str, ...]:
        """The quants there are, the default first."""
        return tuple(self.files)

    def provide(self, quant: str, order: Order) -> Path:  # noqa: ARG002 - others need it
        """Return the file; `order` has no say in it."""
        return FOLDER / self.files[quant]

    def made(self, quant: str, cache_dir: Path) -> tuple[Path, ...]:  # noqa: ARG002 - others need it
        """Return the file: it is always there."""
        return (FOLDER / self.files[quant],)


SHIPPED_MODELS = (
    ShippedModel(
        "tiny",
        "a chat model of 4.5 million parameters, trained for demonstrations and tests",
        {"Q8_0": "tiny-q8-0.gguf"},
    ),
)
