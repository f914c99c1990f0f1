"""Models that other programs have downloaded to this machine: found by their folders, known by their names.

Only folders, links and Ollama's manifests are read here, so that a shell's completion is quick; `ggufmeta`
reads what is in a file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from cobali_ray.models.files import models_among, quant_of
from cobali_ray.models.reference import NameReference

HUB = "hf"
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_OLLAMA_HOST = "registry.ollama.ai"
_OLLAMA_FOLDERS = ("/usr/share/ollama/.ollama/models",)
"""Where its system service keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model on this machine: `files` are all of it, the one to load first."""

    source: str
    name: str
    files: tuple[Path, ...]

    @property
    def reference(self) -> str:
        """What to write after `model:`."""
        return f"{self.source}://{self.name}"

    @property
    def size_bytes(self) -> int:
        """Return the size of all files; those that are gone count nothing."""
        total = 0
        for file in self.files:
            with suppress(OSError):
                total += file.stat().st_size
        return total

    @property
    def names(self) -> tuple[str, ...]:
        """The names that mean it, in small letters: its own, its file's, and `repo:quant`."""
        if self.source == "ollama":
            bare = self.name.removesuffix(":latest")
            return tuple(dict.fromkeys((self.name.lower(), bare.lower())))
        plain = self.name.rsplit("@", 1)[0] if self.source == HUB else self.name
        names = [self.name, plain, Path(plain).name, Path(plain).stem]
        folders = Path(plain).parts[:-1]
        for repo in {"/".join(folders[:2]), "/".join(folders[1:2])} - {""}:
            names.append(repo)
            if quant := quant_of(plain):
                names.append(f"{repo}:{quant}")
        return tuple(dict.fromkeys(name.lower() for name in names))


def local_models(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> list[LocalModel]:
    """Find what Ollama, LM Studio, llama.cpp and huggingface_hub have; what cannot be read is left out."""
    home = home or Path.home()
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    models: list[LocalModel] = []
    own = Path(environ.get("OLLAMA_MODELS") or home / ".ollama" / "models")
    for folder in dict.fromkeys((own, *map(Path, _OLLAMA_FOLDERS))):
        models += _of_ollama(folder)
    for folder in (home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"):
        models += _in_folder("lmstudio", folder)
    models += _in_folder("llamacpp", Path(environ.get("LLAMA_CACHE") or cache / "llama.cpp"))
    models += _of_hub(hub_cache(environ, home))
    return models


def meant_by(reference: NameReference, models: Iterable[LocalModel]) -> list[LocalModel]:
    """Return the models that a name means, one of each file."""
    name = reference.name.lower()
    meant = [model for model in models if reference.source in {None, model.source} and name in model.names]
    return list({model.files[0].resolve(): model for model in reversed(meant)}.values())[::-1]


def near(reference: NameReference, models: Iterable[LocalModel], others: Iterable[str]) -> list[str]:
    """Return the references of models, and of `others`, with names like this one."""
    names = {other.partition(":")[2]: other for other in others}
    for model in models:
        names |= dict.fromkeys((*model.names, model.reference.lower()), model.reference)
    matches = get_close_matches(str(reference).lower(), names, n=3)
    matches += get_close_matches(reference.name.lower(), names, n=3)
    return list(dict.fromkeys(names[name] for name in matches))[:3]


def _of_ollama(folder: Path) -> Iterator[LocalModel]:
    """Read the manifests: manifests/HOST/OWNER/MODEL/TAG names blobs by their digests."""
    manifests = folder / "manifests"
    for file in _files_below(manifests):
        with suppress(OSError, ValueError, KeyError, TypeError):
            layers = json.loads(file.read_bytes())["layers"]
            digests = [layer["digest"] for layer in layers if layer["mediaType"] == _OLLAMA_MODEL]
            blobs = tuple(folder / "blobs" / str(digest).replace(":", "-", 1) for digest in digests)
            host, *owner, model, tag = file.relative_to(manifests).parts
            words = [*(() if host == _OLLAMA_HOST else (host,)), *owner, model]
            if words[0] == "library":
                words = words[1:]
            if blobs and blobs[0].is_file():
                yield LocalModel(source="ollama", name=f"{'/'.join(words)}:{tag}", files=blobs)


def _in_folder(source: str, folder: Path) -> Iterator[LocalModel]:
    names = [file.relative_to(folder).as_posix() for file in _files_below(folder)]
    for name, files in models_among(names).items():
        yield LocalModel(source=source, name=name, files=tuple(folder / file for file in files))


def _of_hub(folder: Path) -> Iterator[LocalModel]:
    """Read huggingface_hub's cache: models--OWNER--REPO/snapshots/COMMIT/FILE, and refs/NAME."""
    with suppress(OSError):
        for repo in sorted(folder.glob("models--*")):
            repo_id, refs = repo.name.removeprefix("models--").replace("--", "/"), repo / "refs"
            names = {_text(file): file.relative_to(refs).as_posix() for file in _files_below(refs)}
            names[_text(refs / "main")] = "main"  # whatever else means the same commit
            for snapshot in sorted((repo / "snapshots").glob("*")):
                named = names.get(snapshot.name, snapshot.name)
                at = "" if named == "main" else f"@{named}"
                for model in _in_folder(HUB, snapshot):
                    yield replace(model, name=f"{repo_id}/{model.name}{at}")


def cached_models(folder: Path, repo_id: str, revision: str) -> dict[str, tuple[str, ...]]:
    """Return the models that huggingface_hub's cache has of a repository at a branch, tag or commit."""
    repo = folder / f"models--{repo_id.replace('/', '--')}"
    snapshot = repo / "snapshots" / (_text(repo / "refs" / revision) or revision)
    return models_among(file.relative_to(snapshot).as_posix() for file in _files_below(snapshot))


def hub_cache(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> Path:
    """Return huggingface_hub's folder, which need not exist yet."""
    if own := environ.get("HF_HUB_CACHE"):
        return Path(own).expanduser()
    cache = Path(environ.get("XDG_CACHE_HOME") or (home or Path.home()) / ".cache")
    return Path(environ.get("HF_HOME") or cache / "huggingface").expanduser() / "hub"


def _text(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text(encoding="utf-8").strip()
    return ""


def _files_below(folder: Path) -> list[Path]:
    """Return the files below a folder, as far as this account may look."""
    files = [Path(where, name) for where, _, names in os.walk(folder) for name in names]
    return sorted(file for file in files if file.is_file())
