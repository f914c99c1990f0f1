"""Recorded loads: timestamp, input length and output length of each request, from CSV or JSON lines."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from cobali_ray.errors import ConfigError
from cobali_workloads.load.workload import Arrival

TIMES = ("timestamp", "time_s", "arrived_at", "TIMESTAMP")
INPUTS = ("input_length", "prompt_tokens", "ContextTokens", "num_prefill_tokens")
OUTPUTS = ("output_length", "output_tokens", "GeneratedTokens", "num_decode_tokens")

MILLISECONDS = 1e-3


def read_trace(text: str, *, speed: float = 1.0) -> list[Arrival]:
    """Read the arrivals of a trace, in order of time and from zero, `speed` times as fast as recorded.

    Lines that begin with `{` are JSON objects, anything else is CSV with a header. Numbers in the time
    column are seconds, or milliseconds where there are `hash_ids`, as in the Mooncake project's traces; ISO
    dates are understood too. Column names are those of the public traces: see `TIMES`, `INPUTS`, `OUTPUTS`.
    What cannot be read is a ConfigError with its line.
    """
    arrivals = sorted(_arrival(number, row) for number, row in _rows(text))
    if not arrivals:
        raise ConfigError("trace", "there is no request in it")
    start = arrivals[0].time_s
    return [arrival._replace(time_s=(arrival.time_s - start) / speed) for arrival in arrivals]


def _rows(text: str) -> Iterable[tuple[int, Mapping[str, Any]]]:
    lines = text.replace("\r\n", "\n").split("\n")
    if text.lstrip().startswith("{"):
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _json_row(number, line)
    else:
        yield from enumerate(csv.DictReader(line for line in lines if line.strip()), start=2)


def _json_row(number: int, line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError("trace", f"line {number} is no JSON: {error}") from None
    if not isinstance(row, dict):
        raise ConfigError("trace", f"line {number} is no JSON object")
    return row


def _arrival(number: int, row: Mapping[str, Any]) -> Arrival:
    hash_ids = row.get("hash_ids") or ()
    return Arrival(
        _time(number, _pick(number, row, TIMES), MILLISECONDS if hash_ids else 1.0),
        _tokens(number, _pick(number, row, INPUTS)),
        _tokens(number, _pick(number, row, OUTPUTS)),
        _hashes(number, hash_ids),
    )


def _hashes(number: int, values: Any) -> tuple[int, ...]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, int) for value in values):
        raise ConfigError("trace", f"line {number}: hash_ids are whole numbers, got {values!r}")
    return tuple(values)


def _pick(number: int, row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if row.get(name) not in (None, ""):
            return row[name]
    raise ConfigError("trace", f"line {number} has none of the columns {', '.join(names)}")


def _time(number: int, value: Any, unit_s: float) -> float:
    try:
        time_s = float(value) * unit_s
    except (TypeError, ValueError):
        try:
            time_s = datetime.fromisoformat(str(value)).timestamp()
        except ValueError:
            raise ConfigError("trace", f"line {number}: {value!r} is no time") from None
    if not math.isfinite(time_s):
        raise ConfigError("trace", f"line {number}: {value!r} is no time")
    return time_s


def _tokens(number: int, value: Any) -> int:
    try:
        tokens = int(value)
    except (TypeError, ValueError, OverflowError):
        tokens = 0
    if tokens < 1:
        raise ConfigError("trace", f"line {number}: {value!r} is no number of tokens")
    return tokens
