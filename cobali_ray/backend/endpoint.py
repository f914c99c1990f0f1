"""Where a worker is reached."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

WORKER = "worker"
"""The word of `devices` for a worker that the engine starts itself."""
RAY_CPU, RAY_GPU = "ray-cpu", "ray-gpu"
"""The words of `devices` for workers that Ray places, each with a CPU or a GPU of some node."""
PLACED = frozenset({RAY_CPU, RAY_GPU})


def is_lent(word: str) -> bool:
    """Whether a word of `devices` means what a worker lends."""
    return word == WORKER or word in PLACED or is_endpoint(word)


def names_of(words: Sequence[str]) -> list[str]:
    """Return what each word of `devices` is called: workers without an address are numbered by their kind."""
    numbered = {WORKER, *PLACED}
    return [
        f"{word}-{words[: i + 1].count(word)}" if word in numbered else word for i, word in enumerate(words)
    ]


def is_endpoint(word: str) -> bool:
    """Whether a word is meant as the address of a worker."""
    return ":" in word


def address_of(endpoint: str) -> tuple[str, int]:
    """Return host and port of an endpoint. Raises ValueError that says what is wrong."""
    host, _, port = endpoint.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (bare and port.isdecimal() and 0 < int(port) < 1 << 16) or (":" in bare) != (bare != host):
        raise ValueError(f"{endpoint} is not HOST:PORT")
    return "127.0.0.1" if bare == "localhost" else bare, int(port)


def require_here(endpoint: str) -> None:
    """Refuse an endpoint that is not on loopback, for a worker without a tunnel. Raises ValueError.

    The protocol has no keys and no encryption, and whoever reaches a worker can run code in it.
    """
    host, _ = address_of(endpoint)
    try:
        here = ip_address(host).is_loopback and ":" not in host
    except ValueError:
        here = False
    if not here:
        raise ValueError(
            f"{endpoint}: without a tunnel, workers are reached on 127.0.0.1 only, since their protocol has "
            "neither keys nor encryption; for one on another machine, set worker_key_file to its key file"
        )
