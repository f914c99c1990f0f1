"""TickTimes: how long an engine's ticks take, fitted from recorded ones, kept in a file, drawn from again.

The fit is that of core/cost/ticktime.py over all ticks alike. What it leaves is kept as quantiles of measured
over predicted time, so that simulated ticks scatter as the recorded ones did: percentiles of gaps are made of
that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, NamedTuple

from cobali_ray.core.cache.slots import Slots
from cobali_ray.core.cost.runs import Row, cells_of, runs_of
from cobali_ray.core.cost.ticktime import KNOTS, TickShape, TickTimeModel
from cobali_ray.core.plan.plan import Plan
from cobali_ray.core.request.limits import EngineLimits, Grain
from cobali_ray.errors import ConfigError

N_QUANTILES = 200
MIN_TICKS = 12
"""Fewer, of either kind, say too little."""
PER_BYTE_S = 1e-9
"""What moving a byte between a slot and host memory takes, until it is measured."""


class Tick(NamedTuple):
    """One recorded tick."""

    shape: TickShape
    seconds: float
    since_s: float | None = None
    """From the end of the one before to its beginning; None where there was nothing to do between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickProfile:
    """What was learned of an engine's ticks, and the bounds of the engine they were learned on."""

    limits: EngineLimits
    table: Mapping[str, Any]
    """What `TickTimeModel.table` says."""
    scatter: Mapping[str, Sequence[float]] = field(
        default_factory=lambda: {"decode": [1.0], "prefill": [1.0]}
    )
    """Quantiles of measured over predicted time, of ticks without and with prefill."""
    between_s: float = 0.0
    """From the end of a tick to the next one's beginning, while there is work."""

    def model(self) -> TickTimeModel:
        """Return the model that predicts them."""
        model = TickTimeModel(self.limits.grain)
        model.table = self.table
        return model


def plain_table(*, pass_s: float, row_s: float, token_s: float) -> dict[str, Any]:
    """Return a table where a pass takes so long, and more for each stream and prompt token."""
    rows = [[n, pass_s + n * token_s] for n in KNOTS]
    return {
        "rows": rows,
        "any": 0.0,
        "out": max(row_s - token_s, 0.0),
        "cell": 0.0,
        "short": 0.0,
        "whole": 0.0,
    }


def fit(ticks: Iterable[Tick], limits: EngineLimits) -> TickProfile:
    """Fit the model to ticks in the order they happened. Raises ConfigError where there are too few."""
    seen = list(ticks)
    kinds = {
        "decode": [t for t in seen if not t.shape.chunks],
        "prefill": [t for t in seen if t.shape.chunks],
    }
    for kind, recorded in kinds.items():
        if len(recorded) < MIN_TICKS:
            raise ConfigError(
                "--model-time", f"{len(recorded)} {kind} ticks are too few: at least {MIN_TICKS} are needed"
            )
    model = TickTimeModel(limits.grain, memory_s=inf)
    model.calibrate([(tick.shape, tick.seconds) for tick in seen])
    scatter = {
        kind: _quantiles(
            [t.seconds / predicted for t in recorded if (predicted := model.predict(t.shape)) > 0]
        )
        for kind, recorded in kinds.items()
    }
    between = [t.since_s for t in seen if t.since_s is not None]
    return TickProfile(limits=limits, table=model.table, scatter=scatter, between_s=median(between or [0.0]))


def _quantiles(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered[int((i + 0.5) / N_QUANTILES * len(ordered))] for i in range(N_QUANTILES)]


class Dice:
    """Draws how long ticks take."""

    def __init__(self, times: TickProfile, seed: int) -> None:
        self.limits = times.limits
        self._model, self._scatter, self._rng = times.model(), times.scatter, Random(seed)

    def roll(self, shape: TickShape) -> float:
        """Return the time of one tick."""
        scatter = self._scatter["prefill" if shape.chunks else "decode"]
        return self._model.predict(shape) * scatter[int(self._rng.random() * len(scatter))]

    def seconds(self, plan: Plan, slots: Slots, shape: TickShape, now_s: float) -> float:
        """See `Passes`: all is in the shape."""
        del plan, slots, now_s
        return self.roll(shape)


def ticks_of(feed: dict[str, Any], limits: EngineLimits) -> list[Tick]:
    """Return the ticks of a saved answer of /debug/ticks that computed a plan and did nothing else.

    Those that moved cells, tried drafts or only embedded are left out.
    """
    ticks, ended_s = list[Tick](), None
    for tick in sorted(feed["ticks"], key=lambda tick: tick["tick_id"]):
        began_s = tick["started_s"]
        if tick["spans"] and not (tick["n_restored"] or tick["n_saved"] or tick["n_drafted"]):
            since_s: float | None = None if ended_s is None else began_s - ended_s
            ticks.append(Tick(_shape_of(tick["spans"], limits.grain), tick["total_s"], since_s))
        busy = tick["n_prefilling"] + tick["n_generating"] + tick["n_queued"]
        ended_s = began_s + tick["total_s"] if busy else None
    return ticks


def _shape_of(spans: Sequence[Sequence[int]], grain: Grain) -> TickShape:
    streams = [start for _, start, _, decodes in spans if decodes]
    chunks = tuple([(start, length) for _, start, length, decodes in spans if not decodes])
    context = sum(streams)
    if grain.pass_cells is not None:
        rows = [  # slots are not told apart from the ids they computed under, which mostly were neighbours
            Row(number, start + length, not decodes)
            for number, (_, start, length, decodes) in enumerate(sorted(map(tuple, spans)))
        ]
        context = cells_of(rows, runs_of(rows, grain.pass_cells))
    return TickShape(len(streams), context, chunks)


def read_times(path: Path) -> TickProfile:
    """Read a file of tick times, or a recorded run, which is fitted. Raises ConfigError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("--model-time", f"{path} cannot be read: {error}") from error
    try:
        if "ticks" in content:
            limits = limits_from(content["engine"]["limits"])
            return fit(ticks_of(content, limits), limits)
        return TickProfile(**content | {"limits": limits_from(content["limits"])})
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError("--model-time", f"{path} has neither tick times nor ticks: {error!r}") from error


def limits_from(content: dict[str, Any]) -> EngineLimits:
    """Return limits from JSON."""
    return EngineLimits(**content | {"grain": Grain(**content["grain"])})


def write_times(times: TickProfile, path: Path) -> None:
    """Write a file that `read_times` reads."""
    path.write_text(json.dumps(asdict(times), indent=1) + "\n", encoding="utf-8")
