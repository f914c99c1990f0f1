"""Addresses at which ingresses receive events from engines. Pure."""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple, Self


class Address(NamedTuple):
    """`near` is a Unix socket for engines on the same node; the rest, if any, is for all others."""

    near: str
    node_id: str = ""
    endpoint: str = ""
    key: str = ""
    """The ingress's public one."""

    def __str__(self) -> str:
        """Return the address as one string, which goes with every request."""
        return f"{self.node_id} {self.endpoint} {self.key} {self.near}" if self.endpoint else self.near

    @classmethod
    def parse(cls, text: str) -> Self:
        if text.startswith("/"):
            return cls(text)
        node_id, _, rest = text.partition(" ")
        endpoint, _, rest = rest.partition(" ")
        key, _, near = rest.partition(" ")
        return cls(near, node_id, endpoint, key) if near else cls(text)

    def is_far(self, node_id: str) -> bool:
        """Return whether an engine on this node must use TCP."""
        return bool(self.endpoint) and node_id != self.node_id


def others_reach(host: str) -> bool:
    """Return whether other machines can reach this address of this node."""
    try:
        return bool(host) and not ip_address(host).is_loopback
    except ValueError:  # a name
        return host != "localhost"
