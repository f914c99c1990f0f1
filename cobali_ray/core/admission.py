"""Accept or refuse at the door; how long until a retry makes sense."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.request import Request
from cobali_ray.errors import PromptTooLongError, QueueFullError

MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0


class Occupancy(NamedTuple):
    """Who is inside the door but not in a slot yet, and how fast they leave."""

    n_queued: int
    n_queued_tokens: int
    n_free_slots: int
    drain_rps: float
    """Requests that leave the queue per second; 0 when unknown."""


def fit(request: Request, n_most: int) -> Request:
    """Return the request with no longer an answer than fits beside its prompt into a slot of `n_most` tokens.

    Raises PromptTooLongError where not even one token does.
    """
    n_left = n_most - request.n_prompt
    if n_left < 1:
        raise PromptTooLongError(request.n_prompt, request.max_tokens, n_most)
    return request if request.max_tokens <= n_left else replace(request, max_tokens=n_left)


def check_request(request: Request, limits: EngineLimits, n_vocab: int) -> Request:
    """Return the request as it can be served. Raises BadRequestError for what never could be."""
    request = fit(request, limits.n_most)
    request.check_tokens(n_vocab)
    return request


def admit(request: Request, occupancy: Occupancy, limits: EngineLimits) -> None:
    """Let the request in by counting, never by waiting. Raises QueueFullError.

    Requests that a free slot will take at the next tick do not count against the queue.
    """
    n_ahead = occupancy.n_queued - occupancy.n_free_slots
    if n_ahead >= limits.max_queue:
        raise QueueFullError("requests", limits.max_queue, retry_after_s(1, occupancy))
    over = occupancy.n_queued_tokens + request.n_prompt - limits.max_queue_tokens
    if over > 0 and occupancy.n_queued > 0 and n_ahead >= 0:
        n_must_leave = over * occupancy.n_queued / max(occupancy.n_queued_tokens, 1)
        raise QueueFullError("tokens", limits.max_queue_tokens, retry_after_s(n_must_leave, occupancy))


def retry_after_s(n_must_leave: float, occupancy: Occupancy) -> float:
    """Return seconds until `n_must_leave` requests will have left the queue, within sane bounds."""
    if occupancy.drain_rps <= 0:
        return MIN_RETRY_S
    return min(max(n_must_leave / occupancy.drain_rps, MIN_RETRY_S), MAX_RETRY_S)


class DrainRate:
    """Requests leaving the queue per second while some wait, as a mean that forgets with `window_s`.

    Time in which nobody waited says how many come, not how fast a queue drains: it does not count.
    """

    __slots__ = ("_last_s", "_n_left", "_seconds", "_waited", "_window_s")

    def __init__(self, window_s: float = 10.0) -> None:
        self._window_s = window_s
        self._n_left = self._seconds = self._last_s = 0.0
        self._waited = False

    def note(self, n_left: int, now_s: float, *, waiting: bool) -> None:
        """Record that `n_left` requests left the queue just now, and whether some still wait."""
        if self._waited:
            elapsed = max(now_s - self._last_s, 1e-6)
            kept = max(1.0 - elapsed / self._window_s, 0.0)
            self._n_left = kept * self._n_left + n_left
            self._seconds = kept * self._seconds + elapsed
        self._last_s, self._waited = now_s, waiting

    @property
    def rps(self) -> float:
        """Requests per second; 0 before anything was measured."""
        return self._n_left / self._seconds if self._seconds else 0.0
