"""What `model:` says, as a value. Pure: nothing here looks at a disk or a network."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cobali_ray.errors import ConfigError

FORMS: Final = (
    "a path to a GGUF file, hf://owner/repo[:QUANT], hf://owner/repo/file.gguf, builtin:NAME, "
    "or a name of `cobali models list`"
)
SOURCES: Final = {"ollama": "Ollama", "lmstudio": "LM Studio", "llamacpp": "llama.cpp"}
"""Programs whose downloads are found on this machine: by the scheme of a reference, their names."""
_REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
_HUB_FILE = re.compile(
    _REPO + r"(?:@(?P<early>[^@]+?))?/(?P<file>[^@]+\.gguf)(?:@(?P<late>[^@]+))?", re.ASCII
)
_HUB_REPO = re.compile(_REPO + r"(?::(?P<quant>[\w.-]+))?(?:@(?P<revision>[^@]+))?", re.ASCII)
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
class HubRepository:
    """A model repository on the Hub, of which one quant is meant; none means the usual one."""

    repo_id: str
    quant: str | None = None
    revision: str | None = None

    def __str__(self) -> str:
        quant = f":{self.quant}" if self.quant else ""
        return f"hf://{self.repo_id}{quant}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True, slots=True)
class BuiltinReference:
    """A model that the package makes or carries; no quant means the model's default."""

    name: str
    quant: str | None = None


@dataclass(frozen=True, slots=True)
class NameReference:
    """A model by its name on this machine, in the downloads of one program or, without `source`, of any."""

    name: str
    source: str | None = None

    def __str__(self) -> str:
        return f"{self.source}://{self.name}" if self.source else self.name


ModelReference = PathReference | HubReference | HubRepository | BuiltinReference | NameReference


def parse_reference(text: str) -> ModelReference:
    """Parse the value of the setting `model`.

    The revision of a Hub file comes at the end or, as huggingface_hub writes it, after the repository.

    Raises:
        ConfigError: the text has none of the forms; whether it leads anywhere is not asked here.
    """
    if not text.strip():
        raise ConfigError("model", f"is empty; give {FORMS}")
    if text.startswith("builtin:"):
        match = _BUILTIN.fullmatch(text.removeprefix("builtin:"))
        if match is None:
            raise ConfigError("model", f"'{text}' is not builtin:NAME or builtin:NAME:QUANT")
        quant = match["quant"]
        return BuiltinReference(match["name"], quant.upper() if quant else None)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return PathReference(text) if _is_path(text) else NameReference(text)
    if scheme == "hf":
        return _parse_hub(text)
    if scheme not in SOURCES:
        raise ConfigError("model", f"'{text}' is not a kind of address that is supported; give {FORMS}")
    if not rest:
        raise ConfigError("model", f"'{text}' names no model; `cobali models list` shows what there is")
    return NameReference(rest, scheme)


def _is_path(text: str) -> bool:
    return text.endswith(".gguf") or text.startswith(("/", "./", "../", "~"))


def _parse_hub(text: str) -> HubReference | HubRepository:
    body = text.removeprefix("hf://").removeprefix("models/")
    if body.startswith(_OTHER_KINDS):
        raise ConfigError("model", f"'{text}' is not in a model repository")
    match = _HUB_FILE.fullmatch(body)
    if match is None and (repo := _HUB_REPO.fullmatch(body)):
        return HubRepository(repo["repo"], repo["quant"], repo["revision"])
    if match is None or (match["early"] and match["late"]):
        raise ConfigError(
            "model", f"'{text}' is not hf://owner/repo/file.gguf[@revision] or hf://owner/repo[:QUANT]"
        )
    if any(part in {"", ".", ".."} for part in match["file"].split("/")):
        raise ConfigError("model", f"'{text}' does not name a file inside the repository")
    return HubReference(match["repo"], match["file"], match["early"] or match["late"])
