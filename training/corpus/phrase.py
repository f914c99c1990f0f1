"""A small pattern language for wordings: `(a|b)` chooses, `[a|b]` may also be left out, `<name>` is filled in later."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from random import Random

_ARTICLE = re.compile(r"\b([aA]) (?=[aeiou]\w)(?!one\b)")
_WORD = re.compile(r"[^\W_]+")
_SLOT = re.compile(r"<(\w+)>")
_SPACES = re.compile(r" {2,}")
_BEFORE_MARK = re.compile(r" +([?!.,:;])")

Part = "str | tuple[tuple[Part, ...], ...]"
"""Text, or a choice between sequences of parts."""


class PatternError(ValueError):
    """A wording that was typed wrongly."""


@functools.cache
def parse(pattern: str) -> tuple[Part, ...]:  # type: ignore[valid-type]
    """Read a pattern once.

    Raises:
        PatternError: a bracket has no counterpart.
    """
    parts, at = _sequence(pattern, 0, end="")
    if at != len(pattern):
        raise PatternError(f"stray bracket in {pattern!r}")
    return parts


def say(pattern: str, rng: Random) -> str:
    """Choose one expansion; slots stay as they are. Doubled spaces and spaces before marks are closed up."""
    return tidy(_choose(parse(pattern), rng))


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace every slot. A slot without a value is a KeyError."""
    return _SLOT.sub(lambda slot: values[slot[1]], text)


def outside_slots(text: str, change: Callable[[str], str]) -> str:
    """Change what stands between slots and leave the slots alone."""
    pieces = re.split(r"(<\w+>)", text)
    return "".join(piece if _SLOT.fullmatch(piece) else change(piece) for piece in pieces)


def tidy(text: str) -> str:
    """Close up what optional parts left behind."""
    return _BEFORE_MARK.sub(r"\1", _SPACES.sub(" ", text)).strip(" ")


def with_articles(text: str) -> str:
    """Write `an` before a vowel."""
    return _ARTICLE.sub(r"\1n ", text)


def normal(text: str) -> str:
    """Return the words of a text alone: two questions with the same words are the same question."""
    return " ".join(_WORD.findall(text.casefold()))


def expansions(pattern: str) -> list[str]:
    """Return every way to say a pattern; some stand for tens of thousands."""
    return [tidy(text) for text in _expand(parse(pattern))]


def _expand(parts: Sequence[Part]) -> list[str]:  # type: ignore[valid-type]
    texts = [""]
    for part in parts:
        ways = [part] if isinstance(part, str) else [text for way in part for text in _expand(way)]
        texts = [begun + way for begun in texts for way in ways]
    return texts


def _sequence(pattern: str, at: int, *, end: str) -> tuple[tuple[Part, ...], int]:  # type: ignore[valid-type]
    parts: list[Part] = []  # type: ignore[valid-type]
    text, stops = "", f"{end}|" if end else ""
    while at < len(pattern) and pattern[at] not in stops:
        mark = pattern[at]
        if mark in "([":
            parts, text = ([*parts, text] if text else parts), ""
            choice, at = _choice(pattern, at)
            parts.append(choice)
        elif mark in ")]":
            raise PatternError(f"stray {mark} in {pattern!r}")
        else:
            text, at = text + mark, at + 1
    return tuple([*parts, text] if text else parts), at


def _choice(pattern: str, at: int) -> tuple[Part, int]:  # type: ignore[valid-type]
    end = ")" if pattern[at] == "(" else "]"
    ways, start = [], at
    at += 1
    while True:
        way, at = _sequence(pattern, at, end=end)
        ways.append(way)
        if at >= len(pattern):
            raise PatternError(f"bracket at {start} is not closed in {pattern!r}")
        at += 1
        if pattern[at - 1] == end:
            return tuple(ways if end == ")" else [*ways, ()]), at


def _choose(parts: Sequence[Part], rng: Random) -> str:  # type: ignore[valid-type]
    return "".join(part if isinstance(part, str) else _choose(rng.choice(part), rng) for part in parts)
