"""Load shapes as values: what a load run sends, and the targets it is judged by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """The same number of tokens every time."""

    tokens: int

    def draw(self, _rng: Random) -> int:
        """Return the length in tokens."""
        return self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Every number of tokens from `low` to `high`, both included, equally likely."""

    low: int
    high: int

    def draw(self, rng: Random) -> int:
        """Return the length in tokens."""
        return rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """A long-tailed length around `median` tokens, clamped to `low .. high`; `sigma` is of its logarithm."""

    median: int
    sigma: float
    low: int
    high: int

    def draw(self, rng: Random) -> int:
        """Return the length in tokens."""
        length = round(rng.lognormvariate(math.log(self.median), self.sigma))
        return min(max(length, self.low), self.high)


Length = Fixed | Uniform | Lognormal

TYPICAL_PROMPT = Lognormal(median=128, sigma=0.8, low=16, high=1024)
TYPICAL_ANSWER = Uniform(low=32, high=96)
"""Lengths of requests where a benchmark names no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsFile:
    """Prompts of a text file beside the shape, in order, from the start again when they run out."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One prompt for every request: `text`, `n_times` over."""

    text: str
    n_times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """Times and lengths from a CSV or JSONL file beside the shape; `speed` 2 sends twice as fast."""

    path: str
    speed: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """Conversations of `n_turns` requests; each sends all that was said before and one new prompt."""

    n_turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """`n_groups` prefixes of `tokens` each; every prompt starts with one of them, drawn by the seed."""

    tokens: int
    n_groups: int
    fresh: bool = False
    """Whether each round has prefixes that nobody has seen; else the first round alone finds none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intruder:
    """One long prompt every `every_s` seconds beside the load proper; `at_most` so many in a run."""

    every_s: float
    prompt_tokens: int
    output_tokens: int
    at_most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Targets of one request in seconds; None asks nothing. `itl_s` bounds every gap."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """What a load run sends. Lengths are tokens; `prompt` counts without the shared prefix.

    Open loop: `n_requests` at `rate_rps`, or a trace. Closed loop: at each level of `concurrency` that many
    clients send `requests_per_client` each, one after the other; with `turns` these form conversations.
    Warm-up requests come first and are not measured.
    """

    name: str
    description: str
    seed: int
    kind: Literal["open", "closed"]
    prompt: Length | PromptsFile | Repeat | TraceFile
    output: Length | TraceFile
    """A trace gives both lengths."""
    ignore_eos: bool
    warmup_requests: int
    slo: Slo
    rate_rps: float = 0.0
    burstiness: float = 1.0
    n_requests: int = 0
    concurrency: tuple[int, ...] = ()
    requests_per_client: int = 0
    prefix: Prefix | None = None
    turns: Conversations | None = None
    intruder: Intruder | None = None
