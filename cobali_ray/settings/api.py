"""What an operator may set of the HTTP side."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator

from cobali_ray.core.request.limits import MAX_COUNT, Seconds

MAX_PING_S = 3600
_DATABASE = re.compile(r"postgres(ql)?://\S+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@,A-Z]+|null|\*")
"""What browsers send as `Origin`: `null` for files, and for frames that their page does not trust. Or all."""


def _not_blank(name: str) -> str:
    """Refuse what no client could send. An exported variable that is empty must not open the server."""
    if not name or name != name.strip():
        raise ValueError("a name must not be empty, nor begin or end with a space")
    return name


def _is_database(url: str) -> str:
    if not _DATABASE.fullmatch(url):
        raise ValueError("must be as in postgresql://user@host:5432/database")
    return url


def _is_origin(origin: str) -> str:
    """Refuse what no browser would send, such as a URL with a path."""
    if not _ORIGIN.fullmatch(origin):
        raise ValueError("this is not an origin such as https://chat.example:8443, null or *")
    return origin


Name: TypeAlias = Annotated[str, AfterValidator(_not_blank)]
Origin: TypeAlias = Annotated[str, AfterValidator(_is_origin)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """How the HTTP side behaves. No engine gets any of it."""

    api_keys: tuple[Name, ...] = field(default=(), repr=False)
    """Accepted keys; if there are none, here or in the file, no key is needed. No message, report or repr
    shows them."""
    api_keys_file: Path | None = None
    """YAML file with keys by name, what each may do and how much; read again when it changes."""
    allowed_origins: tuple[Origin, ...] = ()
    """Other origins of web pages that may use the server, such as https://chat.example; `*` allows all."""
    strict: bool = False
    """Refuse requests with unknown fields instead of naming them in a header."""
    max_body_bytes: Annotated[int, Ge(1024), Le(1 << 40)] = 8 << 20
    default_max_tokens: Annotated[int, Ge(1), Le(MAX_COUNT)] | None = None
    """Longest answer if a request names no limit; None: the rest of the slot."""
    default_timeout_s: Seconds | None = None
    """Deadline of requests that set none."""
    sse_ping_interval: Annotated[int, Ge(0), Le(MAX_PING_S)] = 10
    """Seconds of silence before a stream has a comment, so that no proxy cuts it; 0: none."""
    n_ingress: Annotated[int, Ge(1), Le(64)] = 1
    """HTTP replicas in front of the engines, which share the limits of the keys."""
    allow_downloads: bool = False
    """Let operators download models to this machine through the server, as its page does."""
    data_dir: Path | None = None
    """Folder where files, batches, responses and conversations are kept; None: there are none."""
    data_url: Annotated[str, AfterValidator(_is_database)] | None = field(default=None, repr=False)
    """PostgreSQL in its place, for ingresses on several machines. It may hold a password."""
    stored_gib: Annotated[float, Gt(0), Le(MAX_COUNT)] = 10.0
    """Most that one key may keep there."""
    stored_count: Annotated[int, Ge(1), Le(MAX_COUNT)] = 1000
    """Most files, and most batches, responses and conversations, that one key may keep there."""
    stored_days: Annotated[float, Gt(0), Le(3650)] = 30.0
    """How long anything is kept there that is not deleted before."""

    @property
    def store_place(self) -> Path | str | None:
        """The folder or the database of the store; None where nothing is kept."""
        return self.data_url or self.data_dir
