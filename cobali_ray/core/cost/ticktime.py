"""How long a tick takes, learned from past ticks.

    t = drift * (sum of rows(n) over its passes + any * passes with logits + out * rows with logits
                 + cell * context + depth of chunks)

A tick is one or more passes over the weights, see `passes_of`. What a pass takes by its rows is a table,
linear between powers of two, because it bends both ways: on two cores four rows take little more than three,
and a GPU computes nearly any number up to a knee in the time of one. Every tick teaches every term it has, a
mixed one too: one weighted least-squares fit over a fading past, solved at each tick for its terms while the
others are held, and pulled towards what was measured while the engine opened.

`drift` is how much longer everything takes than that, of late: another process may take half the machine for
ten seconds, and that says nothing new about the shape of the table. All memories are times, not ticks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp
from typing import Final, NamedTuple

from cobali_ray.core.cost.leastsquares import nonnegative
from cobali_ray.core.request.limits import Grain

KNOTS: Final = tuple(1 << i for i in range(10))
"""Rows of the table: 1 to 512. Beyond, a pass takes its share of the last, as of further micro-batches."""
_ANY, _OUT, _CELL, _SHORT, _WHOLE = range(len(KNOTS), len(KNOTS) + 5)
_N: Final = len(KNOTS) + 5
MEMORY_S: Final = 60.0
DRIFT_S: Final = 1.0
"""How fast the table and the drift forget."""
_MIN_DRIFT, _MAX_DRIFT = 0.25, 8.0
_MAX_S = 1e5
"""No term takes longer: ticks that differ by twelve orders of magnitude leave numbers, too."""
_CLEAR_DRIFT = 1.2
"""From here on, the drift is taken out of what the table learns."""
_MAX_AT_ONCE = 0.5
"""One tick moves the drift at most so far towards what it took: a long one may be an outlier, too."""
_OUTLIER = 2.0
"""A tick that took so many times as long as expected, or the inverse, counts as if it took that."""
_PRIOR = 2.0
"""What was measured at opening counts as much as so many ticks, forever."""
_FIXED_SHARE = 0.5
"""What share of a pass is assumed not to grow with its rows, until passes of two sizes were seen."""
_EVERY_S, _N_FIRST = 0.005, 64
"""After so many ticks the table learns from one in so many seconds."""
_TIE = 0.002
"""An entry that was not measured is pulled to the line between its neighbours, as if by so many ticks."""
_SHRINK = 0.01
"""Other terms are pulled to 0 by this share of what is known of them: time that may be either's counts as the
table's."""
_DOUBLES, _SHALLOW = 1000.0, 0.05
"""Shallow chunks say little of depth: it is pulled to 0 as if by `_SHALLOW` ticks at which rows with
`_DOUBLES` cells before them, which could take twice as long, took no longer."""
_SHARE = 0.25
"""An entry of the table is known once a pass lay so near to it."""
_TRUST = 4
_RESCALE, _MAX_EXPONENT = 1e9, 100.0
_CELLS, _DEPTH = 8192.0, 1e6
"""Units of context and depth that make their terms as large as others; so is one of 16 rows with logits."""
_OUTS = 16.0


class TickShape(NamedTuple):
    """What a tick computes."""

    n_decode: int
    context: int
    """Cells that the decode tokens' attention goes over: those cached before them, or more, see runs.py."""
    chunks: tuple[tuple[int, int], ...]
    """(start, length) of each prefill span."""
    n_scored: int = 0
    """Rows of prompts with logits: last ones, and those for logprobs."""
    runs: tuple[int, ...] = ()
    """Decode rows of each pass, where they are more than one."""


def passes_of(shape: TickShape, *, apart: bool) -> list[int]:
    """Return the rows of each pass. `apart`: split KV, which computes equally many tokens of each sequence.

    There, the first token of each chunk is computed with the decode rows, and then what all chunks have, then
    what all but the shortest have, and so on.
    """
    lengths = [length for _, length in shape.chunks]
    passes = list(shape.runs) or [shape.n_decode] * bool(shape.n_decode)
    if not apart:
        if passes:
            passes[-1] += sum(lengths)
            return passes
        return [sum(lengths)] if lengths else []
    if passes and lengths:
        passes[-1] += len(lengths)
        lengths = [length - 1 for length in lengths]
    done = 0
    for i, length in enumerate(sorted(lengths)):
        if length > done:
            passes.append((length - done) * (len(lengths) - i))
            done = length
    return passes


class EnginePace(NamedTuple):
    """How fast an engine computes prompts beside its streams, and how fast those get their tokens."""

    token_s: float
    """Seconds per prompt token, and more per position of its depth."""
    depth_s: float
    tick_s: float
    """A tick that only decodes, and one with as much of prompts as the target allows."""
    full_tick_s: float


class TickTimeModel:
    """Predicts a tick's time from its shape and finds the longest chunk that fits a time. Seconds."""

    def __init__(self, grain: Grain | None = None, memory_s: float = MEMORY_S) -> None:
        """`memory_s` infinite: every tick counts alike."""
        self._grain = grain or Grain()
        self.apart = self._grain.beside > 0
        """Whether decode rows and chunks are computed in passes of their own, see `passes_of`."""
        self._memory_s = memory_s
        self._weights = [0.0] * _N
        self._known = [False] * _N
        self._prior: list[tuple[float, float]] = [(0.0, 0.0)] * _N
        """Strength and value."""
        self._left = [[0.0] * _N for _ in range(_N)]
        self._right = [0.0] * _N
        self._gain = 1.0
        """The weight of a tick now; it grows, so that earlier ticks fade."""
        self._n_decode_ticks = self._n_prefill_ticks = 0
        self._since_s = 0.0
        self.drift = 1.0
        self.longest_seen = 0
        """Rows of the largest pass that was seen."""

    @property
    def knows_decode(self) -> bool:
        """Whether enough was seen of decode rows to trust a prediction."""
        return self._n_decode_ticks >= _TRUST

    @property
    def knows_prefill(self) -> bool:
        return self._n_prefill_ticks >= _TRUST // 2

    @property
    def table(self) -> dict[str, list[list[float]] | float]:
        """What is known, for people and for files: seconds by rows of a pass, and of the other terms."""
        rows = [[n, w] for n, w, known in zip(KNOTS, self._weights, self._known, strict=False) if known]
        first, out, cell, short, whole = self._weights[_ANY:]
        return {
            "rows": rows, "any": first, "out": out / _OUTS, "cell": cell / _CELLS, "short": short / _DEPTH,
            "whole": whole / _DEPTH,
        }  # fmt: skip

    @table.setter
    def table(self, table: Mapping[str, list[list[float]] | float]) -> None:
        rows = table["rows"]
        if not isinstance(rows, list):
            raise TypeError("rows must be a list of [rows, seconds]")
        for n, seconds in rows:
            place = KNOTS.index(int(n))
            self._weights[place], self._known[place] = float(seconds), True
            self.longest_seen = max(self.longest_seen, KNOTS[place])
        for place, name, unit in (
            (_ANY, "any", 1.0), (_OUT, "out", _OUTS), (_CELL, "cell", _CELLS),
            (_SHORT, "short", _DEPTH), (_WHOLE, "whole", _DEPTH),
        ):  # fmt: skip
            value = table[name]
            if isinstance(value, list):
                raise TypeError(f"{name} must be a number")
            self._weights[place], self._known[place] = value * unit, True
        self._n_decode_ticks = self._n_prefill_ticks = _TRUST
        self._fill()
        self._keep()

    # -- predictions ----------------------------------------------------------------------------------

    def _rows_s(self, n: float) -> float:
        """Return what a pass of so many rows takes, but for logits, attention to what is cached and drift."""
        return sum([self._weights[i] * x for i, x in _hats(n)])

    def runs_s(self, rows: Sequence[int]) -> float:
        """Return what decode passes of so many rows each take, but for their attention."""
        out_s = len(rows) * self._weights[_ANY] + sum(rows) * self._weights[_OUT] / _OUTS
        return self.drift * (sum([self._rows_s(n) for n in rows]) + out_s)

    @property
    def token_s(self) -> tuple[float, float]:
        """Seconds per prompt token of a long chunk, and per token and position of its depth."""
        last = KNOTS[-1]
        return self.drift * self._rows_s(last) / last, self.drift * self._weights[_WHOLE] / _DEPTH

    @property
    def out_s(self) -> float:
        """Seconds that the logits of a row add."""
        return self.drift * self._weights[_OUT] / _OUTS

    def decode_s(self, n_decode: int, context: int, runs: Sequence[int] = ()) -> float:
        """Return the time of a tick that only decodes, in these runs if it is not one."""
        if not n_decode:
            return 0.0
        return self.runs_s(runs or (n_decode,)) + self.drift * context / _CELLS * self._weights[_CELL]

    def chunk_s(self, start: int, length: int, *, mixed: bool = False, n_before: int = 0) -> float:
        """Return what `length` prompt tokens from position `start` add to a pass that has `n_before` rows."""
        rows_s = self._rows_s(n_before + length) - self._rows_s(n_before)
        return self.drift * (max(rows_s, 0.0) + self._depth_s(start, length, mixed=mixed))

    def prefill_s(self, start: int, end: int) -> float:
        """Return the seconds that these tokens of a prompt take alone; 0: too little is known."""
        return self.chunk_s(start, end - start) if self.knows_prefill and end > start else 0.0

    def _depth_s(self, start: int, length: int, *, mixed: bool) -> float:
        place, depth = self._depth(start, length, mixed=mixed)
        whole, short = self._weights[_WHOLE], self._weights[_SHORT]
        # A short chunk is never the cheaper kind.
        return depth * (whole if place == _WHOLE else max(short, whole))

    def _depth(self, start: int, length: int, *, mixed: bool) -> tuple[int, float]:
        """Return which term a chunk's attention to what is cached before it has, and how often.

        Attention to its own tokens is in the table, which ends at some length: what is longer has it here. So
        the first chunk of a prompt says nothing of depth, and cannot be mistaken for it.
        """
        padded = self._grain.padded(length, mixed=mixed)
        n_cells = start + max(length - KNOTS[-1], 0) / 2
        return _WHOLE if padded else _SHORT, (padded or length) * n_cells / _DEPTH

    def longest_chunk(
        self,
        start: int,
        seconds: float,
        *,
        mixed: bool = False,
        scored: bool = False,
        n_before: int = 0,
        most: int = 1 << 15,
    ) -> int:
        """Return the largest chunk from `start` up to `most` that adds at most `seconds`; solves `chunk_s`.

        A chunk of whole steps if one fits, else one in tiles, else one that is short enough for the other
        kernel. `scored`: each of its tokens has logits.
        """
        out_s = self.out_s if scored else 0.0

        def added_s(length: int) -> float:
            return self.chunk_s(start, length, mixed=mixed, n_before=n_before) + length * out_s

        if seconds <= 0:
            return 0
        grain = self._grain
        if grain.step == 1:
            return bisect_right(range(1, most + 1), seconds, key=added_s)
        step, beside = grain.step, grain.beside if mixed else 0
        whole = range(step + beside, most + 1, step)
        if n := bisect_right(whole, seconds, key=added_s):
            return whole[n - 1]
        tiles = range(grain.least + beside, min(step + beside, most + 1))
        if n := bisect_right(tiles, seconds, key=added_s):
            return tiles[n - 1]
        return bisect_right(range(1, min(grain.least + beside, most + 1)), seconds, key=added_s)

    def predict(self, shape: TickShape) -> float:
        """Return the time of a tick; 0 while nothing is known."""
        return self.drift * sum([self._weights[i] * x for i, x in self._terms(shape).items()])

    # -- learning -------------------------------------------------------------------------------------

    def calibrate(self, measured: Iterable[tuple[TickShape, float]]) -> None:
        """Take what was measured while the engine opened; it is never forgotten, but outweighed."""
        seen = list(measured)
        for again in (False, True):  # then each is weighed by what the first fit expects
            expected = [self.predict(shape) if again else seconds for shape, seconds in seen]
            self._left, self._right = [[0.0] * _N for _ in range(_N)], [0.0] * _N
            for (shape, seconds), by in zip(seen, expected, strict=True):
                self._add(self._terms(shape), seconds, max(by, seconds / _OUTLIER))
            self._solve([i for i in range(_N) if self._known[i]])
            self._fill()
        self.longest_seen = max(
            [n for shape, _ in seen for n in passes_of(shape, apart=self.apart)], default=0
        )
        self._n_decode_ticks += _TRUST * any(shape.n_decode for shape, _ in seen)
        self._n_prefill_ticks += _TRUST * any(shape.chunks for shape, _ in seen)
        self.drift = 1.0
        self._keep()

    def learn(self, shape: TickShape, seconds: float) -> None:
        if seconds <= 0 or (self._ragged(shape) and self.knows_prefill):
            return
        settled = self._n_decode_ticks + self._n_prefill_ticks >= 2 * _TRUST and all(
            self._known[i] for i, x in self._terms(shape).items() if x >= _SHARE
        )
        expected = self.predict(shape)
        if settled and expected > 0:
            ratio = min(max(seconds / expected, 1 / _OUTLIER), _OUTLIER)
            drift = self.drift * ratio ** min(1 - exp(-seconds / DRIFT_S), _MAX_AT_ONCE)
            self.drift = min(max(drift, _MIN_DRIFT), _MAX_DRIFT)
        self._since_s += seconds
        if self._n_decode_ticks + self._n_prefill_ticks > _N_FIRST and self._since_s < _EVERY_S:
            return
        self._since_s = 0.0
        if settled and expected > 0:
            seconds = min(max(seconds, expected / _OUTLIER), expected * _OUTLIER)
        if not 1 / _CLEAR_DRIFT < self.drift < _CLEAR_DRIFT:  # else the table may be what is wrong
            seconds /= self.drift
        self._learn(shape, seconds)

    def _learn(self, shape: TickShape, seconds: float) -> None:
        terms = self._terms(shape)
        if not terms:
            return
        self._n_decode_ticks += bool(shape.n_decode)
        self._n_prefill_ticks += bool(shape.chunks)
        expected = sum([self._weights[i] * x for i, x in terms.items()])
        self._add(terms, seconds, max(expected, seconds / _OUTLIER))
        self._solve([i for i in terms if self._known[i]])
        self.longest_seen = max(self.longest_seen, *passes_of(shape, apart=self.apart))
        self._fill()
        self._fade(seconds)

    def _add(self, terms: Mapping[int, float], seconds: float, by: float) -> None:
        """Add an observation whose error counts relative to `by`: short ticks count as much as long ones."""
        self._begin(terms, seconds)
        weight = self._gain / (by * by)
        for i, x in terms.items():
            row = self._left[i]
            for j, u in terms.items():
                row[j] += weight * x * u
            self._right[i] += weight * x * seconds

    def _solve(self, places: Sequence[int]) -> None:
        """Set these terms to what fits best, the others held."""
        weights, gain, rows = self._weights, self._gain, list[list[float]]()
        places = [i for i in places if self._left[i][i] > 0]
        held = set(range(_N)).difference(places)
        for i in places:
            own, (strength, value) = self._left[i], self._prior[i]
            strength *= gain
            if not strength and i < len(KNOTS) and weights[i] > 0:
                strength, value = _TIE * gain / (weights[i] * weights[i]), self._between(i)
            elif not strength:
                strength = _SHRINK * own[i]
                if i in (_SHORT, _WHOLE) and (row_s := self._row_s()):
                    strength = max(strength, _SHALLOW * gain * (_DOUBLES / row_s / _DEPTH) ** 2)
            right = self._right[i] - sum([own[j] * weights[j] for j in held]) + strength * value
            rows.append([own[j] + strength * (i == j) for j in places] + [right])
        for i, value in zip(places, nonnegative(rows), strict=True):
            weights[i] = min(value, _MAX_S)
        for i in places:
            if i < len(KNOTS):
                self._rise(i)

    def _row_s(self) -> float:
        """Return what a row takes in the largest pass that was seen; 0: none was."""
        of_passes = zip(KNOTS, self._weights, self._known, strict=False)
        return max([(n, weight / n) for n, weight, known in of_passes if known], default=(0, 0.0))[1]

    def _between(self, i: int) -> float:
        """Return what a pass of `KNOTS[i]` rows takes by its neighbours in the table."""
        weights = self._weights
        if i == 0:
            return weights[0]
        if i == len(KNOTS) - 1:
            return weights[i - 1] + 2 * (weights[i - 1] - weights[i - 2])
        share = (KNOTS[i] - KNOTS[i - 1]) / (KNOTS[i + 1] - KNOTS[i - 1])
        return weights[i - 1] + share * (weights[i + 1] - weights[i - 1])

    def _rise(self, i: int) -> None:
        """Have the table rise: where an entry crosses another, the one of which more is known stays."""
        weights, left, gain = self._weights, self._left, self._gain
        evidence = left[i][i] + self._prior[i][0] * gain
        for j in range(len(KNOTS)):
            if self._known[j] and (weights[j] > weights[i] if j < i else weights[j] < weights[i]):
                if left[j][j] + self._prior[j][0] * gain >= evidence:
                    weights[i] = weights[j]
                else:
                    weights[j] = weights[i]

    def _fade(self, seconds: float) -> None:
        self._gain *= exp(min(seconds / self._memory_s, _MAX_EXPONENT))
        if self._gain > _RESCALE:
            for row in self._left:
                row[:] = [value / self._gain for value in row]
            self._right = [value / self._gain for value in self._right]
            self._gain = 1.0

    def _begin(self, terms: Mapping[int, float], seconds: float) -> None:
        """Give terms that are met for the first time a value to begin with."""
        new = [i for i, x in terms.items() if not self._known[i] and (x >= _SHARE or i >= len(KNOTS))]
        for i in new:
            self._known[i] = True
        if not any(self._known[i] for i in range(len(KNOTS)) if i not in new):
            rows = sum([x * KNOTS[i] for i, x in terms.items() if i < len(KNOTS)])
            n_passes = max(sum([x for i, x in terms.items() if i < len(KNOTS)]), 1.0)
            for i in new:
                if i < len(KNOTS):
                    share = _FIXED_SHARE + (1 - _FIXED_SHARE) * KNOTS[i] * n_passes / rows
                    self._weights[i] = seconds / n_passes * share

    def _fill(self) -> None:
        """Guess what passes take that were never seen: on a line through those that were."""
        places = [i for i in range(len(KNOTS)) if self._known[i]]
        if not places or len(places) == len(KNOTS):
            return
        weights, first, last = self._weights, places[0], places[-1]
        for i in range(first):
            weights[i] = weights[first] * (_FIXED_SHARE + (1 - _FIXED_SHARE) * KNOTS[i] / KNOTS[first])
        for left, right in pairwise(places):
            for i in range(left + 1, right):
                share = (KNOTS[i] - KNOTS[left]) / (KNOTS[right] - KNOTS[left])
                weights[i] = weights[left] + share * (weights[right] - weights[left])
        slope = (1 - _FIXED_SHARE) * weights[last] / KNOTS[last]
        if len(places) > 1:
            before = places[-2]
            slope = max((weights[last] - weights[before]) / (KNOTS[last] - KNOTS[before]), slope)
        for i in range(last + 1, len(KNOTS)):
            weights[i] = weights[last] + slope * (KNOTS[i] - KNOTS[last])

    def _keep(self) -> None:
        """Have what is known now pull what is learned later."""
        self._prior = [
            (_PRIOR / (w * w), w) if known and w > 0 else (0.0, 0.0)
            for w, known in zip(self._weights, self._known, strict=True)
        ]

    def _ragged(self, shape: TickShape) -> bool:
        """Whether a chunk's tiles are cut in pieces, which says little about whole ones."""
        mixed = shape.n_decode > 0
        return any(start and self._grain.ragged(length, mixed=mixed) for start, length in shape.chunks)

    def _terms(self, shape: TickShape) -> dict[int, float]:
        """Return how often a tick has each term."""
        terms: dict[int, float] = {}
        for n in passes_of(shape, apart=self.apart):
            for i, x in _hats(n):
                terms[i] = terms.get(i, 0.0) + x
        n_out = shape.n_decode + shape.n_scored
        if n_out:
            terms[_ANY] = float(len(shape.runs) or 1)
            terms[_OUT] = n_out / _OUTS
        if shape.context:
            terms[_CELL] = shape.context / _CELLS
        mixed = shape.n_decode > 0
        for start, length in shape.chunks:
            place, depth = self._depth(start, length, mixed=mixed)
            if depth:
                terms[place] = terms.get(place, 0.0) + depth
        return terms


def _hats(n: float) -> list[tuple[int, float]]:
    """Return the entries of the table that a pass of `n` rows lies between, and its share of each."""
    last = len(KNOTS) - 1
    if n <= 0:
        return []
    if n >= KNOTS[last]:
        return [(last, n / KNOTS[last])]
    i = max(bisect_right(KNOTS, n) - 1, 0)
    share = (n - KNOTS[i]) / (KNOTS[i + 1] - KNOTS[i])
    return [(i, 1 - share), (i + 1, share)] if share > 0 else [(i, 1.0)]
