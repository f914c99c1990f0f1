"""Passes of texts: which texts are embedded in the next pass, between ticks. Pure.

An embedding request brings up to thousands of texts and ends when each has its vector. It waits in a queue of
the same order as requests for slots, and its turn is one pass: after it the request goes behind the others of
its tenant, so that a text need not wait for thousands that came before it. Of a request's texts the longest
that fits goes first (best fit decreasing), so passes are full.

Beside streams, a pass takes what the ITL target leaves, and no prompt is computed in that tick; `PassTimes`
says how many tokens that is. Several texts are packed whole; where the last token is pooled behind causal
attention, a long text is computed in pieces, as the first in each pass.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import inf

from cobali_ray.core.cost.ticktime import TickShape, TickTimeModel
from cobali_ray.core.queue.counts import TextPass
from cobali_ray.core.queue.waiting import WaitingQueue
from cobali_ray.core.request.embedding import MAX_TEXTS, EmbeddingKind, EmbeddingRequest, TextPiece
from cobali_ray.core.request.events import RequestStats
from cobali_ray.core.request.request import MAX_PRIORITY
from cobali_ray.core.request.sequence import Account, OpenRequest

MIN_CHUNK = 16
"""Least tokens of a text that is computed in pieces, even where streams leave no time."""
FIRST_PASS = 64
"""Tokens of a pass beside streams, while it is unknown how long they take."""
_ALLOWED_LATE = 0.01
"""The share of passes beside streams that may take longer than these leave."""
_STEP, _MIN_MARGIN = 0.04, 0.3
_GROWTH = 2


class EmbeddingJob(OpenRequest):
    """An embedding request until its end. It stays in the queue, and each turn is a pass."""

    __slots__ = ("n_texts", "n_tokens", "pending", "request")

    request: EmbeddingRequest

    def __init__(self, request: EmbeddingRequest, account: Account, arrived_s: float) -> None:
        super().__init__(request, account, arrived_s=arrived_s)
        self.pending = sorted((length, index) for index, length in enumerate(request.lengths))
        """Texts of which nothing is computed: tokens and number, the shortest first."""
        self.n_texts, self.n_tokens = len(self.pending), request.n_prompt
        """Texts without a vector, and tokens that are not computed."""

    @property
    def n_waiting_tokens(self) -> int:
        return self.n_tokens

    def stats(self, now_s: float) -> RequestStats:
        stats = super().stats(now_s)
        return stats if self.assigned_s is None else stats._replace(prefill_s=now_s - self.assigned_s)


class TextPasses:
    """Packs waiting texts into passes, and learns how long these take."""

    def __init__(self, kind: EmbeddingKind) -> None:
        self.kind, self.times = kind, PassTimes()
        self.queue: WaitingQueue[EmbeddingJob] = WaitingQueue()
        self._long: tuple[EmbeddingJob, int, int] | None = None
        """The text that is computed in pieces, and how many of its tokens are."""
        self._had_turn = False
        """Whether the last tick had a pass."""
        self.under_way: tuple[TextPiece, ...] = ()
        """What the pass under way computes."""
        self._begun: list[EmbeddingRequest] = []
        """The requests that it is the first pass of."""
        self._spare_s = inf
        """How long it may take."""

    @property
    def wait_s(self) -> float:
        """How long the waiting texts take alone; 0: none waits, or unknown."""
        return self.queue.n_tokens * self.token_s

    @property
    def token_s(self) -> float:
        """Seconds per token; 0: unknown."""
        return self.times.token_s(self.kind.n_together)

    @property
    def n_texts(self) -> int:
        """Texts without a vector."""
        return sum([job.n_texts for job in self.queue])

    def clear(self) -> None:
        self.queue, self._long, self.under_way = WaitingQueue(), None, ()

    def takes_turn(self, *, prompts_wait: bool) -> bool:
        """Return whether this tick has a pass: each has, or each second one if prompts wait."""
        self._had_turn = len(self.queue) > 0 and not (prompts_wait and self._had_turn)
        return self._had_turn

    def remove(self, job: EmbeddingJob) -> None:
        self.queue.remove(job)
        if self._long is not None and self._long[0] is job:
            self._long = None

    @property
    def waiting(self) -> tuple[bool, bool]:
        """Whether texts of the last class wait, and whether others do."""
        left = [job.priority == MAX_PRIORITY for job in self.queue.ready()]
        return any(left), not all(left)

    def begin(
        self, spare_s: float, now_s: float, takes: Callable[[EmbeddingJob], bool] = lambda _: True
    ) -> tuple[tuple[TextPiece, ...], tuple[EmbeddingRequest, ...]]:
        """Return the next pass, and the requests that it is the first of.

        It has as many tokens as take `spare_s`, or more if no text is so short. Only texts that it `takes`
        are begun. Empty only where none of these waits.
        """
        self._spare_s, self._begun = spare_s, []
        self.under_way = tuple(self._pack(spare_s, now_s, takes))
        return self.under_way, tuple(self._begun)

    def end(self, seconds: float) -> TextPass:
        """Record that the pass under way took so many seconds; return it."""
        pieces, self.under_way = self.under_way, ()
        n_tokens = sum([len(piece.tokens) for piece in pieces])
        self.times.learn(n_tokens, seconds, self._spare_s)
        return TextPass(sum([piece.last for piece in pieces]), n_tokens, seconds)

    def _pack(self, spare_s: float, now_s: float, takes: Callable[[EmbeddingJob], bool]) -> list[TextPiece]:
        kind, pieces = self.kind, list[TextPiece]()
        room = min(max(self.times.most(spare_s), 1), kind.n_together)
        if self._long is not None:
            room -= self._chunk(*self._long, room, pieces, now_s)
        for job in filter(takes, list(self.queue.ready(now_s))):
            pending = job.pending
            while pending and room > 0 and len(pieces) < kind.n_texts:
                place = bisect_right(pending, (room, MAX_TEXTS)) - 1
                if place < 0 and pieces:
                    break
                if place < 0 and kind.splits:
                    room -= self._chunk(job, pending.pop()[1], 0, room, pieces, now_s)
                else:
                    length, index = pending.pop(max(place, 0))
                    piece = TextPiece(job.request, index, 0, job.request.text(index), last=True)
                    self._take(piece, job, pieces, now_s)
                    room -= length
        return pieces

    def _chunk(
        self, job: EmbeddingJob, index: int, start: int, room: int, pieces: list[TextPiece], now_s: float
    ) -> int:
        text = job.request.text(index)
        tokens = text[start : start + min(max(room, MIN_CHUNK), self.kind.n_batch)]
        last = start + len(tokens) == len(text)
        self._long = None if last else (job, index, start + len(tokens))
        self._take(TextPiece(job.request, index, start, tokens, last), job, pieces, now_s)
        return len(tokens)

    def _take(self, piece: TextPiece, job: EmbeddingJob, pieces: list[TextPiece], now_s: float) -> None:
        if not pieces or pieces[-1].request is not piece.request:
            self.queue.turn(job, now_s)
        pieces.append(piece)
        job.account.charge(len(piece.tokens))
        if job.assigned_s is None:
            job.assigned_s = now_s
            self._begun.append(job.request)

    def computed(self, piece: TextPiece, job: EmbeddingJob) -> None:
        """Record that a piece of an open request is computed."""
        n = len(piece.tokens)
        self.queue.n_tokens -= n
        job.n_tokens -= n
        job.n_texts -= piece.last

    def problems(self, open_jobs: Sequence[EmbeddingJob]) -> list[str]:
        problems = []
        if sorted(job.request_id for job in open_jobs) != sorted(job.request_id for job in self.queue):
            problems.append("the queue and the open embedding requests differ")
        if self.queue.n_tokens != sum(job.n_tokens for job in open_jobs):
            problems.append("the tokens of texts are miscounted")
        return problems


class PassTimes:
    """How long a pass takes, learned from past ones, as that of a first chunk of so many tokens."""

    def __init__(self) -> None:
        self._model = TickTimeModel()
        self._margin = 0.9
        """What of the time there is a pass is planned to take: less, where many are late."""

    def learn(self, n_tokens: int, seconds: float, spare_s: float) -> None:
        """Learn from a pass, which was to take at most `spare_s`."""
        self._model.learn(_shape(n_tokens), seconds)
        if 0 < spare_s < inf:
            self._margin += _STEP * (_ALLOWED_LATE - (seconds > spare_s))
            self._margin = min(max(self._margin, _MIN_MARGIN), 1.0)

    def token_s(self, n_tokens: int) -> float:
        """Return seconds per token of such passes; 0 while too little is known."""
        return self._model.predict(_shape(n_tokens)) / n_tokens if self._model.knows_prefill else 0.0

    def most(self, seconds: float) -> int:
        """Return how many tokens take at most this long; never many more than were seen in one pass."""
        if seconds == inf:
            return 1 << 30
        if not self._model.knows_prefill:
            return FIRST_PASS
        most = max(self._model.longest_seen * _GROWTH, FIRST_PASS)
        return self._model.longest_chunk(0, seconds * self._margin, most=most)


def _shape(n_tokens: int) -> TickShape:
    return TickShape(0, 0, ((0, n_tokens),))
