"""List, pull, make and show models. What takes long to import is imported where it is used."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cobali_ray.errors import CobaliError
from cobali_ray.models.builtin import SYNTHETIC
from cobali_ray.models.completion import complete_model
from cobali_ray.models.reference import SOURCES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

NUMBERS_WIDTH: Final = 40
"""Kept free beside a model's name in the list: for its quant and size, and a few words."""
PIPE_WIDTH: Final = 250
"""Of a list in a pipe or a file, where nothing of it is to be cut."""


# Typer reads help as rich markup: a bracket that is meant has to be escaped.
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help=r"""List, pull, make and show models.

    A model is one of:
      ~/models/mine.gguf                    a GGUF file
      hf://owner/repo:Q4_K_M                that quant of a Hugging Face repository
      hf://owner/repo/file.gguf@revision    one file of a repository
      builtin:NAME                          shipped with this package, or made by it
      ollama://qwen2.5:0.5b                 a name that `list` shows, or an unambiguous part
    """,
)

Reference = Annotated[
    str,
    typer.Argument(
        help=r"A path, hf://owner/repo\[:QUANT], hf://owner/repo/file.gguf\[@revision], "
        r"builtin:NAME\[:QUANT] or a name that `cobali models list` shows.",
        metavar="MODEL",
        autocompletion=complete_model,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command("list")
def list_models(
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Also show models with random weights, which are for measuring.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List this machine's models: built in, or downloaded from the Hub or by Ollama, LM Studio or llama.cpp.

    `cobali serve` takes the name in the first column, or an unambiguous part of it.

    Examples:
      cobali models list
      cobali serve ollama://qwen2.5:0.5b
      cobali serve qwen2.5:0.5b
    """
    rows = _rows(everything=everything)
    if as_json:
        _print_json(rows)
        return
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = list_console()
    longest = max(len(row["reference"]) for row in rows)  # it is to be copied: whole while there is room
    if min(longest, NUMBERS_WIDTH) > console.width - NUMBERS_WIDTH:
        for row in rows:
            details = Text.assemble(f"{row['quant'] or '-'}  {_size(row)}  ", _what(row))
            console.print(row["reference"], soft_wrap=True)
            console.print(Padding.indent(details, 2))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("model", overflow="fold", width=min(longest, console.width - NUMBERS_WIDTH))
    for heading in ("quant", "size"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what it is")
    for row in rows:
        table.add_row(row["reference"], row["quant"] or "-", _size(row), _what(row))
    console.print(table)


def list_console() -> Console:
    """Return a console for lists, as wide as the terminal; in a pipe or a file, nothing on it is cut."""
    from rich.console import Console

    fits = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(markup=False, highlight=False, width=None if fits else PIPE_WIDTH)


def _rows(*, everything: bool) -> list[dict[str, Any]]:
    """Return what is known of models, downloads first; of a file that cannot be read, why."""
    from cobali_ray.models import registry
    from cobali_ray.models.local import local_models

    rows: list[dict[str, Any]] = []
    for model in local_models():
        row = {
            "reference": model.reference,
            "source": model.source,
            "name": model.name,
            "quant": None,
            "made": True,
            "size_bytes": model.size_bytes,
            "path": str(model.files[0]),
        }
        try:
            facts = registry.describe(model.files[0])
            row |= {name: facts[name] for name in ("quant", "architecture", "parameters")}
        except CobaliError as error:
            row["error"] = str(error)
        rows.append(row)
    return rows + [
        {"reference": model.reference, "source": "builtin", **dataclasses.asdict(model)}
        for model in registry.available()
        if everything or not model.name.startswith(SYNTHETIC)
    ]


def _size(row: dict[str, Any]) -> str:
    return f"{row['size_bytes'] / 1e6:,.1f} MB" if row["made"] else "-"


def _what(row: dict[str, Any]) -> Text:
    """Return what a model is, cut to one line; why it cannot be read, on as many as that takes."""
    from rich.text import Text

    if "error" in row:
        return Text(row["error"], style="red")
    if row["source"] == "builtin":
        text = row["description"] if row["default"] else ""
    else:
        source = SOURCES.get(row["source"], "Hugging Face")
        text = f"{row['architecture']}, {_in_short(row['parameters'])} parameters, from {source}"
    return Text(text, no_wrap=True, overflow="ellipsis")


def _in_short(n: int) -> str:
    for unit, name in ((1e9, "billion"), (1e6, "million")):
        if n >= unit:
            return f"{n / unit:.1f} {name}"
    return f"{n:,}"


@app.command("make")
def make_model(
    name: Annotated[str, typer.Argument(help=r"A built-in model, NAME\[:QUANT].")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random weights of a synthetic model.")] = 0,
    vocab_gguf: Annotated[
        Path | None,
        typer.Option(help="Copy this GGUF file's vocabulary into a synthetic model with 151,936 tokens."),
    ] = None,
) -> None:
    """Make a built-in model and print where its file is."""
    reference = f"builtin:{name.removeprefix('builtin:')}"
    typer.echo(str(_resolve(reference, seed=seed, vocab_gguf=vocab_gguf)))


@app.command("pull")
def pull_model(reference: Reference) -> None:
    r"""Download a model from the Hub, if it is not here yet, and print where its file is.

    An interrupted download continues where it stopped. Without a quant, Q4_K_M is taken if there is one.

    Examples:
      cobali models pull hf://Qwen/Qwen2.5-0.5B-Instruct-GGUF
      cobali models pull hf://Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q5_K_M
    """
    typer.echo(str(_resolve(reference)))


@app.command("show")
def show_model(reference: Reference, *, as_json: AsJson = False) -> None:
    """Show what a model's file says about itself, making or downloading the model first if necessary."""
    from rich.console import Console
    from rich.table import Table

    from cobali_ray.models import registry

    path = _resolve(reference)
    facts = registry.describe(path)
    if facts["cell_bytes"] is None:
        facts["cell_bytes"] = _measured_cell_bytes(path)
    if as_json:
        _print_json(facts)
        return
    table = Table(show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for field, value in facts.items():
        text = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in _in_words(value))
        table.add_row(field, text)
    Console(markup=False, highlight=False).print(table)  # a file's words are no commands


def _measured_cell_bytes(path: Path) -> int | None:
    """Return what a token takes in a cache by llama.cpp's own account; None where it gives none."""
    from cobali_ray.backend.config import DEFAULT_N_CTX, LlamaConfig
    from cobali_ray.backend.fit import estimated_need

    config = LlamaConfig(path=path, n_ctx=DEFAULT_N_CTX, n_threads=1, n_slots=1, n_batch=512)
    need = estimated_need(config)
    return None if need is None else need.cell_bytes


@contextlib.contextmanager
def progress_bars() -> Iterator[Callable[[str, float], None]]:
    """Show a bar per step of long work on stderr, so that stdout stays clean for pipes."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bars = Progress(*columns, console=Console(stderr=True), transient=True)
    tasks: dict[str, Any] = {}

    def progress(what: str, done: float) -> None:
        bars.start()  # not before: where there is nothing to do, nothing is drawn
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=1.0)
        bars.update(tasks[what], completed=done)

    try:
        yield progress
    finally:
        if tasks:
            bars.stop()


def _resolve(reference: str, **options: Any) -> Path:
    from cobali_ray.models import registry

    with progress_bars() as progress:
        return registry.resolve(reference, progress=progress, **options)


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
