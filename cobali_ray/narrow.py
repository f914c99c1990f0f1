"""Help on a narrow terminal: a block of lines for each option, where typer's table would cut its words."""

from __future__ import annotations

import shutil
from typing import Any, Final

NARROW_COLUMNS: Final = 60
"""With fewer columns than this, words in typer's tables are cut."""


def mend_help() -> None:
    """Have typer print help this way if the terminal is narrow."""
    if shutil.get_terminal_size().columns < NARROW_COLUMNS:
        from typer import rich_utils

        rich_utils.rich_format_help = print_narrow


def print_narrow(*, obj: Any, ctx: Any, markup_mode: Any) -> None:
    """Print the help of a command or a group, in place of typer's `rich_format_help`."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(" ".join(obj.get_usage(ctx).split())), "")
    for line in (obj.help or "").replace("\b", "").strip().splitlines():
        console.print(Text.from_markup(line.rstrip()))
    blocks = [record for param in obj.get_params(ctx) if (record := param.get_help_record(ctx)) is not None]
    titled = [("Options", blocks)]
    if commands := getattr(obj, "commands", None):
        about = [(name, (one.help or "").strip().partition("\n")[0]) for name, one in commands.items()]
        titled.append(("Commands", about))
    for title, records in titled:
        console.print("", Text(title, style="bold"), sep="\n")
        for name, words in records:
            console.print(Padding.indent(Text(name, style="cyan"), 2))
            console.print(Padding.indent(Text.from_markup(" ".join(words.split())), 6))
    del markup_mode
