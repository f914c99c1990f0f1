"""Embedding: texts that become vectors, packed into passes of their own between ticks. Pure.

A request brings up to thousands of texts and ends when each has its vector. Whose texts the next pass takes
is decided anew each time: by class, then by what their tenant and their request were given so far, so that a
text need not wait for thousands that came before it. Of a request's texts the longest that fits goes first
(best fit decreasing), so passes are full. Times come in with the calls.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias

from cobali_ray.core.admission import MAX_RETRY_S, MIN_RETRY_S
from cobali_ray.core.events import End, RequestStats
from cobali_ray.core.instructions import Finish
from cobali_ray.core.leastsquares import LeastSquares
from cobali_ray.core.limits import EngineLimits
from cobali_ray.core.queue import AGEING_S
from cobali_ray.core.request import MAX_PRIORITY, MIN_PRIORITY
from cobali_ray.errors import (
    CobaliError,
    DeadlineExceededError,
    InvalidParameterError,
    QueueFullError,
    RequestCancelledError,
    TextTooLongError,
)

Pooling: TypeAlias = Literal["mean", "cls", "last", "rank"]
"""How the vectors of a text's tokens become one; of `rank` it is a score."""
ChosenPooling: TypeAlias = Literal["mean", "cls", "last"]
"""What of it an operator may choose: a model without a head for scores gives none."""

MAX_TEXTS = 4096
"""Texts of one request."""
LEAST_CHUNK = 16
"""Tokens of a text that is computed in pieces; it goes on at this pace even where streams leave no time."""
FIRST_PASS = 64
"""Tokens of a pass beside streams, as long as nobody knows how long they take."""
_ALLOWED_LATE = 0.01
"""The share of passes beside streams that may take longer than these leave."""
_STEP, _LEAST_MARGIN = 0.04, 0.3
_TRUST = 4
_GROWTH = 2
_SCALE = 1 / 256


class EmbeddingKind(NamedTuple):
    """What a model makes of texts, and how many at once."""

    width: int
    """Numbers of a vector."""
    n_most: int
    """Most tokens of a text."""
    n_batch: int
    """Most tokens of one pass."""
    n_together: int
    """Most tokens of several texts in one pass."""
    n_texts: int
    """Most texts of one pass."""
    pooling: Pooling
    splits: bool = False
    """Whether a text may be computed in pieces."""
    probability: bool = False
    """Whether scores are probabilities already."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmbeddingRequest:
    """Texts to embed, or to score."""

    request_id: str
    prompt: array[int]
    """The tokens of all texts, one after another."""
    ends: tuple[int, ...]
    """Where each of them ends."""
    timeout_s: float | None = None
    reply_to: str = ""
    """Where its events go; opaque to the engine."""
    received_s: float | None = None
    """When its HTTP request began to arrive, on the machine's monotonic clock; None without HTTP."""
    attempt: int = 0
    """Engines that did not finish it."""
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0

    cache_salt: ClassVar[None] = None
    """No prefix is kept of it."""

    def __post_init__(self) -> None:
        if not 0 < len(self.ends) <= MAX_TEXTS:
            raise InvalidParameterError("input", f": 1 to {MAX_TEXTS} texts, got {len(self.ends)}")
        if any(end <= start for start, end in zip((0, *self.ends), self.ends, strict=False)):
            raise InvalidParameterError("input", ": a text must have at least one token")
        if self.timeout_s is not None and not 0 < self.timeout_s <= 1e9:
            raise InvalidParameterError("timeout_s", f"must be in (0, 1e9], got {self.timeout_s:g}")
        if not MIN_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise InvalidParameterError(
                "priority", f"must be in [{MIN_PRIORITY}, {MAX_PRIORITY}], got {self.priority}"
            )

    @classmethod
    def of(cls, texts: Iterable[Sequence[int]], **fields: object) -> Self:
        """Return a request for these texts."""
        tokens, ends = array("i"), list[int]()
        for text in texts:
            tokens.extend(text)
            ends.append(len(tokens))
        return cls(prompt=tokens, ends=tuple(ends), **fields)  # type: ignore[arg-type]

    @property
    def n_prompt(self) -> int:
        """Tokens of all texts."""
        return len(self.prompt)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [end - start for start, end in zip((0, *self.ends), self.ends, strict=False)]

    def text(self, index: int) -> array[int]:
        """Return the tokens of one text."""
        return self.prompt[self.ends[index - 1] if index else 0 : self.ends[index]]

    def check(self, kind: EmbeddingKind, n_vocab: int) -> None:
        """Raise BadRequestError for what this model cannot take."""
        if (longest := max(self.lengths)) > kind.n_most:
            raise TextTooLongError("input", longest, kind.n_most)
        if min(self.prompt) < 0 or max(self.prompt) >= n_vocab:
            raise InvalidParameterError("input", f": token ids must be in 0 .. {n_vocab - 1}")


class Piece(NamedTuple):
    """A text, or the next tokens of one that is computed in pieces, which is always the first of its pass."""

    request: EmbeddingRequest
    text_id: int
    """Which of its texts."""
    start: int
    tokens: array[int]
    last: bool
    """Whether the text is computed with it."""


class _Account:
    """What a tenant was given."""

    __slots__ = ("n_open", "served")

    def __init__(self) -> None:
        self.n_open, self.served = 0, 0.0


class _Job:
    """An open request."""

    __slots__ = (
        "account", "arrived_s", "begun_s", "deadline_s", "n_left", "n_waiting", "pending", "request",
        "served", "turn_s",
    )  # fmt: skip

    def __init__(self, request: EmbeddingRequest, account: _Account, served: float, now_s: float) -> None:
        self.request, self.account, self.served = request, account, served
        self.arrived_s = self.turn_s = now_s
        self.begun_s: float | None = None
        self.deadline_s = inf if request.timeout_s is None else now_s + request.timeout_s
        self.pending = sorted((length, index) for index, length in enumerate(request.lengths))
        """Texts of which nothing is computed: tokens and number, the shortest first."""
        self.n_left, self.n_waiting = len(self.pending), request.n_prompt
        """Texts without a vector, and tokens that are not computed."""

    def rank(self, now_s: float) -> tuple[int, float, float, float]:
        """Return its turn; the lowest goes first. A class counts as one better for every while it waits."""
        level = self.request.priority - int((now_s - self.turn_s) / AGEING_S)
        return level, self.account.served, self.served, self.arrived_s

    def stats(self, now_s: float) -> RequestStats:
        """Return its life in numbers."""
        request, begun_s, arrived_s = self.request, self.begun_s, self.arrived_s
        received_s = request.received_s
        return RequestStats(
            n_prompt=request.n_prompt,
            n_cached=0,
            n_output=0,
            queue_s=None if begun_s is None else begun_s - arrived_s,
            prefill_s=None if begun_s is None else now_s - begun_s,
            ttft_s=None,
            decode_s=None,
            e2e_s=now_s - arrived_s,
            intake_s=None if received_s is None else max(arrived_s - received_s, 0.0),
        )


class EmbeddingQueue:
    """Open requests and whose texts come next. One thread calls it; others may read the counters."""

    def __init__(self, kind: EmbeddingKind) -> None:
        self.kind = kind
        self.times = PassTimes()
        self._jobs: dict[str, _Job] = {}
        self._accounts: dict[str, _Account] = {}
        self._long: tuple[_Job, int, int] | None = None
        """The text that is computed in pieces, and how many of its tokens are."""
        self._shared = False
        self.n_texts = self.n_tokens = 0
        """Texts without a vector, and tokens that are not computed."""
        self.n_left = self.n_left_tokens = 0
        """Requests that ever ended, and tokens that were ever computed or dropped."""

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def wait_s(self) -> float:
        """How long what waits takes alone; 0: nothing waits, or nobody knows."""
        return self.n_tokens * self.token_s

    @property
    def token_s(self) -> float:
        """Seconds per token; 0: nobody knows."""
        return self.times.token_s(self.kind.n_together)

    def takes_turn(self, *, others_wait: bool) -> bool:
        """Say whether a pass goes before the next tick: before each, or each second one if prompts wait."""
        self._shared = bool(self._jobs) and not (others_wait and self._shared)
        return self._shared

    def submit(self, request: EmbeddingRequest, now_s: float) -> None:
        """Take a request. Whatever happens, it ends with one End."""
        account = self._accounts.setdefault(request.tenant, _Account())
        if not account.n_open:
            others = [one.served for one in self._accounts.values() if one.n_open]
            account.served = max(account.served, min(others, default=0.0))
        account.n_open += 1
        beside = [job.served for job in self._jobs.values() if job.account is account]
        job = self._jobs[request.request_id] = _Job(request, account, min(beside, default=0.0), now_s)
        self.n_texts += job.n_left
        self.n_tokens += job.n_waiting

    def pack(self, n_most: int, now_s: float) -> list[Piece]:
        """Return the next pass: at most `n_most` tokens, or more where no text is so short.

        Empty only where nothing is open.
        """
        kind, pieces = self.kind, list[Piece]()
        room = min(max(n_most, 1), kind.n_together)
        if self._long is not None:
            room -= self._chunk(*self._long, room, pieces, now_s)
        for job in sorted(self._jobs.values(), key=lambda job: job.rank(now_s)):
            pending = job.pending
            while pending and room > 0 and len(pieces) < kind.n_texts:
                place = bisect_right(pending, (room, MAX_TEXTS)) - 1
                if place >= 0:
                    length, index = pending.pop(place)
                    self._take(
                        Piece(job.request, index, 0, job.request.text(index), last=True), job, pieces, now_s
                    )
                    room -= length
                elif pieces:
                    break
                elif kind.splits:
                    _, index = pending.pop()
                    room -= self._chunk(job, index, 0, room, pieces, now_s)
                else:
                    _, index = pending.pop(0)
                    self._take(
                        Piece(job.request, index, 0, job.request.text(index), last=True), job, pieces, now_s
                    )
                    room = 0
        return pieces

    def _chunk(self, job: _Job, index: int, start: int, room: int, pieces: list[Piece], now_s: float) -> int:
        text = job.request.text(index)
        tokens = text[start : start + min(max(room, LEAST_CHUNK), self.kind.n_batch)]
        last = start + len(tokens) == len(text)
        self._long = None if last else (job, index, start + len(tokens))
        self._take(Piece(job.request, index, start, tokens, last), job, pieces, now_s)
        return len(tokens)

    def _take(self, piece: Piece, job: _Job, pieces: list[Piece], now_s: float) -> None:
        pieces.append(piece)
        cost = len(piece.tokens) / piece.request.weight
        job.served += cost
        job.account.served += cost
        job.turn_s = now_s
        job.begun_s = now_s if job.begun_s is None else job.begun_s

    def begun(self, pieces: Sequence[Piece], now_s: float) -> list[EmbeddingRequest]:
        """Return of which requests the pass that was packed just now is the first."""
        jobs = {one.request.request_id: self._jobs[one.request.request_id] for one in pieces}
        return [job.request for job in jobs.values() if job.begun_s == now_s]

    def computed(self, pieces: Sequence[Piece], now_s: float) -> list[Finish]:
        """Note that a pass is over; return the ends of requests of which that was the last."""
        ended = []
        for piece in pieces:
            if (job := self._jobs.get(piece.request.request_id)) is None:
                continue
            n = len(piece.tokens)
            job.n_waiting -= n
            self.n_tokens -= n
            self.n_left_tokens += n
            if piece.last:
                job.n_left -= 1
                self.n_texts -= 1
                if not job.n_left:
                    ended.append(self._end(job, now_s, None))
        return ended

    def cancel(self, request_id: str, now_s: float) -> list[Finish]:
        """End a request that nobody wants; unknown ones are none of our business."""
        return self.fail([request_id], RequestCancelledError(), now_s)

    def expire(self, now_s: float) -> list[Finish]:
        """End the requests whose deadline has passed."""
        late = [job for job in self._jobs.values() if job.deadline_s <= now_s]
        return [self._end(job, now_s, DeadlineExceededError(job.request.timeout_s or 0.0)) for job in late]

    def fail(self, request_ids: Iterable[str], error: CobaliError, now_s: float) -> list[Finish]:
        """End those of these requests that are open."""
        jobs = [self._jobs[one] for one in dict.fromkeys(request_ids) if one in self._jobs]
        return [self._end(job, now_s, error) for job in jobs]

    def fail_all(self, error: CobaliError, now_s: float) -> list[Finish]:
        """End all."""
        return self.fail(list(self._jobs), error, now_s)

    def _end(self, job: _Job, now_s: float, error: CobaliError | None) -> Finish:
        request = job.request
        del self._jobs[request.request_id]
        if self._long is not None and self._long[0] is job:
            self._long = None
        job.account.n_open -= 1
        self.n_texts -= job.n_left
        self.n_tokens -= job.n_waiting
        self.n_left += 1
        self.n_left_tokens += job.n_waiting
        end = End(request.request_id, "stop" if error is None else None, error, job.stats(now_s))
        return Finish(request.reply_to, end)


def admit(request: EmbeddingRequest, n: int, n_tokens: int, limits: EngineLimits, wait_s: float) -> None:
    """Let a request in beside `n` others with `n_tokens` to compute, or raise QueueFullError.

    Alone it may have more tokens than the queue takes of several.
    """
    retry_s = min(max(wait_s, MIN_RETRY_S), MAX_RETRY_S)
    if n >= max(limits.max_queue, 1):
        raise QueueFullError("requests", limits.max_queue, retry_s)
    if n and n_tokens + request.n_prompt > limits.max_queue_tokens:
        raise QueueFullError("tokens", limits.max_queue_tokens, retry_s)


class PassTimes:
    """How long a pass takes, learned from those that were: seconds = c0 + c1 n + c2 n², of n tokens.

    All tokens of a pass are in one mask of attention, whichever text they are of.
    """

    def __init__(self) -> None:
        self._fit = LeastSquares(3)
        self._longest = 0
        self._margin = 0.9
        """What of the time there is a pass is planned to take: less, where many are late."""

    @property
    def _knows(self) -> bool:
        return self._fit.n_seen >= _TRUST

    def learn(self, n_tokens: int, seconds: float, spare_s: float) -> None:
        """Take one pass, which was to take at most `spare_s`."""
        self._fit.learn(_row(n_tokens), seconds)
        self._longest = max(self._longest, n_tokens)
        if 0 < spare_s < inf:
            self._margin += _STEP * (_ALLOWED_LATE - (seconds > spare_s))
            self._margin = min(max(self._margin, _LEAST_MARGIN), 1.0)

    def token_s(self, n_tokens: int) -> float:
        """Return seconds per token of such passes; 0 while too little is known."""
        return self._fit.predict(_row(n_tokens)) / n_tokens if self._knows else 0.0

    def most(self, seconds: float) -> int:
        """Return how many tokens take at most so long; never many more than were ever seen."""
        most = max(self._longest * _GROWTH, FIRST_PASS)
        if seconds == inf:
            return 1 << 30
        if not self._knows:
            return FIRST_PASS
        c0, c1, c2 = self._fit.weights
        left = seconds * self._margin - c0
        if left <= 0:
            return 0
        if c2 > 0:
            return min(most, int((sqrt(c1 * c1 + 4 * c2 * left) - c1) / (2 * c2) / _SCALE))
        return min(most, int(left / c1 / _SCALE)) if c1 > 0 else most


def _row(n_tokens: int) -> tuple[float, float, float]:
    n = n_tokens * _SCALE
    return 1.0, n, n * n
