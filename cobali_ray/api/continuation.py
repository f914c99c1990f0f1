"""Continuation: a request goes on behind what was said when its engine is gone. Knows no Ray."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

import structlog

from cobali_ray.core.embedding import EmbeddingRequest
from cobali_ray.core.events import Computing, Delta, End, Event, RequestStats, Vectors, Word, first_word
from cobali_ray.core.request import Request
from cobali_ray.errors import (
    CobaliError,
    DeadlineExceededError,
    EngineDiedError,
    LoadingError,
    RefusedError,
)

_log = structlog.get_logger(__name__)

MOST_DEATHS: Final = 2
"""How often a request goes on when an engine died that computed for it: what kills every engine that it comes
to must not go round for ever."""
MOST_MOVES: Final = 30
"""How often it goes on at all: what an engine said last may be lost with it."""

Asked: TypeAlias = Request | EmbeddingRequest
"""What an engine may be asked. Texts are embedded anew where an engine did not finish all of them."""
Attempt: TypeAlias = Callable[[Asked], AsyncGenerator[list[Word], None]]
"""Yields what one engine says of a request. Raises EngineDiedError where that engine is gone."""


class Offer(NamedTuple):
    """An engine that takes requests."""

    model: str
    """What it answers with. Another model does not go on with an answer."""
    attempt: Attempt


Choose: TypeAlias = Callable[[Asked], Awaitable[Offer]]
"""Finds an engine for a request, waiting until there is one. Raises LoadingError if there will be none."""


async def continued(
    request: Asked, choose: Choose, now: Callable[[], float]
) -> AsyncGenerator[list[Event], None]:
    """Yield a request's events, from as many engines as it takes, as if they came from one.

    The seed is chosen here if the client gave none, so that each engine draws what the first would have.
    `now` is the machine's monotonic clock.
    """
    book = _Book(_seeded(request), now)
    try:
        while True:
            offer = await book.find(choose)
            sent = book.send(offer)
            try:
                async with aclosing(offer.attempt(sent)) as attempt:
                    async for events in attempt:
                        if told := book.enter(events):
                            yield told
            except EngineDiedError:
                book.note_death()
            else:
                return
    except (EngineDiedError, DeadlineExceededError, RefusedError) as error:  # a later one may refuse to go on
        if not book.begun:
            raise
        yield [book.fail(error)]


def _seeded(request: Asked) -> Asked:
    if isinstance(request, EmbeddingRequest):
        return request
    sampling = request.sampling
    if sampling.seed is not None or sampling.temperature == 0:
        return request
    return replace(request, sampling=replace(sampling, seed=secrets.randbits(63)))


class _Book:
    """What was said of one request and when, whichever engine said it."""

    def __init__(self, request: Asked, now: Callable[[], float]) -> None:
        self._request, self._now = request, now
        self._attempt = 0
        """Engines that are gone."""
        self._computing, self._n_died = False, 0
        """Whether an engine computes for it now; engines that are gone and did."""
        self._model = ""
        self._said: list[int] = []
        self._n_scored = 0
        """Tokens of the prompt of which it was told how likely they are."""
        self._first: RequestStats | None = None
        """How the answer began."""
        self._first_s = 0.0
        """When."""
        self._began_s = self._sent_s = now()
        self._waits, self._gone_s = False, 0.0
        """Whether an engine is gone and nothing came from the next one yet; since when."""

    @property
    def begun(self) -> bool:
        """Whether the client was told something."""
        return bool(self._said or self._n_scored)

    async def find(self, choose: Choose) -> Offer:
        """Find the next engine, in the time that the request has."""
        try:
            async with asyncio.timeout(self._left_s):
                return await choose(self._request)
        except TimeoutError:
            raise DeadlineExceededError(self._request.timeout_s or 0.0) from None
        except LoadingError:
            if self._attempt:
                raise EngineDiedError from None
            raise

    @property
    def _left_s(self) -> float | None:
        timeout_s = self._request.timeout_s
        return None if timeout_s is None else max(self._began_s + timeout_s - self._now(), 0.001)

    def send(self, offer: Offer) -> Asked:
        """Return what the next engine is asked. Raises EngineDiedError if it cannot go on with the answer."""
        self._sent_s, request = self._now(), self._request
        # What the engine prepares at once: that ends processes, too.
        self._computing = isinstance(request, Request) and bool(request.images or request.grammar)
        if not self._attempt:
            self._model = offer.model
            return self._request
        if offer.model != self._model:
            _log.warning("another_model", request_id=self._request.request_id)
            raise EngineDiedError
        again = replace(
            self._request,
            # Another name, for what the last engine said last may still be on its way.
            request_id=f"{self._request.request_id}~{self._attempt}",
            attempt=self._attempt,
            timeout_s=self._left_s,
            received_s=None,
        )
        if isinstance(again, EmbeddingRequest):
            return again
        return replace(again, said=tuple(self._said), n_scored=self._n_scored)

    def enter(self, said: list[Word]) -> list[Event]:
        """Take what an engine said; return it as the client is told."""
        events: list[Event] = []
        for event in said:
            self._computing = event.on if isinstance(event, Computing) else True
            if not isinstance(event, Computing):
                events.append(event)
        if self._first is None and isinstance(first := first_word(events), Delta):
            self._begin(first)
        for event in events:
            if isinstance(event, Delta):
                self._said += event.tokens
                self._n_scored += len(event.prompt)
        if not self._attempt or not events:
            return events
        if self._waits:
            self._waits = False
            waited_s = round(self._now() - self._gone_s, 3)
            _log.info("request_went_on", request_id=self._request.request_id, waited_s=waited_s)
        return [self._close(event) if isinstance(event, End) else self._name(event) for event in events]

    def _begin(self, first: Delta) -> None:
        self._first_s, lost_s = self._now(), self._sent_s - self._began_s
        if (stats := first.stats) is not None:
            queue_s, ttft_s = (stats.queue_s or 0.0) + lost_s, (stats.ttft_s or 0.0) + lost_s
            self._first = stats._replace(queue_s=queue_s, ttft_s=ttft_s)

    def _name(self, told: Delta | Vectors) -> Delta | Vectors:
        return told._replace(request_id=self._request.request_id)

    def _close(self, end: End) -> End:
        return end._replace(request_id=self._request.request_id, stats=self._whole(end.stats))

    def _whole(self, stats: RequestStats) -> RequestStats:
        """Return the numbers of the whole request: it began as it did then, and nothing was cached since."""
        now_s, received_s, first = self._now(), self._request.received_s, self._first
        stats = stats._replace(
            e2e_s=now_s - self._began_s,
            intake_s=None if received_s is None else max(self._began_s - received_s, 0.0),
            n_said=0,
        )
        if first is None:
            return stats
        return stats._replace(
            n_cached=first.n_cached,
            cached_from=first.cached_from,
            queue_s=first.queue_s,
            prefill_s=first.prefill_s,
            ttft_s=first.ttft_s,
            decode_s=now_s - self._first_s,
        )

    def note_death(self) -> None:
        """Note that an engine is gone. Raises EngineDiedError where the request does not go on."""
        self._n_died += self._computing
        if self._n_died > MOST_DEATHS or self._attempt == MOST_MOVES:
            raise EngineDiedError
        self._attempt += 1
        self._waits, self._gone_s = True, self._now()
        request_id, n_said = self._request.request_id, len(self._said)
        _log.warning(
            "engine_gone",
            request_id=request_id,
            n_said=n_said,
            attempt=self._attempt,
            computing=self._computing,
        )

    def fail(self, error: CobaliError) -> End:
        """Return the end of an answer that was begun and cannot go on."""
        stats = RequestStats(self._request.n_prompt, 0, len(self._said), None, None, None, None, 0.0)
        return End(self._request.request_id, None, error, self._whole(stats))
