"""What the benchmarks' options have in common, and the command line that reproduces a report."""

from __future__ import annotations

import shlex
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from cobali_ray.engine.opening import model_path
from cobali_ray.errors import ConfigError
from cobali_ray.models.commands import progress_bars
from cobali_ray.settings import EngineSettings, read_settings, read_text
from cobali_workloads.load.prompts import read_prompts

OUT = Path("bench-results")
Model = Annotated[str, typer.Option(help="GGUF path, hf://..., or builtin:NAME.")]
NRounds = Annotated[int, typer.Option(min=1, help="Rounds that count; contenders take turns in each.")]
Quick = Annotated[bool, typer.Option("--quick", help="Run just enough to show that it works.")]
Out = Annotated[Path, typer.Option(help="Folder for JSON, Markdown and plots.")]
DEFAULT_MODEL: str = EngineSettings().model


def check_model(reference: str) -> None:
    """Find, make or download a model before anything starts that needs it. Raises ConfigError."""
    with progress_bars() as progress:
        model_path(read_settings({"model": reference}), progress)


def texts_of(path: Path, limit: int | None = None) -> list[str]:
    """Read a prompts file. Raises ConfigError if it is not there."""
    return read_prompts(read_text("--prompts", path))[:limit]


def spell(name: str, **options: Any) -> str:
    """Write the command line that asks for a benchmark with these options; None and False are left out."""
    words = ["cobali", "bench", name]
    for option, value in options.items():
        if value is None or value is False:
            continue
        words.append(f"--{option.replace('_', '-')}")
        if value is not True:
            words.append(str(value))
    return shlex.join(words)


def numbers(option: str, text: str, *, least: int = 1) -> list[int]:
    """Read `1,2,4`. Raises ConfigError for anything but whole numbers of at least `least`."""
    try:
        values = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        values = []
    if not values or min(values) < least:
        raise ConfigError(option, f"expected numbers from {least}, separated by commas, got {text!r}")
    return values


def reals(option: str, text: str) -> list[float]:
    """Read `1.5,2`. Raises ConfigError for anything but finite numbers above 0."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < number < inf for number in values):
        raise ConfigError(option, f"expected numbers above 0, separated by commas, got {text!r}")
    return values
