"""Other ways to choose an engine, for comparison with the router: each as simple as it is usually built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import count
from random import Random
from typing import TypeAlias

from cobali_ray.core.dispatch.route import BLOCK, names_of
from cobali_ray.core.request.request import Request
from cobali_ray.core.scheduler import Scheduler
from cobali_workloads.simulate.fleet import RouterPolicy, RoutingPolicy

N_HASHED = 1024 // BLOCK
"""Blocks at the beginning of a prompt that choose its engine: more than most system prompts have."""


class _Counting:
    """Knows its engines, and how many open requests it has at each."""

    def __init__(self) -> None:
        self._engines: list[str] = []
        self._n_open: Counter[str] = Counter()
        self._at: dict[str, str] = {}

    def published(self, engine_id: str, scheduler: Scheduler, now_s: float) -> None:
        """See `RoutingPolicy`."""
        del scheduler, now_s
        if engine_id not in self._engines:
            self._engines.append(engine_id)

    def choose(self, request: Request, now_s: float, without: Collection[str]) -> str | None:
        """See `RoutingPolicy`."""
        del now_s
        if not (left := [engine_id for engine_id in self._engines if engine_id not in without]):
            return None
        chosen = self._among(request, left)
        self._at[request.request_id] = chosen
        self._n_open[chosen] += 1
        return chosen

    def _among(self, request: Request, left: Sequence[str]) -> str:
        raise NotImplementedError

    def began(self, request: Request, n_cached: int) -> None:
        """See `RoutingPolicy`."""

    def ended(self, request: Request) -> None:
        """See `RoutingPolicy`."""
        if (engine_id := self._at.pop(request.request_id, None)) is not None:
            self._n_open[engine_id] -= 1


class RoundRobin(_Counting):
    """Each in turn."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = count()

    def _among(self, request: Request, left: Sequence[str]) -> str:
        del request
        return left[next(self._turn) % len(left)]


class TwoChoices(_Counting):
    """Of two drawn at random the one with fewer open requests, as Ray Serve's own router does."""

    def __init__(self) -> None:
        super().__init__()
        self._rng = Random(0)

    def _among(self, request: Request, left: Sequence[str]) -> str:
        del request
        two = self._rng.sample(left, min(2, len(left)))
        return min(two, key=lambda engine_id: self._n_open[engine_id])


class PrefixHash(_Counting):
    """The one that the prompt's beginning hashes to, as session affinity does."""

    def _among(self, request: Request, left: Sequence[str]) -> str:
        names = names_of(request.prompt[: BLOCK * N_HASHED + 1], request.salt)
        at = int.from_bytes(names[-1][:8], "big") if names else sum(request.prompt)
        return left[at % len(left)]


MakePolicy: TypeAlias = Callable[[], RoutingPolicy]
POLICIES: dict[str, MakePolicy] = {
    "router": RouterPolicy,
    "round-robin": RoundRobin,
    "two-choices": TwoChoices,
    "prefix-hash": PrefixHash,
}
