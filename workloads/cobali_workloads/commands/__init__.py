"""Measure, and write a report."""

from __future__ import annotations

import typer

from cobali_ray.extras import WORKLOADS
from cobali_ray.lazy import LazyGroup

NAMES = (
    "serve", "peers", "modes", "chats", "keep", "tenants", "overlap", "tick", "micro", "select", "threads",
    "overhead", "footprint", "engines", "route", "foresight", "regret", "waits", "agents", "batch",
    "turns",
)  # fmt: skip


class _Benchmarks(LazyGroup):
    """One module per benchmark, with a function of the same name."""

    places = {name: f"cobali_workloads.commands.{name}:{name}" for name in NAMES}  # noqa: RUF012
    needs = dict.fromkeys(NAMES, (WORKLOADS, "matplotlib"))


app = typer.Typer(cls=_Benchmarks, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def _root() -> None:
    """Measure, and write a report."""
