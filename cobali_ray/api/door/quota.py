"""Quotas: what is left of a key's limits, by token buckets. Pure: the time is given.

A bucket holds a minute's worth and fills evenly. Output tokens are known when an answer has ended, so the
bucket of tokens may fall below zero; it is waited for then.
"""

from __future__ import annotations

from math import ceil

from cobali_ray.api.door.keys import Terms
from cobali_ray.errors import RateLimitError

MINUTE_S = 60.0
RETRY_CONCURRENT_S = 1.0
"""Nobody knows when an answer under way will end."""
RATE_HEADERS = tuple(
    f"x-ratelimit-{what}-{name}"
    for name in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
)


class Bucket:
    """So many a minute; full at first."""

    def __init__(self, per_minute: float, now_s: float) -> None:
        self.per_minute = self._left = per_minute
        self._seen_s = now_s

    def left(self, now_s: float) -> float:
        """Return what is in it."""
        self._left = min(self._left + (now_s - self._seen_s) * self.per_minute / MINUTE_S, self.per_minute)
        self._seen_s = now_s
        return self._left

    def wait_s(self, n: float, now_s: float) -> float:
        """Return how long until it holds `n`, or is full where it never holds so many; 0 if it does."""
        missing = min(n, self.per_minute) - self.left(now_s)
        return max(missing, 0.0) * MINUTE_S / self.per_minute

    def take(self, n: float, now_s: float) -> None:
        """Take out, below zero if it must be."""
        self._left = self.left(now_s) - n


class Quota:
    """What one key may still do: the part of it that one of `n_ingress` ingresses gives out."""

    def __init__(self, terms: Terms, n_ingress: int, now_s: float) -> None:
        self._n_ingress, self.n_open = n_ingress, 0
        self.renew(terms, now_s)

    def renew(self, terms: Terms, now_s: float) -> None:
        """Begin anew with other terms; what is open stays counted."""
        self.terms, n_ingress = terms, self._n_ingress
        rpm, tpm = terms.requests_per_minute, terms.tokens_per_minute
        self._requests = None if rpm is None else Bucket(max(rpm / n_ingress, 1.0), now_s)
        self._tokens = None if tpm is None else Bucket(max(tpm / n_ingress, 1.0), now_s)
        most = terms.concurrent_requests
        self._most_open = None if most is None else max(most // n_ingress, 1)

    def begin(self, now_s: float) -> None:
        """Let a request in. Raises RateLimitError."""
        if self._most_open is not None and self.n_open >= self._most_open:
            raise RateLimitError("concurrent requests", self._most_open, RETRY_CONCURRENT_S)
        for what, bucket in (("requests per minute", self._requests), ("tokens per minute", self._tokens)):
            if bucket is not None and (wait_s := bucket.wait_s(1, now_s)) > 0:
                raise RateLimitError(what, int(bucket.per_minute), wait_s)
        if self._requests is not None:
            self._requests.take(1, now_s)
        self.n_open += 1

    def read(self, n_prompt: int, now_s: float) -> None:
        """Count a prompt. Raises RateLimitError where that many tokens are not left."""
        if self._tokens is None:
            return
        if (wait_s := self._tokens.wait_s(n_prompt, now_s)) > 0:
            raise RateLimitError("tokens per minute", int(self._tokens.per_minute), wait_s)
        self._tokens.take(n_prompt, now_s)

    def end(self, n_output: int, now_s: float) -> None:
        """Note the end of a request that was let in, and take its output tokens, left or not."""
        self.n_open -= 1
        self.take(n_output, now_s)

    def take(self, n_tokens: int, now_s: float) -> None:
        """Take tokens, left or not."""
        if self._tokens is not None:
            self._tokens.take(n_tokens, now_s)

    def wait_s(self, now_s: float) -> float:
        """Return how long until there are tokens left; 0 if there are."""
        return 0.0 if self._tokens is None else self._tokens.wait_s(1, now_s)

    def headers(self, now_s: float) -> list[tuple[bytes, bytes]]:
        """Return what is left, in OpenAI's headers."""
        headers = []
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                left = max(int(bucket.left(now_s)), 0)
                for what, value in (
                    ("limit", f"{int(bucket.per_minute)}"),
                    ("remaining", f"{left}"),
                    ("reset", duration(bucket.wait_s(bucket.per_minute, now_s))),
                ):
                    headers.append((f"x-ratelimit-{what}-{name}".encode(), value.encode()))
        return headers


def duration(seconds: float) -> str:
    """Write a time as OpenAI does: `12ms`, `3.5s`, `6m0s`."""
    if seconds < 1:
        return f"{ceil(1000 * seconds)}ms"
    if seconds < MINUTE_S:
        return f"{seconds:.1f}s"
    return f"{int(seconds // MINUTE_S)}m{int(seconds % MINUTE_S)}s"
