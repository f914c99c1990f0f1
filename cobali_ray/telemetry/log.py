"""Log lines: one per request, one per tick on demand; numbers and names, never text of clients."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TextIO, cast

import numpy as np
import orjson
import structlog

from cobali_ray.core.views.stats import TickStats
from cobali_ray.errors import ConfigError
from cobali_ray.telemetry.names import ONLY_ENGINE

_log = structlog.get_logger(__name__)

TICK_FIELDS: Final = tuple(field.name for field in fields(TickStats) if field.name not in {"plan", "ttfts_s"})
"""The fields of a tick's record beside its spans."""
OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_UTC_Z


def configure_logging(
    *,
    level: str = "info",
    stream: TextIO | None = None,
    about: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Send structlog to `stream` (default: stderr as it is now): JSON lines, or readable ones on a terminal.

    Every line carries the facts in `about`, such as the engine's id. Tracebacks come without local variables,
    which could hold what a client sent. A line that cannot be written, because a disk is full or a reader is
    gone, is lost.
    """
    out = sys.stderr if stream is None else stream
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            lambda _logger, _method, line: {**about, **line},  # whichever thread writes it
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(_readable() if out.isatty() else _json_lines()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _Lossy(out))),
        cache_logger_on_first_use=False,  # loggers made before this call must follow it
    )


class _Lossy:
    """A stream that drops lines it cannot write: no request fails because of its log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def _readable() -> list[structlog.typing.Processor]:
    plain = structlog.dev.plain_traceback  # the default one prints locals
    return [structlog.dev.ConsoleRenderer(colors=True, exception_formatter=plain)]


def _json_lines() -> list[structlog.typing.Processor]:
    frames = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [
        structlog.processors.ExceptionRenderer(frames),
        structlog.processors.JSONRenderer(serializer=_dumps),
    ]


def _dumps(value: Any, default: Callable[[Any], Any] | None = None, **_: Any) -> str:
    return orjson.dumps(value, default=default or repr, option=OPTIONS).decode()


class TickLog:
    """Append one JSON line per tick to a file: `timestamp` (ISO, UTC), `engine_id`, all numbers of TickStats.

    Unbuffered: a line is whole and on its way to the disk when `write` returns, also if the process is
    killed afterwards. Raises ConfigError where the file cannot be opened.
    """

    def __init__(
        self,
        path: str | Path,
        engine_id: str = ONLY_ENGINE,
        *,
        utc_now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._engine_id, self._utc_now = engine_id, utc_now
        self._path = Path(path)
        try:
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise ConfigError("log_ticks", f"{path} cannot be written: {error.strerror}") from error

    def write(self, stats: TickStats) -> None:
        """Append one record, unless it is closed. Where that fails, it says so and is closed.

        If it raised, the tick thread would call its observer no more.
        """
        if self._file.closed:
            return
        record: dict[str, Any] = {"timestamp": self._utc_now(), "engine_id": self._engine_id}
        record |= {name: getattr(stats, name) for name in TICK_FIELDS}
        line = orjson.dumps(record, default=_plain, option=OPTIONS | orjson.OPT_APPEND_NEWLINE)
        try:
            self._file.write(line)
        except OSError as error:
            facts = {"setting": "log_ticks", "file": str(self._path), "error": str(error)}
            what = "no tick is written until the model is loaded anew; name a file on another disk"
            with suppress(OSError, ValueError):  # a disk that is full for one log may be so for the other
                _log.error("tick_log_stopped", **facts, detail=what)
            with suppress(OSError):
                self.close()

    def close(self) -> None:
        """Close the file; again does nothing."""
        self._file.close()


def _plain(value: Any) -> Any:
    """Help orjson with sequences it does not know, such as strided arrays."""
    return value.tolist() if isinstance(value, np.ndarray) else list(value)
