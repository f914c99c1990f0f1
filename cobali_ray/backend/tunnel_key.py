"""The key of a tunnel to a worker on another machine: a file that both ends have, and nobody else.

Where Ray starts the worker, each end makes a pair of keys, and the other has the public one.
"""

from __future__ import annotations

import hmac
import os
import stat
from pathlib import Path
from typing import NamedTuple, Self

import zmq
from zmq.utils import z85

from cobali_ray.errors import ConfigError

_N_CHARS = 40
"""Of 32 random bytes as ZeroMQ writes them."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class CurvePair(NamedTuple):
    """A key pair of CURVE, as ZeroMQ writes it."""

    public: bytes
    secret: bytes = b""
    """Empty in a pair of the other end."""

    @classmethod
    def new(cls) -> Self:
        """Make a pair that nobody else has."""
        return cls(*zmq.curve_keypair())


class TunnelKey(NamedTuple):
    """A pair for each end. Both are derived from the file, so whoever has it can be either end."""

    engine: CurvePair
    worker: CurvePair

    @classmethod
    def of(cls, secret: bytes) -> Self:
        """Derive both pairs from 32 secret bytes."""
        return cls(_pair(secret, b"engine"), _pair(secret, b"worker"))

    @classmethod
    def read(cls, file: Path, setting: str) -> Self:
        """Read the file. Raises ConfigError that names `setting`, also where others may read it."""
        try:
            with file.expanduser().open("rb") as opened:
                if os.fstat(opened.fileno()).st_mode & _OTHERS:
                    why = f"{file} can be read or written by others: chmod 600 {file}"
                    raise ConfigError(setting, why)
                text = opened.read(1 << 10).strip()
        except (OSError, RuntimeError) as error:  # or no home of that user
            cause = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(setting, f"{file} cannot be read: {cause}") from None
        try:
            secret = z85.decode(text) if len(text) == _N_CHARS else b""
        except (KeyError, ValueError):
            secret = b""
        if not secret:
            why = f"{file} holds no key of a tunnel: those {_N_CHARS} characters `cobali worker` makes"
            raise ConfigError(setting, why)
        return cls.of(secret)


class TunnelAddress(NamedTuple):
    """Where engines of other machines come in, and the key that they need."""

    host: str
    port: int
    key: TunnelKey


def _pair(secret: bytes, end: bytes) -> CurvePair:
    own = z85.encode(hmac.digest(secret, b"cobali tunnel " + end, "sha256"))
    return CurvePair(zmq.curve_public(own), own)


def make_key(file: Path) -> bool:
    """Write a new key to the file, unless it is there; return whether it was not. Raises OSError."""
    file = file.expanduser()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(number, "wb") as opened:
        opened.write(z85.encode(os.urandom(32)) + b"\n")
    return True
