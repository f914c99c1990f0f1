"""What `model:` may say, as a value. Pure: nothing here looks at a disk or a network."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cobali_ray.errors import ConfigError

_FORMS = "a path to a GGUF file, hf://owner/repo/file.gguf[@revision] or builtin:NAME[:QUANT]"
_HUB = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<early>[^@]+?))?/(?P<file>[^@]+\.gguf)(?:@(?P<late>[^@]+))?",
    re.ASCII,
)
_BUILTIN = re.compile(r"(?P<name>[\w.-]+)(?::(?P<quant>\w+))?", re.ASCII)
_OTHER_KINDS = ("datasets/", "spaces/", "kernels/", "buckets/")


@dataclass(frozen=True, slots=True)
class PathReference:
    """A file on this machine; `~` is not expanded yet."""

    path: str


@dataclass(frozen=True, slots=True)
class HubReference:
    """One file of a model repository on the Hugging Face Hub."""

    repo_id: str
    filename: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"hf://{self.repo_id}/{self.filename}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True, slots=True)
class BuiltinReference:
    """A model that the package makes or carries; no quant means the model's default."""

    name: str
    quant: str | None = None


ModelReference = PathReference | HubReference | BuiltinReference


def parse_reference(text: str) -> ModelReference:
    """Parse the value of the setting `model`.

    The revision of a Hub file may stand at the end or, as huggingface_hub writes it, after the repository.

    Raises:
        ConfigError: the text has none of the three forms; whether it leads anywhere is not asked here.
    """
    if not text.strip():
        raise ConfigError("model", f"is empty; give {_FORMS}")
    if text.startswith("hf://"):
        return _parse_hub(text)
    if text.startswith("builtin:"):
        match = _BUILTIN.fullmatch(text.removeprefix("builtin:"))
        if match is None:
            raise ConfigError("model", f"'{text}' is not builtin:NAME or builtin:NAME:QUANT")
        quant = match["quant"]
        return BuiltinReference(match["name"], quant.upper() if quant else None)
    if "://" in text:
        raise ConfigError("model", f"'{text}' is a kind of address we do not read; give {_FORMS}")
    return PathReference(text)


def _parse_hub(text: str) -> HubReference:
    body = text.removeprefix("hf://").removeprefix("models/")
    if body.startswith(_OTHER_KINDS):
        raise ConfigError("model", f"'{text}' is not in a model repository")
    match = _HUB.fullmatch(body)
    if match is None or (match["early"] and match["late"]):
        raise ConfigError("model", f"'{text}' is not hf://owner/repo/file.gguf[@revision]")
    if any(part in {"", ".", ".."} for part in match["file"].split("/")):
        raise ConfigError("model", f"'{text}' does not name a file inside the repository")
    return HubReference(match["repo"], match["file"], match["early"] or match["late"])
