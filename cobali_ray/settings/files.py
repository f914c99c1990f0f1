"""Files and words that settings name, and how values are shown in errors."""

from __future__ import annotations

import stat
from pathlib import Path
from reprlib import Repr
from typing import Any

from cobali_ray.errors import ConfigError

MAX_TEXT_BYTES = 16 << 20
"""Of a file that a setting names and that people write."""
_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxdict, _SHORT.maxlist, _SHORT.maxstring, _SHORT.maxother = 2, 3, 3, 80, 80


def read_text(setting: str, path: Path) -> str:
    """Read a file that a setting names. Raises ConfigError where it is none, too large, or not text."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigError(setting, f"{path} is not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
        if len(data) > MAX_TEXT_BYTES:
            raise ConfigError(setting, f"{path} is larger than {MAX_TEXT_BYTES >> 20} MiB")
        return data.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(setting, f"there is no file {path}") from None
    except OSError as error:
        raise ConfigError(setting, f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(setting, f"{path} cannot be read: it is not text") from None


def is_text(value: str) -> bool:
    """Whether a string can name a file and be logged: no null character, no half of a surrogate pair."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def short(value: Any) -> str:
    """Show a value shortened; a few words in YAML can stand for more than memory holds."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # a number that Python writes no digits of
        return "a very large number"
