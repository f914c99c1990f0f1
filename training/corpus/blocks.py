"""Read the typed tables: blocks of `[name]`, then wordings, an answer, and what else belongs to them.

| line starts with | meaning |
|---|---|
| `?` | a wording; one in six is held out |
| `+` | a further wording, only trained on |
| `~` | what a definition may be asked by: `a tick | ticks` |
| `@` | what the answer rests on, a claim about the server (`server_facts.py`) |
| `=` | the answer; terms between asterisks must be in any right answer, and `{n_slots}` is the default of that setting |
| `!` | the answer if one of the claims does not hold |
| `-` | one of three bullet points, terms marked likewise |
| `#` | a remark |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

from training.corpus.server_facts import filled, holds

_TERM = re.compile(r"\*([^*]+)\*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One entry of a table."""

    name: str
    wordings: tuple[str, ...]
    further: tuple[str, ...]
    aliases: tuple[str, ...]
    answer: str
    terms: tuple[str, ...]
    bullets: tuple[str, ...]
    bullet_terms: tuple[str, ...]


def read_blocks(file_name: str) -> tuple[Block, ...]:
    """Read a file of `tables/`.

    Raises:
        ValueError: a line is of no known form, or a block lacks its answer, or its answer is no longer true.
    """
    return tuple(
        _block(part) for part in re.split(r"\n\s*\n", _table(file_name).strip()) if not _only_remarks(part)
    )


def read_wordings(file_name: str, mark: str) -> dict[str, tuple[str, ...]]:
    """Read wordings by the source they belong to: `[source]`, then lines that start with `mark`.

    Raises:
        ValueError: a line is of no known form.
    """
    by_source: dict[str, list[str]] = {}
    for line in _table(file_name).splitlines():
        if head := re.fullmatch(r"\[([\w .-]+)\]", line):
            lines = by_source.setdefault(head[1], [])
        elif line.startswith(f"{mark} "):
            lines.append(line[2:].strip())
        elif line and not line.startswith("#"):
            raise ValueError(f"{file_name}: {line!r} starts with no known mark")
    return {name: tuple(lines) for name, lines in by_source.items()}


def _table(file_name: str) -> str:
    return (resources.files("training.corpus") / "tables" / file_name).read_text(encoding="utf-8")


def _only_remarks(part: str) -> bool:
    return all(line.startswith("#") for line in part.splitlines())


def _block(part: str) -> Block:
    by_mark: dict[str, list[str]] = {mark: [] for mark in "?+~@=!-#"}
    head, *rest = [line for line in part.splitlines() if not line.startswith("#")]
    if not re.fullmatch(r"\[[\w .-]+\]", head):
        raise ValueError(f"a block starts with {head!r} instead of [name]")
    for line in rest:
        if line[:2] not in {"? ", "+ ", "~ ", "@ ", "= ", "! ", "- "}:
            raise ValueError(f"in {head}: {line!r} starts with no known mark")
        by_mark[line[0]].append(line[2:].strip())
    if len(by_mark["="]) != 1:
        raise ValueError(f"{head} has {len(by_mark['='])} answers")
    (answer,) = by_mark["="]
    if failed := [claim for claim in by_mark["@"] if not holds(claim)]:
        if not by_mark["!"]:
            raise ValueError(f"{head} is no longer true, for this does not hold: {', '.join(failed)}")
        (answer,) = by_mark["!"]
    answer = filled(answer)
    return Block(
        name=head[1:-1],
        wordings=tuple(by_mark["?"]),
        further=tuple(by_mark["+"]),
        aliases=tuple(alias.strip() for line in by_mark["~"] for alias in line.split("|")),
        answer=_TERM.sub(r"\1", answer),
        terms=tuple(_TERM.findall(answer)),
        bullets=tuple(_TERM.sub(r"\1", line) for line in by_mark["-"]),
        bullet_terms=tuple(term for line in by_mark["-"] for term in _TERM.findall(line)),
    )
