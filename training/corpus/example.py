"""The values of the corpus: turns, examples, and what a right answer to a question must show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = (
    "greeting",
    "server",
    "sums",
    "letters",
    "sorting",
    "calendar",
    "facts",
    "json",
    "writing",
    "follow",
    "turns",
    "unknown",
    "agents",
    "tools",
)
"""What the model can do."""
LONG_SYSTEM = 400
"""Characters of a system turn from which on it is an agent's."""
KINDS_WITHOUT_TOOLS = tuple(kind for kind in KINDS if kind not in {"agents", "tools"})


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation."""

    role: str
    text: str

    def as_message(self) -> dict[str, str]:
        """Return it as the chat API wants it."""
        return {"role": self.role, "content": self.text}


@dataclass(frozen=True, slots=True)
class Check:
    """The name of a checker in `checks.py`, and what it needs to know."""

    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A conversation that ends with the assistant's answer, and how to tell whether another one is right."""

    kind: str
    source: str
    turns: tuple[Turn, ...]
    check: Check
    has_tools: bool = False
    """Whether its first turn offers tools."""

    @property
    def alone(self) -> bool:
        """Whether nothing else may be asked in the same conversation: its answer depends on how it begins."""
        return self.has_tools or (len(self.turns[0].text) >= LONG_SYSTEM and self.turns[0].role == "system")

    @property
    def question(self) -> str:
        """The last thing the user said."""
        return self.turns[-2].text

    @property
    def answer(self) -> str:
        """What the assistant should say to it."""
        return self.turns[-1].text

    @property
    def prompt(self) -> tuple[Turn, ...]:
        """All but the answer."""
        return self.turns[:-1]
