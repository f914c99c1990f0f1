"""Salts: who may begin with whose prefixes. A key has one, and a client divides what it has further. Pure.

An engine hears of a salt only, never of the key or the name behind it.
"""

from __future__ import annotations

from hashlib import blake2b

MOST_CHARS = 256
"""Of a client's own salt."""


def key_salt(api_key: str) -> str:
    """Return the salt of all that is asked with an API key; the same after every start."""
    return blake2b(api_key.encode(), digest_size=16, person=b"cobali key").hexdigest()


def own_salt(salt: str, of_key: str) -> str:
    """Return the salt that a client's own is turned into: who has another key cannot name it."""
    return blake2b(salt.encode(), digest_size=16, key=of_key.encode(), person=b"cobali salt").hexdigest()
