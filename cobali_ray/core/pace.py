"""Pacer: chunks as large as the ITL target allows, from a model of the tick's time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Literal, Protocol

from cobali_ray.core.fair import yields
from cobali_ray.core.limits import EngineLimits, Grain
from cobali_ray.core.plan import (
    Prompt,
    Span,
    chunk_of,
    n_scored,
    order_prefill,
    piece,
    plan_chunks,
    who_is_due,
    within_rows,
)
from cobali_ray.core.runs import Row, cells_of, runs_of
from cobali_ray.core.ticktime import Shape, TickTimeModel

LEAST_CHUNK = 4
"""Prefill goes on at this pace even where decoding alone is slower than the target."""
FIRST_CHUNK = 64
AUTO_TARGET_S, AUTO_FACTOR = 0.03, 3.0
"""The automatic target: three decode ticks of a full batch, at least 30 ms; longer for as long as more
prompts wait than streams are settled, because then the streams' wait is the smaller one in all.

Every gap holds a decode tick of d seconds beside prefill, so that a prompt which takes W alone takes at least
W / (1 - d / T) with gaps of T: twice as long at two decode ticks, 1.5 times at three, 1.33 times at four."""
SETTLED = 4
"""Output tokens from which on a stream counts as settled. One that has just begun came with the prompts
that still wait: the burst starts together, and its decode ticks are not run half empty meanwhile."""
DUE_FACTOR = 3.0
"""How much longer gaps may be for a prompt that is due before others: at nine decode ticks it takes 1.13
times as long as alone. With 2 a better class's p99 TTFT beside a flood was 1.2 times that alone, with 1 it
was 1.5."""
_FULL_STEP = 0.05
_ROW_SHARE = 0.5
"""What share of a decode tick is assumed to grow with its rows, until a batch half full was seen."""
_GROWTH = 2
_LATE = 1.05
_ALLOWED_LATE, _ALLOWED_LATE_AUTO = 0.005, 0.02
"""The share of ticks beside prefill that may take more than 5 % longer than the target. A target that was
asked for is a promise about the 99th percentile of these very gaps; the automatic one weighs it against the
prompts' wait, recovers from a disturbance within a hundred ticks instead of some hundreds, and holds the 99th
percentile of a stream's whole life."""
_STEP = 0.04
_LEAST_MARGIN = 0.4
_NEARLY = 1.4
_PATIENCE, _MOST_PATIENCE = 4, 256
"""Ticks of short chunks before a whole step is tried again."""


class Stream(Protocol):
    """What pacing needs of a sequence that decodes."""

    @property
    def seq_id(self) -> int: ...
    @property
    def n_computed(self) -> int: ...
    @property
    def n_output(self) -> int: ...
    @property
    def rank(self) -> tuple[int, float]: ...


class Pacer:
    """Plans the prefill of ticks within an ITL target and learns from how long they took.

    Without a target it plans like `plan_chunks` and only learns. With one, every tick beside decoding streams
    gets the largest prefill whose predicted time stays within the target times a margin; the margin follows
    the share of late ticks, so that the 99th percentile of the gaps, not their mean, meets the target.
    """

    def __init__(self, target_s: float | Literal["auto"] | None, grain: Grain | None = None) -> None:
        self._target_s = target_s
        self._allowed_late = _ALLOWED_LATE_AUTO if target_s == "auto" else _ALLOWED_LATE
        self.model = TickTimeModel(grain)
        self._margin = 0.9
        self._n_short, self._patience, self._trying = 0, _PATIENCE, False
        self._full_s = 0.0
        """Time of a decode tick with most slots busy; 0 until one was seen."""
        self.target_s = 0.0
        """The target of the tick planned last; 0 where it had none."""

    def plan(
        self,
        streams: Sequence[Stream],
        prompts: Sequence[Prompt],
        limits: EngineLimits,
        *,
        within_s: float = inf,
    ) -> list[Span]:
        """Return the prefill of a tick in which all `streams` decode; `prompts` is oldest first.

        With a target, it takes no longer than `within_s`: streams that have no part in it wait for its end.
        Streams of a worse class do not bind a prompt; beside them, and beside those of tenants who had far
        more, the automatic target is `DUE_FACTOR` times as long; no other prompt makes such a tick longer.
        """
        budget = limits.token_budget - len(streams)
        self.target_s = 0.0
        if not prompts:
            return []
        first, decode_s = min([p.rank for p in prompts]), 0.0
        due = any(yields(rank, first) for rank in {s.rank for s in streams})  # mostly one
        binds = any(s.rank[0] <= first[0] for s in streams)
        if self._target_s is not None and (binds or within_s < inf):
            n_decode = len(streams)
            decode_s = self.model.decode_s(n_decode, _context(streams, prompts, limits, budget))
            n_settled = sum([s.n_output >= SETTLED for s in streams])
            self.target_s = self._target(decode_s, n_decode, n_settled, len(prompts), limits.n_slots)
            if due and self._target_s == "auto":
                self.target_s *= DUE_FACTOR
        if due or not self.target_s:
            prompts = who_is_due(prompts)
        waits = within_s < inf and self._target_s is not None
        if waits:
            self.target_s = min(self.target_s or inf, within_s)
        elif not self.target_s:
            return plan_chunks(prompts, limits, budget)
        mixed = len(streams) > 0
        left_s = self.target_s * self._margin - decode_s - self.model.entry_s(mixed=mixed)
        most = FIRST_CHUNK
        if self.model.knows_prefill:
            most = max(self.model.longest_seen * _GROWTH, FIRST_CHUNK)
        most = min(most, budget)
        return list(self._chunks(order_prefill(prompts, limits, most), left_s, most, limits, mixed=mixed))

    def prefill_pace(self, n_decode: int, context: int, limits: EngineLimits) -> tuple[float, float] | None:
        """Return seconds per prompt token beside so many settled streams, and more per position of its depth.

        Ticks are as long as the target allows, or as the token budget, and prefill has what decoding leaves
        of them. None while too little is known.
        """
        if not self.model.knows_prefill:
            return None
        token_s, depth_s = self.model.token_s
        spent_s = self.model.decode_s(n_decode, context) + self.model.entry_s(mixed=n_decode > 0)
        left_s = token_s * (limits.token_budget - n_decode)
        if n_decode and self._target_s is not None:
            target_s = self._target(spent_s, n_decode, n_decode, 1, limits.n_slots)
            left_s = min(left_s, target_s - spent_s) if target_s else left_s
        left_s = max(left_s, token_s * LEAST_CHUNK)
        stretch = (spent_s + left_s) / left_s if left_s else 1.0
        return token_s * stretch, depth_s * stretch

    def _target(self, decode_s: float, n_decode: int, n_settled: int, n_prefill: int, n_slots: int) -> float:
        """Return the target; automatic: 0 while nothing is known of decode ticks, and for a burst's start."""
        if self._target_s != "auto":
            return self._target_s or 0.0
        if not n_settled or not self.model.knows_decode:
            return 0.0
        full_s = self._full_s or decode_s * (1 + _ROW_SHARE * (n_slots / n_decode - 1))
        return _auto_s(full_s) * max(1.0, n_prefill / n_settled)

    def _chunks(
        self, prompts: Sequence[Prompt], left_s: float, most: int, limits: EngineLimits, *, mixed: bool
    ) -> Iterable[Span]:
        model, grain, n_rows = self.model, limits.grain, limits.n_scored_rows
        beside = grain.beside if mixed else 0
        for number, prompt in enumerate(prompts):
            start, scored = prompt.n_computed, prompt.n_unscored is not None
            if number and start and grain.step > 1:
                return  # company would cut it into pieces that are no whole steps
            fits = most
            if model.knows_prefill:
                fits = model.longest_chunk(start, left_s, mixed=mixed, scored=scored)
            if number == 0:
                fits = max(fits, LEAST_CHUNK, self._retry(prompt, left_s, fits, grain, mixed=mixed))
            fits = within_rows(prompt, min(fits, limits.prefill_chunk + beside, most), n_rows)
            if scored and not fits and most > 0:
                continue
            if fits < prompt.n_pending:
                fits = grain.whole(fits, mixed=mixed) or fits
            length = piece(prompt.n_pending, fits)
            if length <= 0:
                return
            chunk = chunk_of(prompt, length)
            yield chunk
            most -= length
            n_rows -= (rows := n_scored(prompt, chunk))
            left_s -= model.chunk_s(start, length, mixed=mixed) + model.row_s * rows
            if start and grain.step > 1:
                return

    def _retry(self, prompt: Prompt, left_s: float, fits: int, grain: Grain, *, mixed: bool) -> int:
        """Return a whole step, or all of a prompt shorter than one, if half the safety margin is enough.

        Short chunks are several times as dear per token and teach nothing about long ones, so that a wrong
        guess would keep itself alive: now and then a step is tried that should not quite fit. Each try that
        was late doubles the ticks until the next.
        """
        step = min(grain.step + (grain.beside if mixed else 0), prompt.n_pending)
        if fits >= step:
            return 0
        step_s = self.model.chunk_s(prompt.n_computed, step, mixed=mixed)
        if step_s <= left_s + (1 - self._margin) / 2 * self.target_s:
            return step
        if step_s > _NEARLY * left_s:
            return 0
        self._n_short += 1
        if self._n_short < self._patience:
            return 0
        self._n_short, self._trying = 0, True
        return step

    def decode_s(self, n_decode: int, context: int) -> float:
        """Return what a tick takes that only decodes, 0 while too little is known."""
        return self.model.decode_s(n_decode, context) if self.model.knows_decode else 0.0

    def round_s(self, decode_s: float) -> float:
        """Return how long streams may wait for their turn, if a token for each of them takes `decode_s`."""
        return self._target_s if isinstance(self._target_s, float) else _auto_s(decode_s)

    def most_s(self, decode_s: float) -> float:
        """Return how long a tick may take that is given more to compute than the streams' next tokens."""
        if self._target_s == "auto":
            return _auto_s(decode_s)
        return inf if self._target_s is None else self._target_s

    def learn(self, shape: Shape, seconds: float, n_slots: int) -> float:
        """Take one finished tick of `seconds`; return what had been predicted (0: nothing known)."""
        knows = self.model.knows_prefill if shape.chunks else self.model.knows_decode
        predicted = self.model.predict(shape) if knows else 0.0
        if self.target_s and shape.chunks:
            late = seconds > _LATE * self.target_s
            if self._trying:
                self._patience = min(2 * self._patience, _MOST_PATIENCE) if late else _PATIENCE
                self._trying = False
            self._margin += _STEP * (self._allowed_late - late)
            self._margin = min(max(self._margin, _LEAST_MARGIN), 1.0)
        self.model.learn(shape, seconds)
        if not shape.chunks and 2 * shape.n_decode >= n_slots:
            self._full_s += (_FULL_STEP if self._full_s else 1.0) * (seconds - self._full_s)
        return predicted


def _auto_s(decode_s: float) -> float:
    return max(AUTO_TARGET_S, AUTO_FACTOR * decode_s)


def _context(streams: Sequence[Stream], prompts: Sequence[Prompt], limits: EngineLimits, budget: int) -> int:
    """Return the cells that the streams' attention will pay for beside the first prompt's chunk."""
    pass_cells = limits.grain.pass_cells
    if pass_cells is None:
        return sum([s.n_computed for s in streams])
    first = order_prefill(prompts, limits, budget)[0]
    rows = [Row(s.seq_id, s.n_computed + 1) for s in streams]
    rows = sorted([*rows, Row(first.seq_id, first.n_computed + 1, chunk=True)])
    return cells_of(rows, runs_of(rows, pass_cells), pass_cells)
