"""API keys: whose a request is and what that one may do. Pure; keyring.py reads the file.

Only hashes of keys are kept. Logs and metrics have the names of keys.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cobali_ray.core.request.request import MAX_PRIORITY, MIN_PRIORITY
from cobali_ray.errors import ConfigError

Priority = Annotated[int, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY)]


class Terms(BaseModel):
    """What a key allows. None: as much as the server can."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    weight: Annotated[float, Field(gt=0, le=1e6, strict=False)] = 1.0
    priority: Priority = 0
    """The class of requests that name none."""
    best_priority: Priority | None = None
    """The best class that a request may name; None: the same."""
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None
    concurrent_requests: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most output tokens of one answer."""
    models: tuple[str, ...] = Field(default=(), strict=False)
    """Names under which models may be asked for; empty: all."""
    operator: bool = False
    """Whether it may stop what others run: pause the server, and have it go on."""

    @property
    def best(self) -> int:
        """The best class that a request may name; worse ones always may be."""
        return self.priority if self.best_priority is None else self.best_priority

    @model_validator(mode="after")
    def _fits_together(self) -> Terms:
        if self.best > self.priority:
            raise ValueError("best_priority must not be worse (a higher number) than priority")
        return self


class _Entry(Terms):
    key: Annotated[str, Field(min_length=1)] | None = None
    key_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None

    @model_validator(mode="after")
    def _has_one(self) -> _Entry:
        if (self.key is None) == (self.key_sha256 is None):
            raise ValueError("needs one of key and key_sha256")
        return self

    @property
    def terms(self) -> Terms:
        return Terms(**{name: getattr(self, name) for name in Terms.model_fields})

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.key_sha256) if self.key_sha256 else _digest(self.key or "")


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    keys: Annotated[dict[Annotated[str, Field(pattern=r"^[\w.@-]{1,64}$")], _Entry], Field(min_length=1)]


_FREE = Terms(operator=True)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose key a request has: a tenant by the name of the key, "" where none is needed."""

    tenant: str = ""
    terms: Terms = _FREE
    salt: str = ""
    """Of the key: requests with another salt never reuse its prefixes."""


NOBODY = Caller()


@dataclass(frozen=True, slots=True)
class Ring:
    """The accepted keys. Without any, no request needs one."""

    callers: tuple[tuple[bytes, str, Terms], ...] = ()
    """SHA-256 of the key, its name, its terms."""

    def find(self, headers: Mapping[str, str]) -> Caller | None:
        """Return the caller of a request, after a time that tells nothing about the keys."""
        if not self.callers:
            return NOBODY
        caller = None
        for key in _keys_of(headers):
            digest = _digest(key)
            for accepted, name, terms in self.callers:
                if hmac.compare_digest(digest, accepted):
                    caller = Caller(name, terms, key_salt(key))
        return caller

    def joined(self, other: Ring) -> Ring:
        """Add the keys of a file. Raises ConfigError for a name that both have, as it stands for a tenant."""
        both = {name for _, name, _ in self.callers} & {name for _, name, _ in other.callers}
        if both:
            raise ConfigError("api_keys_file", f"{min(both)} is the name of one of api_keys; choose another")
        return Ring(self.callers + other.callers)


def listed(keys: Iterable[str]) -> Ring:
    """Return the ring of plain keys, each a tenant without limits, called by its place: `key-1`."""
    return Ring(tuple((_digest(key), f"key-{i}", _FREE) for i, key in enumerate(keys, 1)))


def parse(text: str) -> Ring:
    """Read a file of keys. Raises ConfigError, which says where it is wrong and shows none of it."""
    try:
        content: Any = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 both are safe
        file = _File.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError("api_keys_file", f"{place}: {first['msg']}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date that is none is a ValueError
        mark = getattr(error, "problem_mark", None)
        where = f" near line {mark.line + 1}" if mark else ""
        raise ConfigError("api_keys_file", f"is not valid YAML{where}") from None
    ring = Ring(tuple((e.digest, name, e.terms) for name, e in file.keys.items()))
    if len({digest for digest, _, _ in ring.callers}) < len(ring.callers):
        raise ConfigError("api_keys_file", "two names have the same key")
    return ring


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _keys_of(headers: Mapping[str, str]) -> list[str]:
    """Return the keys that a request has, in either header."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    keys = [headers.get("x-api-key", "")]
    if scheme.lower() == "bearer":
        keys.append(token.strip())
    return [key for key in keys if key]


# -- salts: who may begin with whose prefixes. An engine gets these and never a key.


def key_salt(api_key: str) -> str:
    """Return the salt of all requests with an API key; the same after every start."""
    return blake2b(api_key.encode(), digest_size=16, person=b"cobali key").hexdigest()


def own_salt(salt: str, of_key: str) -> str:
    """Return what a client's own salt is turned into: nobody with another key can make the same."""
    return blake2b(salt.encode(), digest_size=16, key=of_key.encode(), person=b"cobali salt").hexdigest()
