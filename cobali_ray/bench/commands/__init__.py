"""Measure, and write a report."""

from __future__ import annotations

from typing import Any

import typer

from cobali_ray.extras import require_extra
from cobali_ray.lazy import LazyGroup

NAMES = (
    "serve", "peers", "modes", "chats", "keep", "tenants", "prefill", "pace", "depth", "overlap", "gaps",
    "tick", "constrained", "speculation", "micro", "select", "stable", "threads", "overhead", "delivery",
    "viewers", "footprint", "restart", "engines", "route", "foresight",
)  # fmt: skip


class _Benchmarks(LazyGroup):
    """One module per benchmark, with a function of the same name."""

    places = {name: f"cobali_ray.bench.commands.{name}:{name}" for name in NAMES}  # noqa: RUF012

    def load(self, name: str) -> Any:
        """Import a benchmark. Raises MissingExtraError where there is nothing to plot with."""
        require_extra("bench", "matplotlib")
        return super().load(name)


app = typer.Typer(cls=_Benchmarks, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _root() -> None:
    """Measure, and write a report."""
