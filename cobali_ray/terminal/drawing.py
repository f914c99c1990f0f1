"""An answer on a terminal: markdown while it comes, and one line of the server's numbers after it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

from cobali_ray.terminal.asking import AnswerEnd, AnswerWait

FENCE = re.compile(r"^ {0,3}(```+|~~~+)(.*)$")
ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])\s")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
REDRAW_S = 0.08
_MAX_LINES_BELOW = 2
"""Kept free under a block that grows: the cursor's line and one more."""


def harmless(text: str) -> str:
    """Remove what would steer a terminal: no answer moves the cursor or renames the window."""
    return _CONTROL.sub("", text)


def split_blocks(text: str) -> tuple[list[str], str]:
    """Take whole blocks of markdown off its beginning: they end at an empty line outside of code and lists.

    What is left grows on, and is drawn again and again.
    """
    blocks: list[str] = []
    begun, fence, at = 0, "", 0
    was_empty = False
    for line in text.splitlines(keepends=True):
        listed = ITEM.match(text, begun) and (line[0].isspace() or ITEM.match(line))
        if was_empty and not fence and not line.isspace() and not line[0].isspace() and not listed:
            blocks.append(text[begun:at].strip("\n"))
            begun = at
        match = FENCE.match(line.rstrip("\n"))
        if match and not fence:
            fence = match[1]
        elif match and match[1][0] == fence[0] and len(match[1]) >= len(fence) and not match[2].strip():
            fence = ""
        was_empty = line.isspace()
        at += len(line)
    return [block for block in blocks if block], text[begun:]


class TextBlock:
    """Something without the empty lines around it."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def lines(self, console: Console, options: ConsoleOptions) -> list[list[Segment]]:
        lines = console.render_lines(self._inner, options.update(height=None), pad=False)
        while lines and _is_empty(lines[0]):
            del lines[0]
        while lines and _is_empty(lines[-1]):
            del lines[-1]
        return lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines(console, options):
            yield from line
            yield Segment.line()


def _is_empty(line: list[Segment]) -> bool:
    return all(not part.text.strip() and not (part.style and part.style.bgcolor) for part in line)


class Tail(TextBlock):
    """The last lines of a block that may be higher than the terminal, and an empty one with the cursor.

    There the terminal writes ^C. At the end of a full line it would wrap, and the next drawing be a line off.
    """

    def lines(self, console: Console, options: ConsoleOptions) -> list[list[Segment]]:
        return [*super().lines(console, options)[-max(1, console.height - _MAX_LINES_BELOW) :], []]


class Drawing:
    """Draws one answer as it comes. What is whole is printed once; only the last block is drawn anew."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        self._console, self._now = console, now
        # Rich's own thread would draw in between what this one prints.
        self._live = Live(console=console, transient=True, auto_refresh=False, vertical_overflow="visible")
        self._drawn_s = 0.0
        self._reasoning, self._open, self._n_blocks = "", "", 0

    def __enter__(self) -> Self:
        self._live.__enter__()
        self._live.update(Text("...", style="dim"), refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Print what has come, also of an answer that was stopped."""
        self._end_reasoning()
        rest, self._open = self._open, ""
        self._live.update(Text(""))
        self._live.__exit__(kind, error, trace)
        if rest.strip():
            self._print(rest)

    def wait(self, wait: AnswerWait) -> None:
        """Show in place of the answer how far its request is."""
        about = "" if wait.wait_s is None else f", about {wait.wait_s:.0f} s"
        waits = f"waiting for a slot, {wait.n_ahead} ahead{about}"
        state = waits if wait.share is None else f"reading, {wait.share:.0%}"
        self._show(Text(f"... {state}", style="dim"))

    def think(self, text: str) -> None:
        self._reasoning += harmless(text)
        self._show(Tail(Text(self._reasoning.strip(), style="dim italic")))

    def say(self, text: str) -> None:
        self._end_reasoning()
        blocks, self._open = split_blocks(self._open + harmless(text))
        if blocks:
            self._live.update(Text(""), refresh=True)
        for block in blocks:
            self._print(block)
        self._show(Tail(Markdown(self._open)))

    def _show(self, block: RenderableType) -> None:
        """Draw what grows, a few times a second."""
        now = self._now()
        due = now - self._drawn_s > REDRAW_S
        self._drawn_s = now if due else self._drawn_s
        self._live.update(block, refresh=due)

    def _end_reasoning(self) -> None:
        thought, self._reasoning = self._reasoning.strip(), ""
        if thought:
            self._live.update(Text(""), refresh=True)
            self._console.print(Text(thought, style="dim italic"))
            self._n_blocks += 1

    def _print(self, block: str) -> None:
        if self._n_blocks:
            self._console.print()
        self._n_blocks += 1
        self._console.print(TextBlock(Markdown(block)))


def numbers_of(ending: AnswerEnd, *, stopped: bool = False) -> str:
    """Return the server's numbers of an answer as one line."""
    usage, timings = ending.usage, ending.timings
    parts = []
    if (n_output := usage.get("completion_tokens")) is not None:
        parts.append(f"{n_output} token{'' if n_output == 1 else 's'}")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if (n_prompt := usage.get("prompt_tokens")) is not None:
        parts.append(f"prompt {n_prompt}" + (f" ({cached} cached)" if cached else ""))
    if (ttft_s := timings.get("ttft_s")) is not None:
        parts.append(f"first after {1000 * ttft_s:.0f} ms" if ttft_s < 1 else f"first after {ttft_s:.1f} s")
    if (rate := timings.get("tokens_per_second")) is not None:
        parts.append(f"{rate:.1f} tok/s")
    if stopped:
        parts.append("stopped")
    elif ending.finish_reason == "length":
        parts.append("cut at the length limit: /set max_tokens=N allows more")
    elif ending.finish_reason not in {"stop", None}:
        parts.append(str(ending.finish_reason))
    return ", ".join(parts)
