"""What an operator may set of the API."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cobali_ray.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """How the HTTP side behaves; the engine has its own settings."""

    api_keys: tuple[str, ...] = ()
    """Accepted keys; if there are none, here or in the file, no key is needed."""
    api_keys_file: Path | None = None
    """Keys with names and limits; see keys.py."""
    n_ingress: int = 1
    """How many processes share the limits of the keys."""
    allowed_origins: tuple[str, ...] = ()
    """Other origins of web pages that may use the server; `*` allows all."""
    listens: str | None = None
    """Where clients reach the server, if a front end takes their connections."""
    strict: bool = False
    """Refuse unknown fields instead of naming them in a header."""
    max_body_bytes: int = 8 << 20
    default_max_tokens: int | None = None
    """For requests that set none; None: the rest of the slot."""
    default_timeout_s: float | None = None
    echo_request_id: bool = True
    """Add x-request-id to answers; False if whatever serves the app adds it already."""
    min_stream_gap_s: float = 0.0
    """Least time between two writes of one stream after its first token; 0 writes at every wake-up."""

    def __post_init__(self) -> None:
        if self.max_body_bytes < 1:
            raise ConfigError("max_body_bytes", f"must be at least 1, got {self.max_body_bytes}")
        if self.default_max_tokens is not None and self.default_max_tokens < 1:
            raise ConfigError("default_max_tokens", f"must be at least 1, got {self.default_max_tokens}")
        if self.default_timeout_s is not None and self.default_timeout_s <= 0:
            raise ConfigError("default_timeout_s", f"must be above 0, got {self.default_timeout_s:g}")
        if self.min_stream_gap_s < 0:
            raise ConfigError("min_stream_gap_s", f"must not be negative, got {self.min_stream_gap_s:g}")
        if any(not key for key in self.api_keys):
            raise ConfigError("api_keys", "a key must not be empty")
