"""Records of ticks and requests as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import orjson

from cobali_ray.core.request.life import Life
from cobali_ray.core.views.stats import TickStats
from cobali_ray.telemetry.log import TICK_FIELDS

MAX_PROMPT_CHARS: Final = 2000
"""Characters of a prompt that are shown where prompts are shown."""
_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY
_PLAIN: Final = tuple(name for name in TICK_FIELDS if name != "gaps_s")


def ticks_json(ticks: Iterable[TickStats]) -> bytes:
    """Return records as the inside of a JSON list: every field of TickStats, and who computed what."""
    return b",".join([orjson.dumps(_tick(stats), option=_OPTIONS) for stats in ticks])


def _tick(stats: TickStats) -> dict[str, Any]:
    record = {name: _short(getattr(stats, name)) for name in _PLAIN}
    record["gaps_s"] = np.round(np.asarray(stats.gaps_s, np.float64), 6)
    record["spans"] = stats.spans
    return record


def _short(value: Any) -> Any:
    """Return a time in whole nanoseconds, which are fewer digits than it has."""
    return round(value, 9) if isinstance(value, float) else value


def lives_json(lives: Iterable[Life], prompts: dict[str, str]) -> list[dict[str, Any]]:
    """Return requests as JSON objects; `prompts` holds the texts that may be shown."""
    records = []
    for life in lives:
        record = {name: _short(value) for name, value in life._asdict().items()}
        record["x_request_id"] = f"{life.tenant}/{life.x_request_id}"  # `TickFeed.body_for` takes them apart
        record["stays"] = [(i, _short(since_s), _short(until_s)) for i, since_s, until_s, _ in life.stays]
        if life.request_id in prompts:
            record["prompt"] = prompts[life.request_id]
        records.append(record)
    return records


def feed_json(head: dict[str, Any], ticks: list[bytes], requests: list[dict[str, Any]]) -> bytes:
    """Join everything to the one object that a reader gets."""
    body = b",".join([part for part in ticks if part])
    return orjson.dumps({**head, "ticks": orjson.Fragment(b"[" + body + b"]"), "requests": requests})
