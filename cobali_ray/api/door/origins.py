"""Which web pages may use the server, and under which names it may be asked. Pure.

A page that somebody opens can send requests to any server that his machine reaches. Browsers say in `Origin`
whose page asks; a page whose own name was made to lead here (DNS rebinding) gives itself away by `Host`.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

ANY = "*"


def is_loopback(name: str) -> bool:
    """Say whether a host name or address means the machine that uses it."""
    local = name == "localhost" or name.endswith(".localhost")
    return local or (_is_address(name) and ip_address(name).is_loopback)


class Origins:
    """The origins of pages that may use the server: those of loopback, its own, and those `allowed`."""

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        self._allowed = frozenset(allowed)
        self._names = {_name_in(origin) for origin in allowed}

    def allows(self, origin: str, host: str) -> bool:
        """Say whether a page of this origin may use the server, which was asked as `host`."""
        if not self._allowed.isdisjoint({origin, ANY}):
            return True
        scheme, _, place = origin.partition("://")
        return scheme in {"http", "https"} and (place == host or is_loopback(_name_in(origin)))

    def knows(self, host: str) -> bool:
        """Say whether a server on loopback may be asked as `host`.

        Not under a name of the public DNS, whose owner may have it lead anywhere.
        """
        name = _name_in(f"//{host}")
        public = "." in name and not name.endswith((".localhost", ".internal")) and not _is_address(name)
        return not public or name in self._names or ANY in self._allowed


def _name_in(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # half a pair of brackets
        return url


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
