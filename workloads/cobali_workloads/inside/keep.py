"""What a cache of prefixes should give up: rules side by side on one trace. Pure, no model and no engine.

Requests come one after another. Each reuses what its prompt begins with, and leaves all its tokens. Of what
is left to compute, deep tokens count more, as in `recompute_cost`. Bounds are checked after every request.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple, Protocol

from cobali_ray.core.cache.host_tier import HostTier
from cobali_ray.core.cache.placement import n_shared, recompute_cost
from cobali_ray.errors import ConfigError
from cobali_workloads.inside.oracle import Visit
from cobali_workloads.load.workload import TRACE_BLOCK

N_VOCAB = 32_000
APPS = (40, 300, 300, 800, 800, 2000)
"""Tokens of the system prompts; the first are used most."""
ARRIVE_PER_S = 0.3
"""Chats and documents that begin, by a Poisson process."""
DOCUMENTS = 0.4
"""Share of those that are one question about a text of their own."""
THINK_S = 60.0
N_TURNS, N_MESSAGE, N_ANSWER, N_DOCUMENT = (1, 10), (20, 200), (30, 300), (100, 4000)


class CacheTrace(NamedTuple):
    """Requests in order of time. A token of theirs may stand for many."""

    name: str
    visits: Sequence[Visit]
    block: int
    """Tokens that are kept together."""
    tokens_each: int = 1
    """What a token stands for."""

    @property
    def n_distinct(self) -> int:
        """Tokens that a cache without bounds would hold."""
        everything = HostTier(1 << 60, self.block)
        for visit in self.visits:
            everything.insert(visit.tokens, len(visit.tokens))
        return everything.n_used


class Rule(Protocol):
    """A cache of at most so many tokens."""

    @property
    def n_used(self) -> int:
        """Tokens kept."""
        ...

    def ask(self, visit: Visit) -> int:
        """Return how many tokens of a prompt are there, and keep what the request leaves."""
        ...


class Tree:
    """Our rule: what host memory does."""

    def __init__(self, n_cells: int, block: int) -> None:
        self.tier = HostTier(n_cells, block)

    @property
    def n_used(self) -> int:
        """Tokens kept."""
        return self.tier.n_used

    def ask(self, visit: Visit) -> int:
        """See `Rule`."""
        most = visit.n_prompt - 1
        blocks = self.tier.match(visit.tokens, most)
        self.tier.use(blocks)
        self.tier.insert(visit.tokens, len(visit.tokens))
        return min(blocks[-1].end, most) if blocks else 0


class Whole:
    """llama-server's prompt cache: whole sequences, the oldest saved goes, and a hit takes the entry out.

    Entries of which a prompt would keep less than a quarter are not looked at.
    """

    def __init__(self, n_cells: int, block: int) -> None:
        del block
        self._n_cells = n_cells
        self._kept: list[array[int]] = []
        self.n_used = 0
        """Tokens kept."""

    def ask(self, visit: Visit) -> int:
        """See `Rule`."""
        tokens, n_hit, best = visit.tokens, 0, None
        left: list[array[int]] = []
        for held in self._kept:
            shared = n_shared(tokens, held, len(tokens))
            n = min(shared, visit.n_prompt - 1)
            if shared < len(held):  # else it is part of what is saved now
                left.append(held)
            if n > n_hit and 4 * n >= len(held):
                n_hit, best = n, held
        self._kept = [held for held in left if held is not best]
        if len(tokens) <= self._n_cells:
            self._kept.append(tokens)
        self.n_used, n_dropped = sum([len(held) for held in self._kept]), 0
        while self.n_used > self._n_cells:
            self.n_used -= len(self._kept[n_dropped])
            n_dropped += 1
        del self._kept[:n_dropped]
        return n_hit


RULES: dict[str, type[Tree | Whole]] = {"ours": Tree, "llama-server's": Whole}


class CacheResult(NamedTuple):
    """How a rule did."""

    computed: float
    """What was left to compute, as a share of all prompts' cost."""
    cached: float
    """Share of prompt tokens that were there."""
    fullest: float
    """The most that was kept, as a share of the bound."""


def play(trace: CacheTrace, rule: Rule, n_cells: int) -> CacheResult:
    """Let all requests come, one after another."""
    computed = total = 0.0
    n_cached = n_prompt = n_most = 0
    for visit in trace.visits:
        n_hit, n = rule.ask(visit), visit.n_prompt
        each = trace.tokens_each
        computed += recompute_cost(n_hit * each, n * each)
        total += recompute_cost(0, n * each)
        n_cached, n_prompt = n_cached + n_hit, n_prompt + n
        n_most = max(n_most, rule.n_used)
    return CacheResult(computed / total, n_cached / n_prompt, n_most / n_cells)


class CacheChat(NamedTuple):
    """A conversation, or a document with one question."""

    began_s: float
    turns: Sequence[tuple[Visit, float]]
    """What is asked and answered, and how long after that the next turn comes."""


def chats(seconds: float, seed: int, per_s: float = ARRIVE_PER_S) -> Iterable[CacheChat]:
    """Make up chats with a few apps, each message a while after the last answer, and lone documents."""
    rng = Random(seed)

    def tokens(n: int) -> array[int]:
        return array("i", [number % N_VOCAB for number in memoryview(rng.randbytes(4 * n)).cast("I")])

    apps = [tokens(n) for n in APPS]
    began_s = rng.expovariate(per_s)
    while began_s < seconds:
        history, n_turns, n_message = apps[_app(rng)], rng.randint(*N_TURNS), N_MESSAGE
        if rng.random() < DOCUMENTS:
            history, n_turns, n_message = tokens(0), 1, N_DOCUMENT
        turns = []
        for _ in range(n_turns):
            prompt = history + tokens(rng.randint(*n_message))
            history = prompt + tokens(rng.randint(*N_ANSWER))
            turns.append((Visit(len(prompt), history), rng.expovariate(1 / THINK_S)))
        yield CacheChat(began_s, turns)
        began_s += rng.expovariate(per_s)


def generated(seconds: float, seed: int) -> CacheTrace:
    """Return made-up chats as a trace in which answers take no time."""
    timed: list[tuple[float, Visit]] = []
    for began_s, turns in chats(seconds, seed):
        at_s = began_s
        for visit, pause_s in turns:
            timed.append((at_s, visit))
            at_s += pause_s
    timed.sort(key=lambda entry: entry[0])
    visits = [visit for at_s, visit in timed if at_s < seconds]
    return CacheTrace(f"generated, {seconds / 60:.0f} minutes", visits, block=64)


def _app(rng: Random) -> int:
    return min(int(rng.expovariate(0.6)), len(APPS) - 1)


def read_hashes(name: str, text: str) -> CacheTrace:
    """Read a trace of JSON lines whose `hash_ids` name blocks of a prompt, as the Mooncake project's do.

    Raises ConfigError for a line that has none.
    """
    visits = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            ids = array("i", json.loads(line)["hash_ids"])
        except (ValueError, TypeError, LookupError, OverflowError) as error:
            raise ConfigError("--trace", f"line {number} has no hash_ids: {error!r}") from None
        visits.append(Visit(len(ids), ids))
    if not visits:
        raise ConfigError("--trace", "there is no request in it")
    return CacheTrace(name, visits, block=1, tokens_each=TRACE_BLOCK)
