"""Where a worker is reached: on this machine, whichever machine it runs on."""

from __future__ import annotations

from ipaddress import ip_address

WORKER = "worker"
"""The word of `devices` for a worker that the engine starts itself."""


def is_lent(word: str) -> bool:
    """Whether a word of `devices` means what a worker lends."""
    return word == WORKER or is_endpoint(word)


def is_endpoint(word: str) -> bool:
    """Whether a word is meant as the address of a worker."""
    return ":" in word


def address_of(endpoint: str) -> tuple[str, int]:
    """Return host and port of an endpoint on this machine. Raises ValueError that says what is wrong.

    The protocol has no keys and no encryption, and whoever reaches a worker can run code in it.
    """
    host, _, port = endpoint.rpartition(":")
    if not (port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ValueError(f"{endpoint} is not HOST:PORT")
    try:
        here = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        here = False
    if not here or ":" in host:
        raise ValueError(
            f"{endpoint}: workers are reached on 127.0.0.1 only, since their protocol has neither keys nor "
            "encryption; for one on another machine, let a tunnel such as `ssh -L` end here"
        )
    return "127.0.0.1" if host == "localhost" else host, int(port)
