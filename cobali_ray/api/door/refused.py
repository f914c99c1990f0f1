"""Lines of the log about requests without a valid key: who sends them, and how many; never a key.

A flood must not fill the log: an address has one line a minute at most, all together have `MAX_LINES`. Every
request is counted in `cobali_http_requests_total` all the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

import structlog

from cobali_ray.api.door.ids import CLIENT_HEADER

PERIOD_S: Final = 60.0
MAX_LINES: Final = 20
"""Lines in a period, about whichever addresses."""
MAX_ADDRESSES: Final = 1000
"""Addresses that are remembered; the one that was silent longest is forgotten first."""

_log = structlog.get_logger("cobali_ray.api")


@dataclass(slots=True)
class _Address:
    logged_s: float
    n_unlogged: int = 0


class RefusedKeys:
    """Decides which refused requests get a line. One per ingress; knows no clock."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, _Address] = OrderedDict()
        self._period_s, self._n_lines = 0.0, 0

    def note(self, address: str, now_s: float) -> int | None:
        """Count a refused request; return how many its line is about, this one included; None: no line."""
        if now_s - self._period_s >= PERIOD_S:
            self._period_s, self._n_lines = now_s, 0
        entry = self._addresses.setdefault(address, _Address(now_s - PERIOD_S))
        self._addresses.move_to_end(address)
        if len(self._addresses) > MAX_ADDRESSES:
            self._addresses.popitem(last=False)
        entry.n_unlogged += 1
        if now_s - entry.logged_s < PERIOD_S or self._n_lines >= MAX_LINES:
            return None
        self._n_lines += 1
        entry.logged_s, n, entry.n_unlogged = now_s, entry.n_unlogged, 0
        return n


def log_refusal(
    refused: RefusedKeys, headers: Mapping[str, str], peer: str, *, behind_front: bool, now_s: float
) -> None:
    """Write a line about a request without a valid key, unless there were too many.

    `peer` is who opened the connection; behind the front end that is HAProxy, which names the client.
    """
    address = _plain(headers.get(CLIENT_HEADER, "") if behind_front else peer)
    if (n := refused.note(address, now_s)) is not None:
        has_key = "authorization" in headers or "x-api-key" in headers
        _log.warning("key_refused", address=address, key="wrong" if has_key else "missing", n_requests=n)


def _plain(text: str) -> str:
    """Return an address, and nothing else that a header may hold."""
    try:
        return str(ip_address(text))
    except ValueError:
        return "unknown"
