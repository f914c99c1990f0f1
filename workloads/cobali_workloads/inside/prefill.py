"""Prefilling one batch of prompts in different ways, on the Backend port and through the engine."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter

from cobali_ray.backend.batch import TickBatch
from cobali_ray.backend.port import Backend
from cobali_ray.backend.sampling import RowSampler
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.plan.pace import PrefillPlan as Planned
from cobali_ray.core.plan.plan import Span
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import GREEDY
from cobali_ray.core.request.sequence import Sequence as Waiting
from cobali_ray.engine.opening import MonotonicClock
from cobali_ray.settings import EngineSettings
from cobali_workloads.inside.runs import empty, greedy_requests, run_once

Prompts = Sequence[Sequence[int]]
Ticks = Iterator[tuple[Span, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRun:
    """One batch prefilled: until the first token of its last prompt."""

    seconds: float
    ttfts_s: list[float]
    n_ticks: int
    n_tokens: int
    """Tokens computed, filler included."""
    n_cells: int
    """KV cells that hold the batch when decoding could begin."""


def pad_left(prompts: Prompts, filler: int) -> list[array[int]]:
    """Bring all prompts to the longest one's length, filler in front, so that all end together."""
    longest = max(map(len, prompts))
    return [array("i", [filler] * (longest - len(prompt))) + array("i", prompt) for prompt in prompts]


def padded_ticks(n_prompts: int, longest: int, n_batch: int) -> Ticks:
    """Cut a rectangle of prompts into ticks of at most `n_batch` tokens, as many whole rows as fit.

    Rows longer than a tick are cut into pieces. Whole rows are the cheapest order there is for a padded
    batch: every row's cache is read once, and all rows of a tick are equally long.
    """
    rows = max(1, n_batch // longest)
    for first in range(0, n_prompts, rows):
        slots = range(first, min(first + rows, n_prompts))
        for start in range(0, longest, n_batch):
            length = min(n_batch, longest - start)
            yield tuple(Span(slot, start, length, sample=start + length == longest) for slot in slots)


class Packed(Pacer):
    """Plans as the product does, with the prompts in another order."""

    def plan(
        self, streams: Sequence[Waiting], prompts: Sequence[Waiting], limits: EngineLimits, *,
        within_s: float = inf,
    ) -> Planned:  # fmt: skip
        """Return the prefill of a tick."""
        packed = pack(prompts, limits.prefill_chunk, limits.token_budget - len(streams))
        return super().plan(streams, packed, limits, within_s=within_s)


def pack(prompts: Sequence[Waiting], chunk: int, budget: int) -> list[Waiting]:
    """Order prompts so that one tick is filled as full as whole prompts can fill it.

    First-fit decreasing: what Prepacking (arXiv 2404.09529) gains by bins is, on a runtime whose batches
    are ragged anyway, only the order in which whole prompts take the budget. The oldest prompt keeps
    its place in front, so that none starves behind a flow of well-fitting ones; prompts that do not
    fit whole follow in their old order and take the rest in pieces.
    """
    if not prompts:
        return []
    oldest, *others = prompts
    left = budget - min(oldest.n_pending, chunk)
    whole: list[Waiting] = []
    for prompt in sorted(others, key=attrgetter("n_pending"), reverse=True):
        if prompt.n_pending <= min(left, chunk):
            whole.append(prompt)
            left -= prompt.n_pending
    chosen = {prompt.slot_id for prompt in whole}
    return [oldest, *whole, *(prompt for prompt in others if prompt.slot_id not in chosen)]


class PrefillRunner:
    """Prefills batches on one backend, every batch on an empty cache."""

    def __init__(self, backend: Backend, settings: EngineSettings, *, filler: int) -> None:
        self._backend, self._settings, self._filler = backend, settings, filler
        self._batch = TickBatch(backend.n_batch)
        self._clock = MonotonicClock()

    def padded(self, prompts: Prompts) -> BatchRun:
        """Compute every prompt padded to the longest; all have their first token when the batch is done."""
        tokens = pad_left(prompts, self._filler)
        longest = len(tokens[0])
        run = self._drive(tokens, padded_ticks(len(tokens), longest, self._backend.n_batch))
        return replace(run, ttfts_s=[run.seconds] * len(tokens))

    def one_by_one(self, prompts: Prompts) -> BatchRun:
        """Compute the prompts one after the other, each alone."""
        most = self._backend.n_batch

        def ticks() -> Ticks:
            for slot, prompt in enumerate(prompts):
                for start in range(0, len(prompt), most):
                    length = min(most, len(prompt) - start)
                    yield (Span(slot, start, length, sample=start + length == len(prompt)),)

        return self._drive([array("i", prompt) for prompt in prompts], ticks())

    def _drive(self, tokens: Sequence[array[int]], ticks: Ticks) -> BatchRun:
        backend, batch, now = self._backend, self._batch, self._clock.now
        empty(backend)
        ttfts, n_ticks, n_tokens = [], 0, 0
        started = now()
        samplers = [self._sampler(slot_id, prompt) for slot_id, prompt in enumerate(tokens)]
        for spans in ticks:
            batch.fill(spans, [tokens[span.slot_id] for span in spans])
            backend.forward(batch)
            backend.wait()
            wanted = [span for span in spans if span.sample]
            if wanted:
                backend.sample([samplers[span.slot_id] for span in wanted])
                ttfts += [now() - started] * len(wanted)
            n_ticks += 1
            n_tokens += batch.n_tokens
        return BatchRun(
            seconds=now() - started,
            ttfts_s=ttfts,
            n_ticks=n_ticks,
            n_tokens=n_tokens,
            n_cells=sum(map(len, tokens)),
        )

    def _sampler(self, slot_id: int, prompt: Sequence[int]) -> RowSampler:
        backend = self._backend
        made = RowSampler(GREEDY, prompt, end_tokens=backend.end_tokens, n_vocab=backend.n_vocab)
        backend.expect(slot_id, made)
        return made

    def engine(self, prompts: Prompts, pacing: type[Pacer] = Pacer) -> BatchRun:
        """Submit the batch to an engine that takes prompts in this order; nothing is padded."""
        requests = greedy_requests(prompts, max_tokens=1, ignore_eos=True)
        run = run_once(self._backend, self._settings, requests, "fcfs", pacing)
        return BatchRun(
            seconds=run.report.wall_s,
            ttfts_s=[s.ttft_s for s in run.report.requests.values() if s.ttft_s is not None],
            n_ticks=run.report.n_ticks,
            n_tokens=sum(tick.n_prefill for tick in run.ticks),
            n_cells=sum(map(len, prompts)),
        )

    def ways(self) -> dict[str, Callable[[Prompts], BatchRun]]:
        """Return how a batch may be computed, by name; `length-ordered` pads batches sorted beforehand."""
        return {
            "padded": self.padded,
            "length-ordered": self.padded,
            "one by one": self.one_by_one,
            "fcfs": self.engine,
            "packed": lambda prompts: self.engine(prompts, Packed),
        }


def batches_of(prompts: Prompts, size: int, *, by_length: bool) -> list[Prompts]:
    """Cut a pool of prompts into batches, as they come or sorted by length first."""
    pool = sorted(prompts, key=len) if by_length else list(prompts)
    return [pool[i : i + size] for i in range(0, len(pool), size)]
