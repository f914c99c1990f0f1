"""Fetch one file from the Hugging Face Hub, and say what is at fault when that fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cobali_ray.errors import ConfigError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cobali_ray.models.reference import HubReference

PROBE_TIMEOUT_S = 5.0
_TRY_LATER_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


class _UnreachableError(Exception):
    """The hub did not answer as a hub; a copy in the cache may serve. `args[0]` is the user's message."""


def download(
    reference: HubReference,
    *,
    endpoint: str | None = None,
    cache_dir: Path | None = None,
    progress: Callable[[str, float], None] | None = None,
    timeout_s: float = PROBE_TIMEOUT_S,
) -> Path:
    """Return the file of `reference` in huggingface_hub's cache, downloaded first if need be.

    `endpoint` and `cache_dir` default to huggingface_hub's own (HF_ENDPOINT, HF_HOME); without `progress` it
    shows its own bar. When the hub cannot be reached, the copy in the cache serves. huggingface_hub by itself
    asks again for some 25 s before it gives up, so one question with a limit of `timeout_s` goes ahead.

    Raises:
        ModelNotFoundError: saying which of repository, revision, file and network is at fault, and the cure.
        ConfigError: naming `HF_HOME`, when the disk is full or the cache cannot be written.
    """
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    def fetch(*, local_files_only: bool) -> Path:
        found: str = hf_hub_download(
            reference.repo_id,
            reference.filename,
            revision=reference.revision,
            endpoint=endpoint,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            etag_timeout=timeout_s,
            tqdm_class=None if progress is None else _bar(reference.filename, progress),
        )
        return Path(found)

    host = endpoint or constants.ENDPOINT
    try:
        _probe(reference, host, timeout_s)
        return _translated(lambda: fetch(local_files_only=False), host)
    except HFValidationError as error:
        raise ConfigError("model", f"'{reference}': {error}") from error
    except _UnreachableError as error:
        try:
            return fetch(local_files_only=True)
        except LocalEntryNotFoundError:
            raise ModelNotFoundError(
                "model", f"'{reference}': {error}, and no copy is in the cache"
            ) from error


def _probe(reference: HubReference, host: str, timeout_s: float) -> None:
    """Ask once whether the file is there."""
    import httpx2
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    repo_id, revision = reference.repo_id, reference.revision
    at = f" at revision '{revision}'" if revision else ""
    url = hf_hub_url(repo_id, reference.filename, revision=revision, endpoint=host)
    try:
        answer = get_hf_file_metadata(url, timeout=timeout_s, endpoint=host)
    except errors.GatedRepoError as error:
        message = (
            f"the repository '{repo_id}' is gated: accept its conditions at {host}/{repo_id} and set HF_TOKEN"
        )
        raise ModelNotFoundError("model", message) from error
    except errors.RepositoryNotFoundError as error:
        message = (
            f"there is no repository '{repo_id}' at {host}, or it is private: check its name or set HF_TOKEN"
        )
        raise ModelNotFoundError("model", message) from error
    except errors.RevisionNotFoundError as error:
        message = f"the repository '{repo_id}' has no revision '{revision}': name a branch, a tag or a commit"
        raise ModelNotFoundError("model", message) from error
    except errors.RemoteEntryNotFoundError as error:
        message = (
            f"the repository '{repo_id}' has no file '{reference.filename}'{at}: "
            f"its files are listed at {host}/{repo_id}/tree/{revision or 'main'}"
        )
        raise ModelNotFoundError("model", message) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in _TRY_LATER_STATUSES:
            raise _UnreachableError(f"{host} answers {status}; try again later") from error
        message = (
            f"{host} refuses '{reference}' with status {status}: check HF_TOKEN and that you may read it"
        )
        raise ModelNotFoundError("model", message) from error
    except (httpx2.TransportError, OSError) as error:
        raise _unreachable(host, error) from error
    if answer.commit_hash is None or answer.etag is None:
        raise _UnreachableError(f"what answers at {host} is not a hub; check HF_ENDPOINT and the proxy")


def _translated(fetch: Callable[[], Path], host: str) -> Path:
    """Run a download whose file is known to exist; what goes wrong now is the network or the disk."""
    import httpx2
    from huggingface_hub import errors

    try:
        return fetch()
    except (httpx2.HTTPError, errors.LocalEntryNotFoundError) as error:
        raise _unreachable(host, error) from error
    except OSError as error:
        if error.errno is None:  # huggingface_hub's own: the file came short
            raise _unreachable(host, error) from error
        raise ConfigError(
            "HF_HOME", f"the download cannot be kept: {error.strerror}: {error.filename}"
        ) from error


def _unreachable(host: str, error: Exception) -> _UnreachableError:
    why = " ".join(str(error).split()) or type(error).__name__
    return _UnreachableError(
        f"{host} cannot be reached or broke off ({why[:200]}); check the network, the proxy and HF_ENDPOINT"
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
