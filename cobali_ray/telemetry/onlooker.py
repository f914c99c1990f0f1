"""Onlooker: calls what looks on, and lets nothing out that it raises: telemetry never steers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

import structlog

_log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Onlooker:
    """One part of the telemetry. What it raises is logged once; it is called again all the same."""

    def __init__(self, part: str) -> None:
        self._part, self._failed = part, False

    def look(self, look: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Call it; None where it raised."""
        try:
            return look(*args, **kwargs)
        except Exception:  # no request may end by it
            if not self._failed:
                self._failed = True
                with suppress(OSError, ValueError):  # nor by a log that cannot be written
                    _log.exception("telemetry_failed", part=self._part)
            return None
