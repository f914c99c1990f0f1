"""Admission: accept or refuse new requests, and when to retry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from cobali_ray.core.queue.counts import Counts, LineCounts
from cobali_ray.core.queue.fair import used
from cobali_ray.core.queue.waiting import WaitingQueue
from cobali_ray.core.request.embedding import EmbeddingRequest
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.request.request import Request
from cobali_ray.core.request.sequence import OpenRequest
from cobali_ray.errors import PromptTooLongError, QueueFullError, WaitTooLongError

_T = TypeVar("_T", bound=OpenRequest)
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
DRAIN_WINDOW_S = 10.0


class Occupancy(NamedTuple):
    """The requests that were admitted and have no slot yet, and how fast they get one."""

    lines: Sequence[Line] = ()
    """By class and tenant."""
    n_free_slots: int = 0
    drain_rps: float = 0.0
    """Requests that leave the queue per second; 0 when unknown."""
    prefill_s: float = 0.0
    """Seconds that the rest of the new request's prompt takes; 0 when unknown."""


class Line(NamedTuple):
    """One tenant's requests of one class that were admitted and never had a slot."""

    priority: int
    tenant: str
    weight: float
    n: int
    n_tokens: int


class AdmissionSource(Protocol):
    """Counts the requests that have left the queues for good: a scheduler."""

    @property
    def counts(self) -> Counts: ...
    @property
    def n_free_slots(self) -> int: ...
    @property
    def drain_rps(self) -> float: ...


class AdmittedCounts:
    """Counts admitted requests, in one thread; those that left the queue are counted by another."""

    def __init__(self) -> None:
        self.requests, self.texts = LineCounts(), LineCounts()
        """Requests for slots, and embedding requests: neither takes the other's room."""
        self._weights: dict[str, float] = {}

    def note(self, request: Request | EmbeddingRequest) -> None:
        """Count a request that was let in."""
        counts = self.texts if isinstance(request, EmbeddingRequest) else self.requests
        counts.add((request.priority, request.tenant), 1, request.n_prompt)
        self._weights[request.tenant] = request.weight

    def occupancy(self, inside: AdmissionSource, prefill_s: float = 0.0) -> Occupancy:
        """Return the requests that wait for a slot, by the scheduler's latest counts."""
        lines = self._lines(self.requests, inside.counts.left)
        return Occupancy(lines, inside.n_free_slots, inside.drain_rps, prefill_s)

    def occupancy_of_texts(self, inside: AdmissionSource) -> Occupancy:
        """Return the requests whose texts wait. If there are none, the next pass counts as a free slot."""
        lines = self._lines(self.texts, inside.counts.texts_left)
        return Occupancy(lines, int(not lines))

    def _lines(self, entered: LineCounts, left: LineCounts) -> list[Line]:
        return [
            Line(*line, self._weights[line[1]], n_left, entered.n_tokens_of[line] - left.n_tokens_of[line])
            for line, n in entered.n_of.items()
            if (n_left := n - left.n_of[line]) > 0
        ]


def fit(request: Request, n_most: int) -> Request:
    """Return the request with its answer cut to what fits beside the prompt in a slot of `n_most` tokens.

    Raises PromptTooLongError if a token is wanted and not even one fits.
    """
    n_left = n_most - request.n_prompt
    if n_left < min(request.max_tokens, 1):
        raise PromptTooLongError(request.n_prompt, request.max_tokens, n_most)
    return request if request.max_tokens <= n_left else replace(request, max_tokens=n_left)


def check_request(request: Request, limits: EngineLimits, n_vocab: int) -> Request:
    """Return the request as it can be served. Raises BadRequestError for one that never could be."""
    request = fit(request, limits.n_most)
    request.check_tokens(n_vocab)
    return request


def admit(
    request: Request, occupancy: Occupancy, limits: EngineLimits, *, max_ttft_s: float | None = None
) -> None:
    """Let the request in by counting, never by waiting. Raises QueueFullError or WaitTooLongError.

    Requests that a free slot will take at the next tick do not count against the queue. A full queue still
    takes a request of a better class than some in it, or of a tenant below its share: another one is refused
    for it, but never the next of its tenant and class. A request that could not begin in time is refused.
    """
    drain_rps = occupancy.drain_rps
    n_before = max(n_ahead(request, occupancy.lines) - occupancy.n_free_slots, 0.0)
    _require_room(request, occupancy, limits, retry_after_s(n_before, drain_rps))
    if drain_rps > 0:
        wait_s = n_before / drain_rps
        if request.timeout_s is not None and wait_s > request.timeout_s:
            raise WaitTooLongError(wait_s, request.timeout_s, "timeout_s")
        if max_ttft_s is not None and wait_s and wait_s + occupancy.prefill_s > max_ttft_s:
            raise WaitTooLongError(wait_s + occupancy.prefill_s, max_ttft_s, "max_predicted_ttft_s")


def admit_texts(request: EmbeddingRequest, occupancy: Occupancy, limits: EngineLimits, wait_s: float) -> None:
    """Admit an embedding request by the same count. `wait_s`: how long the texts that wait take.

    If no other waits, it may have more tokens than the queue's bound. None is refused for beginning late, as
    that says little of when it ends.
    """
    _require_room(request, occupancy, limits, _sane_s(wait_s))


def n_ahead(request: Request, lines: Sequence[Line]) -> float:
    """Return how many requests will get a slot before this one, if none comes after it.

    Those are all of better classes, all of its own tenant, and of each other tenant at most as many as its
    own tenant has in line, by weight.
    """
    mine = sum([x.n for x in lines if (x.priority, x.tenant) == (request.priority, request.tenant)])
    better = sum([x.n for x in lines if x.priority < request.priority])
    peers = [x for x in lines if x.priority == request.priority and x.tenant != request.tenant]
    return mine + better + sum([min(x.n, (mine + 1) * x.weight / request.weight) for x in peers])


def _require_room(
    request: Request | EmbeddingRequest, occupancy: Occupancy, limits: EngineLimits, retry_s: float
) -> None:
    lines = occupancy.lines
    if _below_share(request, lines, limits):
        return
    # Of worse lines all but the next request may be displaced.
    n_queued = sum([x.n if x.priority <= request.priority else 1 for x in lines])
    n_tokens = sum([x.n_tokens if x.priority <= request.priority else x.n_tokens // x.n for x in lines])
    n_ahead = n_queued - occupancy.n_free_slots
    if n_ahead >= limits.max_queue:
        raise QueueFullError("requests", limits.max_queue, retry_s)
    if n_tokens + request.n_prompt > limits.max_queue_tokens and n_queued > 0 and n_ahead >= 0:
        raise QueueFullError("tokens", limits.max_queue_tokens, retry_s)


def _below_share(request: Request | EmbeddingRequest, lines: Sequence[Line], limits: EngineLimits) -> bool:
    """Whether the queue's bounds, shared by weight, still have room for a tenant beside others."""
    mine = [line for line in lines if line.tenant == request.tenant]
    weights = {line.tenant: line.weight for line in lines} | {request.tenant: request.weight}
    if len(weights) < 2:
        return False
    n, n_tokens = 1 + sum([x.n for x in mine]), request.n_prompt + sum([x.n_tokens for x in mine])
    share = request.weight / sum(weights.values())
    return used(n, n_tokens, limits.max_queue, limits.max_queue_tokens) <= share


def displaced(
    queue: WaitingQueue[_T], admitted: OpenRequest, n_free: int, limits: EngineLimits, drain_rps: float
) -> tuple[_T, QueueFullError] | None:
    """Return the request to displace, if any, after another was admitted to a full queue, and its refusal.

    It is the newest of a worse class, or of the tenant that fills the queue most; the refusal is the same as
    at admission, with the time after which to retry.
    """
    most, most_tokens, n_ahead = limits.max_queue, limits.max_queue_tokens, len(queue) - n_free
    if n_ahead <= 0 or used(n_ahead, queue.n_tokens, most, most_tokens) <= 1:
        return None
    newest = queue.newest_worse(admitted.priority)
    if newest is None and (account := queue.fullest(admitted.account, most, most_tokens)):
        newest = queue.newest(account)
    if newest is None:
        return None
    what, limit = ("requests", most) if n_ahead > most else ("tokens", most_tokens)
    return newest, QueueFullError(what, limit, retry_after_s(n_ahead, drain_rps))


def retry_after_s(n_before: float, drain_rps: float) -> float:
    """Return how long a refused request would have waited behind so many others, within bounds.

    Not until the first of them leaves: all refused requests would come back for that one place. A request
    that retries after this time begins no later than in a queue without bounds, if no other came.
    """
    if drain_rps <= 0:
        return MIN_RETRY_S
    return _sane_s(n_before / drain_rps)


def _sane_s(wait_s: float) -> float:
    return min(max(wait_s, MIN_RETRY_S), MAX_RETRY_S)


class DrainRate:
    """Requests leaving the queue per second while some wait, as a mean that forgets with `DRAIN_WINDOW_S`.

    Time in which none waited does not count: it shows how many come, not how fast a queue drains.
    """

    __slots__ = ("_last_s", "_n_left", "_seconds", "_waited")

    def __init__(self) -> None:
        self._n_left = self._seconds = self._last_s = 0.0
        self._waited = False

    def note(self, n_left: int, now_s: float, *, waiting: bool) -> None:
        """Record that `n_left` requests left the queue just now, and whether some still wait."""
        if self._waited:
            elapsed = max(now_s - self._last_s, 1e-6)
            kept = max(1.0 - elapsed / DRAIN_WINDOW_S, 0.0)
            self._n_left = kept * self._n_left + n_left
            self._seconds = kept * self._seconds + elapsed
        self._last_s, self._waited = now_s, waiting

    @property
    def rps(self) -> float:
        """Requests per second; 0 before anything was measured."""
        return self._n_left / self._seconds if self._seconds else 0.0
