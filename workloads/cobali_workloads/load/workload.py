"""The seeded requests that a load shape stands for. Nothing is read or sent here."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from cobali_ray.errors import ConfigError
from cobali_workloads.load.shape import LoadShape, PromptsFile, Repeat, TraceFile


class Size(NamedTuple):
    """One request's lengths: the whole prompt (None where the shape gives its text) and the output."""

    prompt_tokens: int | None
    output_tokens: int


class Arrival(NamedTuple):
    """When to send one request, in seconds after the start, and its lengths as in `Size`."""

    time_s: float
    prompt_tokens: int | None
    output_tokens: int
    hash_ids: tuple[int, ...] = ()
    """What its prompt is made of, where a trace says so: a name for each `TRACE_BLOCK` tokens."""


TRACE_BLOCK = 512
"""Tokens that a hash of a public trace stands for."""


def sizes(shape: LoadShape, n_requests: int) -> list[Size]:
    """Draw the lengths of the first `n_requests`; asking for more never changes the earlier ones.

    A trace has its own lengths (`cobali_workloads.load.trace`): ConfigError.
    """
    if isinstance(shape.prompt, TraceFile) or isinstance(shape.output, TraceFile):
        raise ConfigError("trace", "lengths and times of this shape are in its trace")
    rng = Random(f"{shape.seed} sizes")
    shared = shape.prefix.tokens if shape.prefix else 0
    drawn = []
    for _ in range(n_requests):
        prompt_tokens = None  # a given text is as long as it is
        if not isinstance(shape.prompt, PromptsFile | Repeat):
            prompt_tokens = shared + shape.prompt.draw(rng)
        drawn.append(Size(prompt_tokens, shape.output.draw(rng)))
    return drawn


def arrivals(shape: LoadShape) -> list[Arrival]:
    """Return when each request of an open loop is sent, in order, and how long it is.

    Gaps are gamma distributed with shape `burstiness` and mean 1 / `rate_rps`: 1 is a Poisson process,
    less is burstier, more is more regular. Times and lengths are drawn apart, so another rate keeps the
    lengths. A closed loop has no arrival times: ConfigError. Source: `vllm bench serve`.
    """
    if shape.kind != "open":
        raise ConfigError("kind", "only an open loop has arrival times")
    rng = Random(f"{shape.seed} times")
    now, timed = 0.0, []
    for size in sizes(shape, shape.n_requests):
        now += rng.gammavariate(shape.burstiness, 1 / (shape.rate_rps * shape.burstiness))
        timed.append(Arrival(now, *size))
    return timed


def prefix_groups(shape: LoadShape, n_requests: int) -> list[int]:
    """Draw which shared prefix, from 0, each of the first `n_requests` starts with; empty without prefix."""
    if shape.prefix is None:
        return []
    rng = Random(f"{shape.seed} groups")
    return [rng.randrange(shape.prefix.n_groups) for _ in range(n_requests)]
