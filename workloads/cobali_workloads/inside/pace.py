"""Running streams beside long prompts, in process: how long their gaps get and how fast the prompts go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import median

import numpy as np

from cobali_ray.backend.port import Backend
from cobali_ray.core.plan.pace import Pacer
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request, SamplingParams
from cobali_ray.core.views.stats import TickStats
from cobali_ray.engine.engine import Engine
from cobali_ray.engine.opening import MonotonicClock
from cobali_workloads.inside.runs import empty
from cobali_workloads.report.rounds import Figures

N_STREAM_PROMPT = 64
N_DECODE_TICKS = 40
_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class PrefillGaps:
    """What streams and prompts had of each other. Times in seconds, one entry per tick or gap."""

    gaps_s: list[float]
    """Gaps between neighbouring tokens of a stream, where prefill was computed in between."""
    n_prefill: int
    spent_s: float
    """From each prompt's first tick to its first token."""
    errors: list[float]
    """Relative errors of the predicted tick time, absolute."""
    decode_s: float
    """Median tick without prefill."""
    decode_p99_s: float

    def figures(self) -> Figures:
        """Return what the rounds compare."""
        p50, p99 = (float(np.quantile(self.gaps_s, share)) for share in (0.5, 0.99))
        return {
            "itl_p50_s": p50,
            "itl_p99_s": p99,
            "prefill_tokens_per_s": self.n_prefill / self.spent_s,
            "decode_s": self.decode_s,
            "decode_p99_s": self.decode_p99_s,
            "error": median(self.errors) if self.errors else float("nan"),
        }


class PaceExperiment:
    """`n_streams` running streams, and long prompts one after another in the last slot."""

    def __init__(
        self, backend: Backend, limits: EngineLimits, *, n_streams: int, n_prompt: int, n_prompts: int
    ) -> None:
        self._backend, self._limits = backend, limits
        self._n_streams, self._n_prompt, self._n_prompts = n_streams, n_prompt, n_prompts

    def run(self, pacer: Pacer, chunk: int | None = None) -> PrefillGaps:
        """Run once on an empty cache; `chunk` fixes the chunk size, else the pacer chooses."""
        empty(self._backend)
        limits = self._limits
        if chunk is not None:
            limits = replace(limits, prefill_chunk=chunk, token_budget=chunk + limits.n_slots)
        rng = Random(17)
        engine = Engine(self._backend, limits, MonotonicClock(), lambda _: None, pacer=pacer)
        for i in range(self._n_streams):
            engine.submit(self._request(f"stream-{i}", N_STREAM_PROMPT, limits.n_ctx_slot, rng))
        while self._tick(engine).n_prefill or len(engine.scheduler.queue):
            pass
        alone = [self._tick(engine) for _ in range(N_DECODE_TICKS)]
        beside: list[list[TickStats]] = []
        for i in range(self._n_prompts):
            engine.submit(self._request(f"prompt-{i}", self._n_prompt, 1, rng))
            ticks = [self._tick(engine)]
            while ticks[-1].n_prefilling:
                ticks.append(self._tick(engine))
            beside.append(ticks)
            alone += [self._tick(engine) for _ in range(8)]
        return _beside(beside, alone)

    def _tick(self, engine: Engine) -> TickStats:
        while (stats := engine.tick()) is None:
            pass
        return stats

    def _request(self, name: str, n_tokens: int, most: int, rng: Random) -> Request:
        prompt = tuple(rng.randrange(self._backend.n_vocab // 2) for _ in range(n_tokens))
        return Request(
            request_id=name, prompt=prompt, max_tokens=min(most, self._limits.n_most - n_tokens),
            sampling=_GREEDY,
        )  # fmt: skip


def _beside(prompts: Sequence[Sequence[TickStats]], alone: Sequence[TickStats]) -> PrefillGaps:
    with_prefill = [t for ticks in prompts for t in ticks if t.n_prefill]
    pure = [t.total_s for t in alone if not t.n_prefill]
    return PrefillGaps(
        gaps_s=[gap for ticks in prompts for t in ticks for gap in t.gaps_s],
        n_prefill=sum(t.n_prefill for t in with_prefill),
        spent_s=sum(ticks[-1].started_s + ticks[-1].total_s - ticks[0].started_s for ticks in prompts),
        errors=[abs(t.predicted_s - t.total_s) / t.total_s for t in with_prefill if t.predicted_s],
        decode_s=median(pure),
        decode_p99_s=float(np.quantile(pure, 0.99)),
    )
