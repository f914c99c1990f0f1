"""Pacer: chunks as large as the ITL target allows, from a model of the tick's time."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from math import exp, inf
from typing import Literal, NamedTuple

from cobali_ray.core.cost.runs import Row, cells_of, run_lengths, runs_of
from cobali_ray.core.cost.ticktime import EnginePace, TickShape, TickTimeModel
from cobali_ray.core.plan.plan import (
    Span,
    chunk_of,
    n_scored,
    order_prefill,
    piece,
    who_is_due,
    within_rows,
)
from cobali_ray.core.queue.fair import yields
from cobali_ray.core.request.limits import EngineLimits, Grain
from cobali_ray.core.request.sequence import Sequence

MIN_CHUNK = 4
"""Prefill goes on at this pace even where decoding alone takes nearly as long as the target."""
FIRST_CHUNK = 64
_GROWTH = 2
"""Chunks of passes that were never seen: at most 64 tokens, or twice as many as the largest pass."""
PATIENCE_S = 4.0
"""A gap of twice this length counts as much again as it is long: see `best_prefill_s`."""
STRETCH = 1.3
"""How much longer a prompt's chunks may take beside streams than alone, where gaps may be long enough for
that. What it waits for first, and what its chunks cannot have exactly, add some to it: 1.5 in all."""
_SIZES, _ALONE = tuple(n << i for i in range(10) for n in (4, 6)), (128, 256, 512)
"""The chunks that are compared, and those of prompts that are computed alone."""
MAX_GAP_S = 2.5
"""No gap that prefill makes is longer, unless decoding alone takes a third of it, or twice that where prompts
would not get on as `STRETCH` says with any shorter one."""
DUE_FACTOR = 3.0
"""How much longer gaps may be for a prompt that is due before others: at nine decode ticks it takes 1.13
times as long as alone. With 2 a better class's p99 TTFT beside a flood was 1.2 times that alone, with 1 it
was 1.5."""
_FLAT = 2.0
"""A prompt is not cut where its rest takes less than so many times as long as the best chunk: that costs
everybody little more than the best."""
_ROUNDING = 1 + 1e-9
"""So that the chunk that an automatic target is made for fits into it."""
_SURE = 3.0
"""A target in seconds is a promise about the 99th percentile: predictions and so many times their
mean error must stay within it."""
_SPREAD_S, _FIRST_SPREAD, _MAX_SPREAD, _N_FIRST = 5.0, 0.05, 0.2, 4
"""How fast the mean error forgets, what it is at first, as if from so many ticks, and the most it counts."""
_ROUND_S, _ROUND = 0.03, 3.0
"""How long streams wait for what is no prompt, drafts or another adapter's turn: at most so long, or so many
decode ticks, whichever is longer."""
_ANY_GRAIN = Grain()
"""Of chunks that nothing bounds but their number of tokens."""


def best_prefill_s(
    decode_s: float,
    n_streams: int,
    n_prompts: int,
    added_s: Callable[[int], float],
    alone_s: float,
    sizes: Seq[int] = _SIZES,
) -> float:
    """Return how long the prefill of a tick should take beside decoding that takes `decode_s`.

    `added_s` says how much longer a chunk of so many tokens makes the tick, `alone_s` what a token takes
    where there are no streams, and `sizes` which chunks there are, ascending. What is minimised is what a
    token of a prompt costs everybody, with chunks of n tokens that add c:

        (n_prompts * (decode_s + c)  +  n_streams * c  +  n_streams * (decode_s + c)^2 / (2 * PATIENCE_S)) / n

    Prompts wait for whole ticks, streams for the chunks, and a gap costs its reader the more the longer it
    is. Small chunks make short gaps, but on most devices each of their tokens takes longer, and everybody
    waits for that. A chunk must also get prompts on at least 1 / STRETCH times as fast as they get on alone,
    and no gap is longer than MAX_GAP_S, unless decoding alone takes a third of it. If no chunk can do both,
    gaps may be twice as long, and it is the shortest that gets prompts on, or else the fastest.
    """
    most_s, longest_s = [max(gap_s - decode_s, 2 * decode_s) for gap_s in (MAX_GAP_S, 2 * MAX_GAP_S)]
    best, best_s = (True, inf), 0.0
    for n in sizes:
        chunk_s = added_s(n)
        if best_s and chunk_s > (longest_s if best[0] else most_s):
            break
        gap_s = decode_s + chunk_s
        slow = gap_s > STRETCH * alone_s * n
        cost = gap_s if slow else n_prompts * gap_s + n_streams * (chunk_s + gap_s**2 / (2 * PATIENCE_S))
        if (slow, cost / n) < best:
            best, best_s = (slow, cost / n), chunk_s
    return best_s


class PrefillPlan(NamedTuple):
    """The prefill of a tick, and its bound."""

    chunks: tuple[Span, ...] = ()
    target_s: float = 0.0
    """The ITL target that bounded it; 0: none."""
    unmet_s: float | None = None
    """Seconds of decoding alone if they exceed the target that is set, else 0; None: not looked at."""


class Pacer:
    """Plans the prefill of ticks within an ITL target and learns from how long they took.

    Streams go first, one token each, so a long prompt cannot stall them; prefill has what is left of the
    budget (Sarathi-Serve, OSDI '24). Without a target it takes all of that. With one, every tick beside
    decoding streams gets the largest prefill whose predicted time, with a margin for the predictions' errors,
    stays within it. The automatic target is what `best_prefill_s` says, tick by tick, and so is one that is
    shorter than a decode tick.
    """

    def __init__(self, target_s: float | Literal["auto"] | None, grain: Grain | None = None) -> None:
        self._target_s = target_s
        self.model = TickTimeModel(grain)
        self._sizes = (grain or Grain()).sizes(_SIZES, mixed=True)
        """Chunks beside streams."""
        self._spread = _FIRST_SPREAD
        """Mean relative error of what was predicted for ticks beside streams."""
        self._n_errors = 0
        self.target_s = 0.0
        """The target of the tick begun last; 0 where it had none."""
        self.unmet_s = 0.0
        """What decoding alone took, where that exceeds the target that is set; 0 while it can be met."""

    def plan(
        self,
        streams: Seq[Sequence],
        prompts: Seq[Sequence],
        limits: EngineLimits,
        *,
        within_s: float = inf,
    ) -> PrefillPlan:
        """Return the prefill of a tick in which all `streams` decode; `prompts` is oldest first.

        Decides how long the tick may take, then the order of prompts, then what fits. Streams of a worse
        class than all prompts set no target. Beside streams that yield to a prompt, also those of tenants who
        had far more, the automatic one is `DUE_FACTOR` times as long; then, and without a target, only
        prompts are computed that yield to none. With a target, the tick also takes no longer than `within_s`,
        as streams that have no part in it wait for its end. Changes nothing; `begin` records what is
        computed.
        """
        if not prompts:
            return PrefillPlan()
        budget, grain = limits.token_budget - len(streams), limits.grain
        ordered = order_prefill(prompts, limits)
        first, decode_s = min([p.rank for p in prompts]), 0.0
        target_s, exact, unmet_s = 0.0, False, None
        due = any(yields(rank, first) for rank in {s.rank for s in streams})  # mostly one
        binds = any(s.rank[0] <= first[0] for s in streams)
        if self._target_s is not None and (binds or within_s < inf):
            n_decode = len(streams)
            context, runs = _decoding(streams, ordered[0], limits)
            decode_s = self.model.decode_s(n_decode, context, runs)
            best = min([s.rank[0] for s in streams], default=first[0])
            n_prompts = sum([p.rank[0] <= best for p in prompts])  # of worse classes, all count as one
            target_s, exact = self._target(decode_s, n_decode, max(n_prompts, 1), ordered[0].n_computed)
            if isinstance(self._target_s, float):
                unmet_s = 0.0 if exact else decode_s
            if due and not exact:
                target_s *= DUE_FACTOR
        if due or not target_s:
            ordered = who_is_due(ordered)
        if within_s < inf and self._target_s is not None:
            target_s, exact = min(target_s or inf, within_s), True
        elif not target_s:
            chunks = self._chunks(ordered, inf, 0.0, budget, limits, _ANY_GRAIN, n_decode=len(streams))
            return PrefillPlan(tuple(chunks), 0.0, unmet_s)
        sure = 1 + _SURE * self._spread if exact else 1.0
        most = max(self.model.longest_seen * _GROWTH, FIRST_CHUNK)
        most = min(most, budget)
        left_s = target_s / sure - decode_s
        flat_s = 0.0 if exact else (_FLAT - 1) * left_s
        chunks = self._chunks(ordered, left_s, flat_s, most, limits, grain, n_decode=len(streams))
        return PrefillPlan(tuple(chunks), target_s, unmet_s)

    def begin(self, prefill: PrefillPlan) -> None:
        """Record what the next tick computes."""
        self.target_s = prefill.target_s
        if prefill.unmet_s is not None:
            self.unmet_s = prefill.unmet_s

    def pace(self, n_decode: int, context: int, limits: EngineLimits) -> EnginePace | None:
        """Return how fast prompts are computed beside so many streams, and how fast those are; None: unknown.

        Ticks are as long as the target allows, or as the token budget, and prefill has what decoding leaves
        of them.
        """
        model = self.model
        if not model.knows_prefill:
            return None
        token_s, depth_s = model.token_s
        most = max(limits.token_budget - n_decode, 1)  # a budget of one token a slot is spent by streams
        tick_s = model.decode_s(n_decode, context)
        if not n_decode or self._target_s is None:
            return EnginePace(tick_s / most + token_s, depth_s, tick_s, tick_s + most * token_s)
        target_s, _ = self._target(tick_s, n_decode, 1)
        left_s = (target_s or inf) - tick_s
        length = max(model.longest_chunk(0, left_s, mixed=True, n_before=1, most=most), MIN_CHUNK)
        chunk_s = max(model.chunk_s(0, length, mixed=True, n_before=1), 1e-9)
        stretch = 1 + tick_s / chunk_s
        return EnginePace(token_s * stretch, depth_s * stretch, tick_s, tick_s + chunk_s)

    def _target(self, decode_s: float, n_decode: int, n_prompts: int, start: int = 0) -> tuple[float, bool]:
        """Return the target, and whether it is a promise; 0 while nothing is known of decode ticks.

        `start` is how much of the first prompt is computed.
        """
        target_s, knows_decode = self._target_s, self.model.knows_decode
        if isinstance(target_s, float) and (decode_s < target_s or not knows_decode):
            return target_s, True
        if not knows_decode:
            return 0.0, False
        model, n_before = self.model, 0 if self.model.apart else n_decode
        added_s = partial(model.chunk_s, start, mixed=n_decode > 0, n_before=n_before)
        alone_s = min([model.chunk_s(start, n) / n for n in _ALONE])
        best_s = best_prefill_s(decode_s, n_decode, n_prompts, added_s, alone_s, self._sizes)
        return decode_s + best_s * _ROUNDING, False

    def _chunks(
        self,
        prompts: Seq[Sequence],
        left_s: float,
        flat_s: float,
        most: int,
        limits: EngineLimits,
        grain: Grain,
        *,
        n_decode: int,
    ) -> list[Span]:
        """Return chunks for `left_s`; a prompt's last one may take `flat_s` longer, all of them together."""
        chunks = list[Span]()
        model, n_rows, mixed = self.model, limits.n_scored_rows, n_decode > 0
        beside = grain.beside if mixed else 0
        n_before = 0 if grain.beside else n_decode
        for number, prompt in enumerate(prompts):
            start, scored = prompt.n_computed, prompt.n_unscored is not None
            if number and start and grain.step > 1:
                break  # company would cut it into pieces that are no whole steps
            fits = most
            if model.knows_prefill and left_s < inf:
                limit = min(most, max(prompt.n_pending, grain.step + beside))
                fits = model.longest_chunk(
                    start, left_s, mixed=mixed, scored=scored, n_before=n_before, most=limit
                )
                whole_s = model.chunk_s(start, prompt.n_pending, mixed=mixed, n_before=n_before)
                if fits < prompt.n_pending <= most and whole_s <= left_s + flat_s and not scored:
                    fits = prompt.n_pending
            if number == 0:
                fits = max(fits, MIN_CHUNK)
            fits = within_rows(prompt, min(fits, limits.prefill_chunk + beside, most), n_rows)
            if scored and not fits and most > 0:
                continue
            if fits < prompt.n_pending:
                fits = grain.fit(fits, mixed=mixed) or fits
            length = piece(prompt.n_pending, fits)
            if length <= 0:
                break
            chunk = chunk_of(prompt, length)
            chunks.append(chunk)
            most -= length
            n_rows -= (rows := n_scored(prompt, chunk))
            left_s -= model.chunk_s(start, length, mixed=mixed, n_before=n_before) + model.out_s * rows
            n_before += length
            if (start and grain.step > 1) or (left_s <= 0 and model.knows_prefill):
                break
        return chunks

    def decode_s(self, n_decode: int, context: int) -> float:
        """Return what a tick takes that only decodes, 0 while too little is known."""
        return self.model.decode_s(n_decode, context) if self.model.knows_decode else 0.0

    def round_s(self, decode_s: float) -> float:
        """Return how long streams may wait for their turn, if a token for each of them takes `decode_s`."""
        return self._target_s if isinstance(self._target_s, float) else _round_s(decode_s)

    def most_s(self, decode_s: float) -> float:
        """Return how long a tick may take that computes more than the streams' next tokens."""
        if self._target_s == "auto":
            return _round_s(decode_s)
        return inf if self._target_s is None else self._target_s

    def learn(self, shape: TickShape, seconds: float) -> float:
        """Learn from a finished tick of `seconds`; return what was predicted (0: nothing was known)."""
        knows = self.model.knows_prefill if shape.chunks else self.model.knows_decode
        predicted = self.model.predict(shape) if knows else 0.0
        if predicted and shape.chunks and shape.n_decode:
            error = min(abs(seconds / predicted - 1), 2 * _MAX_SPREAD)
            self._n_errors += 1
            step = max(1 - exp(-seconds / _SPREAD_S), 1 / (self._n_errors + _N_FIRST))
            self._spread = min(self._spread + step * (error - self._spread), _MAX_SPREAD)
        self.model.learn(shape, seconds)
        return predicted


def _round_s(decode_s: float) -> float:
    return max(_ROUND_S, _ROUND * decode_s)


def _decoding(streams: Seq[Sequence], first: Sequence, limits: EngineLimits) -> tuple[int, tuple[int, ...]]:
    """Return the cells that the streams' attention will pay for beside the first prompt's chunk, and runs."""
    pass_cells = limits.grain.pass_cells
    if pass_cells is None:
        runs = run_lengths([s.seq_id for s in streams]) if limits.grain.beside else ()
        return sum([s.n_computed for s in streams]), runs
    rows = [Row(s.seq_id, s.n_computed + 1) for s in streams]
    rows = sorted([*rows, Row(first.seq_id, first.n_computed + 1, chunk=True)])
    places = runs_of(rows, pass_cells)
    lengths = [sum([not rows[i].chunk for i in run]) for run in places]
    return cells_of(rows, places), tuple([n for n in lengths if n])
