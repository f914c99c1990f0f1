"""A conversation: what was said, with which settings. Pure, but for the file it is kept in."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from cobali_ray.errors import ConfigError

OWN_PARAMETERS: Final = frozenset({"messages", "model", "n", "stream", "stream_options"})
"""Parameters that a chat sets itself. It shows one answer, so `n` is among them."""


@dataclass(slots=True)
class Conversation:
    """Messages in order, the system prompt apart, and what is sent with each request."""

    model: str
    system: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)

    def body(self) -> dict[str, Any]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return self.settings | {"model": self.model, "messages": [*system, *self.messages]}

    def ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def take(self, text: str) -> None:
        """Add the answer, as far as it came."""
        self.messages.append({"role": "assistant", "content": text})

    def take_back(self) -> str | None:
        """Remove the last question, and its answer if there is one, and return it."""
        while self.messages:
            last = self.messages.pop()
            if last["role"] == "user":
                return last["content"]
        return None

    def save(self, path: Path) -> None:
        """Write all of it as JSON. Raises ConfigError."""
        try:
            path.expanduser().write_text(
                json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
        except (OSError, RuntimeError) as error:  # the latter: there is no such user
            raise ConfigError("/save", f"cannot write {path}: {getattr(error, 'strerror', error)}") from error

    def load(self, path: Path) -> None:
        """Take system prompt, settings and messages of a file; the model stays. Raises ConfigError."""
        try:
            saved = json.loads(path.expanduser().read_text(encoding="utf-8"))
            system, settings, messages = str(saved["system"]), dict(saved["settings"]), saved["messages"]
            read = [
                {"role": str(message["role"]), "content": str(message["content"])} for message in messages
            ]
        except (OSError, RuntimeError) as error:
            raise ConfigError("/load", f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError("/load", f"{path} is not a conversation written by /save") from error
        self.system, self.settings, self.messages = system, settings, read


def read_setting(text: str, where: str = "--set") -> tuple[str, Any]:
    """Read NAME=VALUE, a value in JSON or else a text; nothing is None. Raises ConfigError."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name.isidentifier():
        raise ConfigError(where, f"expected NAME=VALUE such as temperature=0.2, got '{text}'")
    if name in OWN_PARAMETERS:
        raise ConfigError(where, f"{name} is set by the chat itself")
    try:
        return name, json.loads(value) if value else None
    except ValueError:
        return name, value
