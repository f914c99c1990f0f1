"""Find and fetch files of the Hugging Face Hub, and say what is at fault when that fails."""

from __future__ import annotations

import contextlib
import errno
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from cobali_ray.errors import ConfigError, ModelNotFoundError, why_of
from cobali_ray.models.files import choose, models_among, parts_of
from cobali_ray.models.local import cached_models
from cobali_ray.models.reference import HubReference, HubRepository

PROBE_TIMEOUT_S = 5.0
_NO_ROOM = "Not enough free disk space"
"""How huggingface_hub's warning begins, which is an error here: half a model is of no use."""
_TRY_LATER_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


class _UnreachableError(Exception):
    """The hub did not answer as a hub; a copy in the cache may serve. `args[0]` is the user's message."""


def download(reference: HubReference, progress: Callable[[str, float], None] | None = None) -> Path:
    """Return the file of `reference` in huggingface_hub's cache, downloaded first if need be.

    Hub and cache are huggingface_hub's own (HF_ENDPOINT, HF_HOME); without `progress` it shows its own bar.
    When the hub cannot be reached, the copy in the cache serves. huggingface_hub by itself asks again for
    some 25 s before it gives up, so one question with a limit of PROBE_TIMEOUT_S goes ahead.

    Raises:
        ModelNotFoundError: saying which of repository, revision, file and network is at fault, and the cure.
        ConfigError: naming `HF_HOME`, when the disk is full or the cache cannot be written.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    def fetch(*, local_files_only: bool) -> Path:
        path: str = hf_hub_download(
            reference.repo_id,
            reference.filename,
            revision=reference.revision,
            local_files_only=local_files_only,
            etag_timeout=PROBE_TIMEOUT_S,
            tqdm_class=None if progress is None else _bar(reference.filename, progress),
        )
        return Path(path)

    try:
        _probe(reference)
        return _translated(lambda: fetch(local_files_only=False))
    except _UnreachableError as error:
        try:
            return fetch(local_files_only=True)
        except LocalEntryNotFoundError:
            raise ModelNotFoundError(
                "model", f"'{reference}': {error}; no copy is in the cache either"
            ) from error


def choose_file(repository: HubRepository) -> HubReference:
    """Return the file of a repository that has the quant which is meant; of a split model, the first.

    When the hub cannot be reached, what is in the cache decides.

    Raises:
        ModelNotFoundError: as `download`, and where none or several files are meant; it names those.
    """
    from huggingface_hub import HfApi, constants

    repo_id, revision = repository.repo_id, repository.revision
    of = f"the repository '{repo_id}'"
    try:
        with _explained(repository):
            info = HfApi().model_info(repo_id, revision=revision, timeout=PROBE_TIMEOUT_S)
    except _UnreachableError as error:
        models = cached_models(Path(constants.HF_HUB_CACHE), repo_id, revision or "main")
        if not models:
            raise ModelNotFoundError(
                "model", f"'{repository}': {error}; no copy is in the cache either"
            ) from error
        of = f"the cache of {of}"
    else:
        models = models_among(file.rfilename for file in info.siblings or ())
    return HubReference(repo_id, choose(models, repository.quant, of)[0], revision)


def cached_file(reference: HubReference | HubRepository) -> Path | None:
    """Return a model's first file in huggingface_hub's cache; None if not all are there. Asks no network."""
    from huggingface_hub import constants, try_to_load_from_cache

    repo_id, revision = reference.repo_id, reference.revision or "main"
    if isinstance(reference, HubRepository):
        models = cached_models(Path(constants.HF_HUB_CACHE), repo_id, revision)
        try:
            name = choose(models, reference.quant, repo_id)[0]
        except ModelNotFoundError:  # the hub may have it
            return None
    else:
        name = reference.filename
    paths = [try_to_load_from_cache(repo_id, part, revision=revision) for part in parts_of(name)]
    here = [path for path in paths if isinstance(path, str)]
    return Path(here[0]) if len(here) == len(paths) else None


def _probe(reference: HubReference) -> None:
    """Ask once whether the file is there."""
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url

    repo_id, revision = reference.repo_id, reference.revision
    try:
        with _explained(reference):
            url = hf_hub_url(repo_id, reference.filename, revision=revision)
            answer = get_hf_file_metadata(url, timeout=PROBE_TIMEOUT_S)
    except errors.RemoteEntryNotFoundError as error:
        at = f" at revision '{revision}'" if revision else ""
        message = (
            f"the repository '{repo_id}' has no file '{reference.filename}'{at}: "
            f"its files are listed at {constants.ENDPOINT}/{repo_id}/tree/{revision or 'main'}"
        )
        raise ModelNotFoundError("model", message) from error
    if answer.commit_hash is None or answer.etag is None:
        raise _not_a_hub()


@contextlib.contextmanager
def _explained(reference: HubReference | HubRepository) -> Iterator[None]:
    """Say in our words why the hub does not answer a question; a file that is not there passes through."""
    import httpx2
    from huggingface_hub import constants, errors

    host, repo_id = constants.ENDPOINT, reference.repo_id
    try:
        yield
    except errors.RemoteEntryNotFoundError:
        raise
    except errors.GatedRepoError as error:
        message = (
            f"the repository '{repo_id}' is gated: accept its terms at {host}/{repo_id} and set HF_TOKEN"
        )
        raise ModelNotFoundError("model", message) from error
    except errors.RepositoryNotFoundError as error:
        message = (
            f"there is no repository '{repo_id}' at {host}, or it is private: check its name or set HF_TOKEN"
        )
        raise ModelNotFoundError("model", message) from error
    except errors.RevisionNotFoundError as error:
        message = (
            f"the repository '{repo_id}' has no revision '{reference.revision}': "
            "name a branch, a tag or a commit"
        )
        raise ModelNotFoundError("model", message) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in _TRY_LATER_STATUSES:
            raise _UnreachableError(f"{host} returned status {status}; try again later") from error
        message = f"{host} refused '{reference}' with status {status}: check HF_TOKEN and that it has access"
        raise ModelNotFoundError("model", message) from error
    except errors.HFValidationError as error:
        raise ConfigError("model", f"'{reference}': {error}") from error
    except (httpx2.TransportError, OSError) as error:
        raise _unreachable(error) from error
    except ValueError as error:  # what came is not JSON
        raise _not_a_hub() from error


def _not_a_hub() -> _UnreachableError:
    from huggingface_hub.constants import ENDPOINT

    return _UnreachableError(f"{ENDPOINT} answers, but is not a model hub; check HF_ENDPOINT and the proxy")


def _translated(fetch: Callable[[], Path]) -> Path:
    """Run a download whose file is known to exist; what goes wrong now is the network or the disk."""
    import httpx2
    from huggingface_hub import errors

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", _NO_ROOM)
            return fetch()
    except UserWarning as error:
        raise _disk_full(str(error).partition(". ")[2].rstrip(".")) from error
    except (httpx2.HTTPError, errors.LocalEntryNotFoundError) as error:
        raise _unreachable(error) from error
    except OSError as error:
        if error.errno is None:  # huggingface_hub's own: the file came short
            raise _unreachable(error) from error
        if error.errno == errno.ENOSPC:
            raise _disk_full("the disk is full; what has been downloaded is kept") from error
        raise ConfigError(
            "HF_HOME", f"the download cannot be saved: {error.strerror}: {error.filename}"
        ) from error


def _disk_full(why: str) -> ConfigError:
    return ConfigError(
        "HF_HOME", f"no room for the download: {why}. Free some space, or set it to a folder on another disk"
    )


def _unreachable(error: Exception) -> _UnreachableError:
    from huggingface_hub.constants import ENDPOINT

    why = why_of(error)[:200]
    return _UnreachableError(
        f"{ENDPOINT} cannot be reached, or broke off ({why}); check the network, proxy and HF_ENDPOINT"
    )


def _bar(filename: str, progress: Callable[[str, float], None]) -> type[Any]:
    """Make a class that huggingface_hub takes for a progress bar and that tells `progress` instead."""

    class Bar:
        def __init__(self, *_: object, total: float | None = None, initial: float = 0, **__: object) -> None:
            self.total, self.n = total, initial

        def update(self, n: float = 1) -> None:
            self.n += n
            progress(f"downloading {filename}", min(1.0, self.n / self.total) if self.total else 0.0)

        def set_description(self, *_: object, **__: object) -> None: ...
        def refresh(self) -> None: ...
        def close(self) -> None: ...

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

    return Bar
