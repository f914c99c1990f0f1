"""List, make and inspect models."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from cobali_ray.errors import CobaliError
from cobali_ray.models import registry

# Typer reads help as rich markup: a bracket that is meant has to be escaped.
_FORMS = r"a path to a GGUF file, hf://owner/repo/file.gguf\[@revision] or builtin:NAME\[:QUANT]"
app = typer.Typer(
    no_args_is_help=True,
    help=f"List, make, fetch and inspect models. A reference is {_FORMS}.",
)

Reference = Annotated[str, typer.Argument(help=f"Give {_FORMS}.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
VocabGguf = Annotated[
    Path | None,
    typer.Option(help="Copy the vocabulary of this GGUF file into a synthetic model with 151,936 tokens."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the random weights of a synthetic model.")]
CacheDir = Annotated[
    Path | None,
    typer.Option(help="Folder of made models; by default `models` in $COBALI_CACHE or in the user's cache."),
]


@app.command("list")
def list_models(cache_dir: CacheDir = None, *, as_json: AsJson = False) -> None:
    """List the built-in models and which of them are made already."""
    models = registry.available(cache_dir=cache_dir)
    if as_json:
        _print_json([{"reference": model.reference, **dataclasses.asdict(model)} for model in models])
        return
    table = Table()
    for heading in ("model", "quant", "made"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "model")
    table.add_column("what it is")
    for model in models:
        size = f"{model.size_bytes / 1e6:.1f} MB" if model.made else "-"
        table.add_row(model.reference, model.quant, size, model.description if model.default else "")
    Console().print(table)


@app.command("make")
def make_model(
    name: Annotated[str, typer.Argument(help=r"A built-in model, NAME\[:QUANT].")],
    seed: Seed = 0,
    vocab_gguf: VocabGguf = None,
    cache_dir: CacheDir = None,
) -> None:
    """Make a built-in model and print where its file lies."""
    reference = f"builtin:{name.removeprefix('builtin:')}"
    typer.echo(str(_resolve(reference, seed=seed, vocab_gguf=vocab_gguf, cache_dir=cache_dir)))


@app.command("fetch")
def fetch_model(reference: Reference) -> None:
    """Download a model from the Hub, if it is not here yet, and print where its file lies."""
    typer.echo(str(_resolve(reference)))


@app.command("show")
def show_model(
    reference: Reference,
    seed: Seed = 0,
    vocab_gguf: VocabGguf = None,
    cache_dir: CacheDir = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show what a model's file says about itself; a model that is not here yet is made or fetched first."""
    path = _resolve(reference, seed=seed, vocab_gguf=vocab_gguf, cache_dir=cache_dir)
    try:
        facts = registry.describe(path)
    except CobaliError as error:
        raise _refusal(error) from error
    if as_json:
        _print_json(facts)
        return
    table = Table(show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for field, value in facts.items():
        table.add_row(field, _in_words(value))
    Console().print(table)


@contextlib.contextmanager
def progress_bars() -> Iterator[Callable[[str, float], None]]:
    """Show a bar per step of long work on stderr, so that stdout stays clean for pipes."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: float) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=1.0)
            bars.update(tasks[what], completed=done)

        yield progress


def _resolve(reference: str, **options: Any) -> Path:
    with progress_bars() as progress:
        try:
            return registry.resolve(reference, progress=progress, **options)
        except CobaliError as error:
            raise _refusal(error) from error


def _refusal(error: CobaliError) -> typer.Exit:
    Console(stderr=True).print(f"error: {error}", style="red", markup=False, soft_wrap=True)
    return typer.Exit(code=2)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key} x {n}" for key, n in value.items())
    return "-" if value is None else str(value)
