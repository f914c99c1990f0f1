"""One report format for every benchmark: a table on the terminal, JSON with every sample, Markdown, plots."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from cobali_ray.errors import ConfigError
from cobali_workloads.report.machine import describe_machine

if TYPE_CHECKING:  # an extra, which --help does without
    from matplotlib.figure import Figure

LOG_WIDTH = 160


@dataclass(slots=True)
class Table:
    """Rows of text under named columns (units in the names); `note` says how to read it."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    note: str = ""

    def markdown(self) -> str:
        """Return a Markdown table."""
        lines = [f"### {self.title}", "", f"| {' | '.join(self.columns)} |", "|---" * len(self.columns) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])

    def rich(self) -> RichTable:
        """Return the table for a terminal."""
        table = RichTable(title=self.title, caption=self.note or None, caption_justify="left")
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="right" if i else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


@dataclass(slots=True)
class Report:
    """What one benchmark found. `samples` holds every single measurement, JSON-ready."""

    name: str
    """A file name: letters, digits, dashes."""
    title: str
    command: str
    """What reproduces it."""
    config: dict[str, Any]
    tables: list[Table] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    """By name; written as `<report>-<name>.png`."""
    notes: list[str] = field(default_factory=list)
    """What a reader must know before believing the numbers."""
    machine: dict[str, Any] = field(default_factory=describe_machine)

    def print(self, console: Console) -> None:
        """Show tables and notes."""
        for table in self.tables:
            console.print(table.rich())
        for note in self.notes:
            console.print(f"[yellow]Note:[/yellow] {note}", highlight=False)

    def write(self, folder: Path) -> list[Path]:
        """Write JSON, Markdown and PNGs into `folder`; return the files."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "name": self.name,
            "title": self.title,
            "command": self.command,
            "config": self.config,
            "machine": self.machine,
            "notes": self.notes,
            "tables": [asdict(table) for table in self.tables],
            "samples": self.samples,
        }
        paths = [folder / f"{self.name}.json", folder / f"{self.name}.md"]
        paths[0].write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
        paths[1].write_text(self.markdown(), encoding="utf-8")
        for name, figure in self.figures.items():
            paths.append(folder / f"{self.name}-{name}.png")
            figure.savefig(paths[-1], dpi=110, bbox_inches="tight")
        return paths

    def markdown(self) -> str:
        """Return the report as Markdown, plots linked."""
        machine = ", ".join(f"{k}: {v}" for k, v in self.machine.items() if k not in {"packages", "openmp"})
        versions = ", ".join(f"{k} {v}" for k, v in self.machine.get("packages", {}).items())
        parts = [f"## {self.title}", "", f"`{self.command}`", "", f"Machine: {machine}. {versions}.", ""]
        parts += [f"- {note}" for note in self.notes]
        parts += ["", *(table.markdown() for table in self.tables)]
        parts += [f"![{name}]({self.name}-{name}.png)\n" for name in self.figures]
        return "\n".join(parts)


def deliver(report: Report, out: Path) -> None:
    """Print a report and write its files. Raises ConfigError where nothing can be written."""
    plain = None if sys.stdout.isatty() else LOG_WIDTH  # a job's log folds nothing by itself
    console = Console(width=plain)
    report.print(console)
    try:
        paths = report.write(out)
    except OSError as error:
        raise ConfigError("--out", f"cannot write into {out}: {error.strerror}") from error
    for path in paths:
        console.print(f"[dim]{path}[/dim]", highlight=False)


def ms(seconds: float) -> str:
    """Write milliseconds."""
    return f"{1000 * seconds:.2f}" if seconds < 0.1 else f"{1000 * seconds:.0f}"


def with_range(values: Sequence[float], unit: str = "x") -> str:
    """Write the median and, of several, the least and the largest."""
    middle = f"{float(np.median(values)):.2f}{unit}"
    return middle if len(values) < 2 else f"{middle} ({min(values):.2f}..{max(values):.2f})"
