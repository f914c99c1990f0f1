"""Files of prompts: texts, separated by blank lines."""

from __future__ import annotations

import re
from pathlib import Path

from cobali_ray.errors import ConfigError

_BLANK_LINE = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")


def read_prompts(text: str) -> list[str]:
    """Split a prompts file at its blank lines; a prompt may have several lines. None at all: ConfigError."""
    prompts = [p.strip() for p in _BLANK_LINE.split(text.replace("\r\n", "\n")) if p.strip()]
    if not prompts:
        raise ConfigError("prompts", "there is none in the file")
    return prompts


def read_text(setting: str, path: Path) -> str:
    """Return what a text file holds. Raises ConfigError; `setting` says where the file was named."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(setting, f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(setting, f"{path} is not a text in UTF-8") from error
