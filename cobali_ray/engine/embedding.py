"""Embedding: passes of texts between the ticks. One thread calls everything here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite

import numpy as np

from cobali_ray.backend.port import Embedder
from cobali_ray.core.clock import Clock
from cobali_ray.core.embedding import EmbeddingQueue, EmbeddingRequest, Piece
from cobali_ray.core.events import Event, Vectors
from cobali_ray.core.instructions import Finish
from cobali_ray.core.stats import Pass
from cobali_ray.errors import BackendError, CobaliError, InternalError


class Embedding:
    """Requests in, vectors out, one pass at a time; whose texts it takes is the queue's to say."""

    def __init__(
        self,
        embedder: Embedder,
        clock: Clock,
        tell: Callable[[str, Event], None],
        begin: Callable[[Sequence[EmbeddingRequest]], None] = lambda _: None,
    ) -> None:
        """`tell` takes each event with the address that it goes to, `begin` the requests whose turn it is."""
        self._embedder, self._clock, self._tell, self._begin = embedder, clock, tell, begin
        self.queue = EmbeddingQueue(embedder.kind)

    def submit(self, request: EmbeddingRequest, arrived_s: float | None = None) -> None:
        """Let a request in, which came now or at the time given."""
        self.queue.submit(request, self._clock.now() if arrived_s is None else arrived_s)

    def cancel(self, request_id: str) -> None:
        """End a request, if it is one of ours."""
        self._finish(self.queue.cancel(request_id, self._clock.now()))

    def fail_all(self, error: CobaliError) -> None:
        """End all requests."""
        self._finish(self.queue.fail_all(error, self._clock.now()))

    def step(self, spare_s: float) -> Pass | None:
        """Compute one pass, which shall take no longer than what streams can spare. None: there was none."""
        started_s = self._clock.now()
        self._finish(self.queue.expire(started_s))
        pieces = self.queue.pack(self.queue.times.most(spare_s), started_s)
        if not pieces:
            return None
        n_tokens = sum(len(piece.tokens) for piece in pieces)
        n_ended = len(self.queue)
        self._begin(self.queue.begun(pieces, started_s))
        self._compute(pieces)
        ended_s = self._clock.now()
        self.queue.times.learn(n_tokens, ended_s - started_s, spare_s)
        self._finish(self.queue.computed(pieces, ended_s))
        n_texts = sum(piece.last for piece in pieces)
        return Pass(n_texts, n_tokens, ended_s - started_s, self.queue.n_texts, n_ended - len(self.queue))

    def _compute(self, pieces: list[Piece]) -> None:
        """Compute these and tell their vectors. What cannot be computed ends its requests, and no others."""
        try:
            rows = self._embedder.embed(pieces)
        except BackendError as error:
            self._fail([piece.request.request_id for piece in pieces], str(error))
            return
        found: dict[str, tuple[str, list[int], list[bytes]]] = {}
        for piece, row in zip(pieces, rows, strict=True):
            if not piece.last:
                continue
            request = piece.request
            if not isfinite(float(np.dot(row, row))):
                self._fail([request.request_id], f"text {piece.text_id} has no finite vector")
                continue
            _, texts, data = found.setdefault(request.request_id, (request.reply_to, [], []))
            texts.append(piece.text_id)
            data.append(row.astype("<f4").tobytes())
        for request_id, (reply_to, texts, data) in found.items():
            self._tell(reply_to, Vectors(request_id, b"".join(data), tuple(texts)))

    def _fail(self, request_ids: Iterable[str], why: str) -> None:
        self._finish(self.queue.fail(request_ids, InternalError(why), self._clock.now()))

    def _finish(self, ends: list[Finish]) -> None:
        for reply_to, end in ends:
            self._tell(reply_to, end)
