"""From load shapes, traces and made-up chats to what the simulator plays. Pure, and seeded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, count, pairwise
from random import Random

from cobali_ray.errors import ConfigError
from cobali_workloads.inside.keep import chats
from cobali_workloads.load.jobs import JobMaker, LoadCase
from cobali_workloads.load.options import Workload
from cobali_workloads.load.prompts import PromptMaker, uniform_costs
from cobali_workloads.load.shape import PromptsFile, Repeat
from cobali_workloads.load.target import Job
from cobali_workloads.load.workload import TRACE_BLOCK, Arrival
from cobali_workloads.simulate.fleet import SimulatedRequest

LEAD_S = 600.0
"""How long before the first request the first chats began."""


class ByteMaker(PromptMaker):
    """Makes prompts of one token per character, any of 256."""

    def __init__(self, seed: int) -> None:
        super().__init__(uniform_costs(1.0), seed)

    def text(self, key: str, n_tokens: int, *, prefix: str = "", prefix_tokens: int = 0) -> str:
        """Return `n_tokens` characters, of which the first `prefix_tokens` are those of `prefix`."""
        shared = Random(f"{self._seed} {prefix}").randbytes(prefix_tokens)
        own = Random(f"{self._seed} {key}").randbytes(max(n_tokens - prefix_tokens, 1))
        return (shared + own).decode("latin-1")


def asks_of(
    workload: Workload, case: LoadCase, key: str
) -> tuple[list[SimulatedRequest], list[SimulatedRequest]]:
    """Return a shape's warm-up and its load. Raises ConfigError for texts: nobody counted their tokens."""
    shape = workload.shape
    if isinstance(shape.prompt, PromptsFile | Repeat):
        raise ConfigError("--shape", f"{shape.name} has texts; give their lengths with --prompt-tokens")
    if shape.intruder is not None:
        raise ConfigError("--shape", f"{shape.name} has an intruder, which is not simulated")
    load = JobMaker(shape, ByteMaker(shape.seed), (), workload.trace)
    warmup = [_chained(f"{key} warm {i}", jobs, shape.seed) for i, jobs in enumerate(load.warmup(key))]
    if shape.kind == "closed":
        clients = load.closed(case, key)
        return warmup, [_chained(f"{key} {i}", jobs, shape.seed) for i, jobs in enumerate(clients)]
    jobs = enumerate(load.opened(key))
    return warmup, [_chained(f"{key} {i}", [job], shape.seed, at_s=job.at_s) for i, job in jobs]


def _chained(key: str, jobs: Sequence[Job], seed: int, at_s: float = 0.0) -> SimulatedRequest:
    """Return a client's first job, with the others to follow; a turn has the earlier ones in front."""
    rng, history, asks = Random(f"{seed} {key} answers"), b"", list[SimulatedRequest]()
    for i, job in enumerate(jobs):
        prompt = (b"" if job.begins else history) + job.prompt.encode("latin-1")
        answer = rng.randbytes(job.n_output)
        asks.append(SimulatedRequest(f"{key}.{i}", 0.0 if i else at_s, prompt, answer))
        history = prompt + answer
    return linked(asks)


def linked(asks: Sequence[SimulatedRequest]) -> SimulatedRequest:
    """Have each request follow the one before it; return the first."""
    for request, following in pairwise(asks):
        request.then = following
    return asks[0]


def replayed(trace: Sequence[Arrival], seed: int, shrink: int = 1) -> list[SimulatedRequest]:
    """Return a trace's requests, whose prompts are made of the blocks it names; lengths divided by `shrink`.

    What follows an answer in a later prompt has hashes of its own, so that answers are never found again.
    """
    rng, block = Random(f"{seed} answers"), TRACE_BLOCK // shrink

    @lru_cache(maxsize=1 << 16)
    def tokens(hash_id: int) -> bytes:
        return Random(hash_id).randbytes(block)

    asks = []
    for i, arrival in enumerate(trace):
        prompt = b"".join([tokens(hash_id) for hash_id in arrival.hash_ids])
        n_prompt = max((arrival.prompt_tokens or 1) // shrink, 1)
        answer = rng.randbytes(max(arrival.output_tokens // shrink, 1))
        asks.append(SimulatedRequest(f"{i}", arrival.time_s, prompt[:n_prompt] or b"\0", answer))
    return asks


def chatting(seconds: float, seed: int, per_s: float) -> list[SimulatedRequest]:
    """Return so many seconds of made-up chats, some of which are under way; see `keep.chats`.

    A message comes a while after the answer before it.
    """
    number, first_requests = count(), list[SimulatedRequest]()
    for began_s, talk in chats(LEAD_S + seconds, seed, per_s):
        at_s, asks = began_s - LEAD_S, list[SimulatedRequest]()
        pauses = [at_s, *[pause_s for _, pause_s in talk]]
        for (visit, _), pause_s, at_s in zip(talk, pauses, accumulate(pauses), strict=False):
            if 0 <= at_s < seconds:
                prompt, answer = visit.tokens[: visit.n_prompt], visit.tokens[visit.n_prompt :]
                asks.append(SimulatedRequest(f"{next(number)}", pause_s if asks else at_s, prompt, answer))
        if asks:
            first_requests.append(linked(asks))
    return first_requests


def chain_of(ask: SimulatedRequest) -> Iterator[SimulatedRequest]:
    """Yield a request and those that follow it."""
    yield ask
    while ask.then is not None:
        ask = ask.then
        yield ask
