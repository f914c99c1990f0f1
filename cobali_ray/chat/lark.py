"""Rules: the text of a grammar for llguidance, built rule by rule.

It is Lark as llguidance reads it: names in capitals are what the lexer takes as a whole, `<[7]>` is the
control token 7, `@name` another grammar of the same list. The lexer is greedy: where one literal begins like
another, what follows the shorter must not go on like the longer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Special: TypeAlias = Callable[[str], Sequence[str | int]]
"""Cuts a marker into plain text and the ids of control tokens. End tokens are left out."""

ANY_TEXT = "/(?s:.*)/"
SPACE = r"/ |\n{1,2}[ \t]{0,20}/"
"""Between the parts of a call, at most this once."""


class Rules:
    """Rules under names of their own; what was there already keeps its name."""

    def __init__(self, special: Special) -> None:
        self._special = special
        self._rules: dict[str, str] = {}
        """Heads and bodies to the names they have."""
        self._lines: list[str] = []
        self._others: dict[str, str] = {}
        self.space = self.rule(self.terminal(SPACE) + "?")

    def rule(self, body: str, *, lazy: bool = False) -> str:
        """Return the name of a rule; a lazy one takes as little as its one terminal can."""
        return self._named("r", "[lazy]" if lazy else "", body)

    def recursive(self, key: str, make: Callable[[], str]) -> str:
        """Return the name of the rule for this key; `make` gives its body, and may need that very rule."""
        if key not in self._rules:
            name = self._rules[key] = f"r{len(self._rules)}"
            body = make() or '""'  # no text at all
            self._lines.append(f"{name}: {body}")
        return self._rules[key]

    def terminal(self, body: str) -> str:
        """Return the name of a terminal."""
        return self._named("T", "", body)

    def grammar(self, text: str) -> str:
        """Return the reference to another grammar, given as a list with that one alone."""
        if text not in self._others:
            self._others[text] = f"g{len(self._others)}"
        return "@" + self._others[text]

    def marker(self, text: str) -> str:
        """Return what stands for a marker; "" for an empty one."""
        return " ".join(_quoted(piece) for piece in self._special(text)) if text else ""

    def until(self, body: str, marker: str) -> str:
        """Return what stands for a text, given as a terminal's body, and the marker that ends it."""
        stripped = marker.lstrip()
        pieces = list(self._special(stripped))
        n_plain = next((i for i, piece in enumerate(pieces) if isinstance(piece, int)), len(pieces))
        plain = "".join(map(str, pieces[:n_plain]))
        if n_plain < len(pieces):  # no text can hold what follows
            end = f" {_quoted(plain)}" if plain else ""
            text = self.terminal(f"({body}){end}")
            return " ".join((text, *map(_quoted, pieces[n_plain:])))
        if not plain:
            return self.rule(self.terminal(body))
        lead = marker.removesuffix(stripped)
        space = f" {literal(lead)}?" if lead else ""
        return self.rule(self.terminal(f"({body}){space} {_quoted(plain)}"), lazy=True)

    def text(self, start: str) -> str:
        """Return the list of grammars whose first begins with this."""
        lark = "\n".join((f"start: {start}", *self._lines, ""))
        others = [_grammar(text) | {"name": name} for text, name in self._others.items()]
        return json.dumps({"grammars": [{"lark_grammar": lark}, *others]}, ensure_ascii=False)

    def _named(self, prefix: str, options: str, body: str) -> str:
        key = f"{prefix}{options}: {body}"
        if key not in self._rules:
            self._rules[key] = name = f"{prefix}{len(self._rules)}"
            self._lines.append(f"{name}{options}: {body}")
        return self._rules[key]


def literal(text: str) -> str:
    """Return what stands for this very text."""
    return json.dumps(text)


def joined(*parts: str) -> str:
    """Return one part behind the other, without those that are empty."""
    return " ".join(part for part in parts if part)


def one_of(parts: Sequence[str]) -> str:
    """Return the choice between parts."""
    return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"


def optional(part: str) -> str:
    return f"({part})?" if part else ""


def times(low: int, high: int | None) -> str:
    """Return how often the part before this may come."""
    if high is None:
        return f"{{{low},}}" if low else "*"
    return f"{{{low},{high}}}"


def escaped(text: str) -> str:
    """Return what stands for this text within a regular expression."""
    return re.sub(r"\W", lambda match: f"\\x{{{ord(match[0]):x}}}", text)


def _quoted(piece: str | int) -> str:
    return f"<[{piece}]>" if isinstance(piece, int) else literal(piece)


def _grammar(text: str) -> dict[str, Any]:
    (grammar,) = json.loads(text)["grammars"]
    return {key: value for key, value in grammar.items() if value is not None}
