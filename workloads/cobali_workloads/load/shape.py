"""Load shapes as values: what a load run sends, and the targets it is judged by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Annotated, Literal, TypeAlias

from pydantic import ConfigDict, Field

NO_OTHERS = ConfigDict(extra="forbid")
"""Of what stands in a shape file: a key that is not a field is an error."""
Count: TypeAlias = Annotated[int, Field(ge=1, strict=True)]
Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Flag: TypeAlias = Annotated[bool, Field(strict=True)]
Text: TypeAlias = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """The same number of tokens every time."""

    __pydantic_config__ = NO_OTHERS
    tokens: Count
    dist: Literal["fixed"] = "fixed"

    def draw(self, _rng: Random) -> int:
        """Return the length in tokens."""
        return self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Every number of tokens from `low` to `high`, both included, equally likely."""

    __pydantic_config__ = NO_OTHERS
    low: Count
    high: Count
    dist: Literal["uniform"] = "uniform"

    def draw(self, rng: Random) -> int:
        """Return the length in tokens."""
        return rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """A long-tailed length around `median` tokens, clamped to `low .. high`; `sigma` is of its logarithm."""

    __pydantic_config__ = NO_OTHERS
    low: Count
    median: Count
    high: Count
    sigma: Positive
    dist: Literal["lognormal"] = "lognormal"

    def draw(self, rng: Random) -> int:
        """Return the length in tokens."""
        length = round(rng.lognormvariate(math.log(self.median), self.sigma))
        return min(max(length, self.low), self.high)


Length: TypeAlias = Annotated[Fixed | Uniform | Lognormal, Field(discriminator="dist")]

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

    __pydantic_config__ = NO_OTHERS
    text: Text
    n_times: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """Times and lengths from a CSV or JSONL file beside the shape; `speed` 2 sends twice as fast."""

    __pydantic_config__ = NO_OTHERS
    path: Annotated[Text, Field(alias="file")]
    speed: Positive = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """Conversations of `n_turns` requests; each sends the conversation so far and one new prompt."""

    __pydantic_config__ = NO_OTHERS
    n_turns: Annotated[int, Field(ge=2, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """`n_groups` prefixes of `tokens` each; every prompt starts with one of them, drawn by the seed."""

    __pydantic_config__ = NO_OTHERS
    tokens: Count
    n_groups: Count
    fresh: Flag = False
    """Whether each round has prefixes that nobody has seen; else the first round alone finds none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intruder:
    """One long prompt every `every_s` seconds beside the load proper; `at_most` so many in a run."""

    __pydantic_config__ = NO_OTHERS
    every_s: Positive
    prompt_tokens: Count
    output_tokens: Count
    at_most: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Targets of one request in seconds; None asks nothing. `itl_s` bounds every gap."""

    __pydantic_config__ = NO_OTHERS
    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    itl_s: Positive | None = None


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
