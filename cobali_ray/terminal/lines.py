"""What somebody types: one line or several, with a history that outlives the program, and slash commands."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NamedTuple

from cobali_ray.errors import ConfigError

MARK: Final = '"""'
"""Opens and closes a text of several lines."""
HISTORY_LINES: Final = 1000
_COMMAND = re.compile(r"/([a-z]*)(?:\s+(.*))?", re.DOTALL)


class Command(NamedTuple):
    """A slash command, and what follows it."""

    name: str
    rest: str


def read_text(ask: Callable[[str], str]) -> str:
    r"""Read what is to be sent: a line, lines that end with \, or lines between triple quotes."""
    text = ask("> ")
    if text.lstrip().startswith(MARK):
        text = text.lstrip().removeprefix(MARK)
        while not text.rstrip().endswith(MARK):
            text += "\n" + ask(". ")
        return text.rstrip().removesuffix(MARK).strip("\n")
    while text.endswith("\\"):
        text = text[:-1] + "\n" + ask(". ")
    return text.strip()


def piped_text() -> str:
    """Return what is piped in. Raises ConfigError where it is not text."""
    try:
        text = sys.stdin.read()
        text.encode()  # by some locales, Python reads any bytes
    except UnicodeError:
        raise ConfigError("stdin", "what is piped in is not text") from None
    return text


def command_in(text: str, commands: Mapping[str, object]) -> Command | None:
    """Return a text as a slash command; None for others, such as a path. Raises ConfigError."""
    match = _COMMAND.fullmatch(text)
    if match is None:
        return None
    name, rest = match[1], (match[2] or "").strip()
    if name not in commands:
        near = get_close_matches(name, commands, n=1)
        hint = f"did you mean /{near[0]}? " if near else ""
        raise ConfigError(f"/{name}", f"there is no such command; {hint}/help lists them")
    return Command(name, rest)


def edit_lines(words: list[str]) -> Callable[[], None]:
    """Let `input` edit lines and remember them, and complete these words. Returns what saves the history."""
    try:
        import readline
    except ImportError:  # a Python without it reads plain lines
        return lambda: None
    file = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "cobali_ray" / "chat"
    with suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(HISTORY_LINES)
    readline.set_completer_delims("\n")
    readline.set_completer(
        lambda text, i: [*(word for word in words if text and word.startswith(text)), None][i]
    )
    readline.parse_and_bind("tab: complete")
    readline.parse_and_bind("set enable-bracketed-paste on")  # pasted lines are one text

    def save() -> None:
        with suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.touch(mode=0o600)
            readline.write_history_file(file)

    return save
