"""Per-request timelines and what they add up to: client TTFT, ITL, TPOT, E2E, throughput, goodput. Pure.

Definitions are those of `vllm bench serve`, attainment that of SGLang's bench: both names are kept apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import nan
from typing import Any, Literal

import numpy as np

from cobali_workloads.load.shape import Slo


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimeline:
    """One request as its client saw it. All times are seconds on one clock."""

    due_s: float
    """When the load wanted it sent; a closed loop wants it as soon as the client is free."""
    sent_s: float
    deltas_s: tuple[float, ...] = ()
    """Arrival of each delta with text, in order."""
    ended_s: float
    n_prompt: int | None = None
    n_cached: int | None = None
    """How much of the prompt the server had already; None where it does not say."""
    n_output: int = 0
    counted: bool = False
    """`n_output` is the number of deltas, because the server gave no usage."""
    status: Literal["ok", "refused", "failed"] = "ok"
    error: str = ""
    role: str = "stream"
    """`stream`, or `intruder` for the long prompts sent beside the load."""

    @property
    def ttft_s(self) -> float | None:
        """Client TTFT: send to first delta with text; None where no text came."""
        return self.deltas_s[0] - self.sent_s if self.deltas_s else None

    @property
    def e2e_s(self) -> float:
        """Send to last byte."""
        return self.ended_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """(E2E - TTFT) / (output tokens - 1); None for one-token answers."""
        ttft = self.ttft_s
        if ttft is None or self.n_output < 2:
            return None
        return (self.e2e_s - ttft) / (self.n_output - 1)

    @property
    def gaps_s(self) -> list[float]:
        """ITL samples: the gaps between neighbouring deltas."""
        return [after - before for before, after in pairwise(self.deltas_s)]

    def meets(self, slo: Slo) -> bool:
        """Say whether the request was answered and met every target; a one-token answer has TPOT 0."""
        if self.status != "ok":
            return False
        checks = (
            (slo.ttft_s, self.ttft_s if self.ttft_s is not None else float("inf")),
            (slo.tpot_s, self.tpot_s or 0.0),
            (slo.itl_s, max(self.gaps_s, default=0.0)),
        )
        return all(target is None or value <= target for target, value in checks)


@dataclass(frozen=True, slots=True)
class Spread:
    """One quantity over many samples, seconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    highest: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Describe the samples, percentiles interpolated; None if there are none."""
        if not values:
            return None
        p50, p90, p99 = (float(v) for v in np.quantile(values, (0.5, 0.9, 0.99)))
        return cls(float(np.mean(values)), p50, p90, p99, float(max(values)), len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a set of requests adds up to. Rates are per second of `duration_s`: first send to last byte."""

    n_sent: int
    n_ok: int
    n_refused: int
    n_failed: int
    duration_s: float
    ttft: Spread | None
    itl: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    n_prompt: int
    n_computed: float
    """Prompt tokens that were not cached; not a number if a server does not say how many were."""
    n_output: int
    output_tokens_per_s: float
    goodput_rps: float
    """Finished requests per second that met every target."""
    attainment: float
    """Share of the requests sent that met every target; refused and failed ones count as missed."""
    mean_concurrency: float
    """Sum of E2E / duration."""
    late_p99_s: float
    """How far the sender fell behind its own schedule."""

    def figures(self) -> dict[str, float]:
        """Return every number under a flat name, `ttft_p99_s` for example; what has no samples is nan."""
        flat: dict[str, float] = {}
        for name, value in asdict(self).items():
            if name in {"ttft", "itl", "tpot", "e2e"}:
                spread = value or dict.fromkeys(("mean", "p50", "p90", "p99", "highest"), float("nan"))
                flat |= {f"{name}_{part}_s": v for part, v in spread.items() if part != "n"}
            else:
                flat[name] = float(value)
        return flat


def summarise(timelines: Iterable[RequestTimeline], slo: Slo) -> Summary:
    """Add up the timelines. Latencies are of requests answered in full; TPOT leaves out one-token answers."""
    sent = list(timelines)
    if not sent:
        raise ValueError("there is nothing to summarise")
    ok = [t for t in sent if t.status == "ok"]
    duration = max(max(t.ended_s for t in sent) - min(t.sent_s for t in sent), 1e-9)
    n_met = sum(t.meets(slo) for t in ok)
    n_output = sum(t.n_output for t in ok)
    return Summary(
        n_sent=len(sent),
        n_ok=len(ok),
        n_refused=sum(t.status == "refused" for t in sent),
        n_failed=sum(t.status == "failed" for t in sent),
        duration_s=duration,
        ttft=Spread.of([t.ttft_s for t in ok if t.ttft_s is not None]),
        itl=Spread.of([gap for t in ok for gap in t.gaps_s]),
        tpot=Spread.of([t.tpot_s for t in ok if t.tpot_s is not None]),
        e2e=Spread.of([t.e2e_s for t in ok]),
        n_prompt=sum(t.n_prompt or 0 for t in ok),
        n_computed=sum((t.n_prompt or 0) - (nan if t.n_cached is None else t.n_cached) for t in ok),
        n_output=n_output,
        output_tokens_per_s=n_output / duration,
        goodput_rps=n_met / duration,
        attainment=n_met / len(sent),
        mean_concurrency=sum(t.e2e_s for t in sent) / duration,
        late_p99_s=float(np.quantile([t.sent_s - t.due_s for t in sent], 0.99)),
    )


def as_samples(timelines: Iterable[RequestTimeline]) -> list[dict[str, Any]]:
    """Return every timeline JSON-ready, times from the first send on, to the microsecond."""
    sent = list(timelines)
    start = min((t.sent_s for t in sent), default=0.0)
    return [
        {
            "role": t.role,
            "status": t.status,
            "error": t.error,
            "due_s": round(t.due_s - start, 6),
            "sent_s": round(t.sent_s - start, 6),
            "ended_s": round(t.ended_s - start, 6),
            "n_prompt": t.n_prompt,
            "n_cached": t.n_cached,
            "n_output": t.n_output,
            "deltas_s": [round(at - start, 6) for at in t.deltas_s],
        }
        for t in sent
    ]
