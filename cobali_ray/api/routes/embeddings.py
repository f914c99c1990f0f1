"""POST /v1/embeddings, /v1/rerank and /v1/score, and vectors for APIs that write them in another shape."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from fastapi import Request as HttpRequest
from fastapi import Response
from prometheus_client.samples import Exemplar
from starlette.types import Receive, Scope, Send

from cobali_ray.api.body.fields import read_as
from cobali_ray.api.body.texts import MAX_INPUTS, EmbeddingBody, RerankBody, ScoreBody, TextsBody
from cobali_ray.api.call.intake import Intake, Source, Work, source_of
from cobali_ray.api.call.translate import check_tokens, priority_of
from cobali_ray.api.door.clock import ApiClock
from cobali_ray.api.door.context import RequestContext, context_of
from cobali_ray.api.door.timings import Timings
from cobali_ray.api.engines.apart import unless_gone
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.api.reply.vectors import (
    Rows,
    VectorRows,
    jina_body,
    logistic,
    ranking,
    scores_body,
    tei_body,
    unit,
    vectors_body,
)
from cobali_ray.api.routes.openapi import BODY_STATUSES, Routes, errors
from cobali_ray.core.request.embedding import EmbeddingKind, EmbeddingRequest
from cobali_ray.core.request.events import End, Vectors
from cobali_ray.errors import (
    InvalidParameterError,
    InvariantError,
    TextTooLongError,
    TooManyTokensError,
    WrongTaskError,
)
from cobali_ray.settings import ApiSettings
from cobali_ray.telemetry.names import exemplar_labels

OK = {"description": "The answer.", "content": {"application/json": {"schema": {}}}}


class VectorsCall(NamedTuple):
    model: ServedModel
    request: EmbeddingRequest
    width: int
    """Numbers that the engine returns for each text."""
    write: Callable[[Rows], Iterator[bytes]]
    """Makes the body of the answer, piece by piece."""


class ParsedVectorsBody(NamedTuple):
    body: EmbeddingBody
    write: Callable[[Rows, str, int], Iterator[bytes]]
    """Writes vectors, the model's name and the number of tokens."""
    param: str = "input"
    """What the API calls the texts."""


Read = Work[ParsedVectorsBody]
"""Reads a body, in a thread of the intake. It judges the fields that it does not know."""


class Embeddings:
    def __init__(self, fleet: Fleet, settings: ApiSettings, clock: ApiClock, intake: Intake) -> None:
        self._fleet, self._settings, self._clock, self._intake = fleet, settings, clock, intake

    def routes(self) -> Routes:
        routes = Routes("embeddings")
        for path, endpoint, body in (
            ("/v1/embeddings", self.embed, EmbeddingBody),
            ("/v1/rerank", self.rerank, RerankBody),
            ("/rerank", self.rerank, RerankBody),
            ("/v1/reranking", self.rerank, RerankBody),
            ("/reranking", self.rerank, RerankBody),
            ("/v1/score", self.score, ScoreBody),
        ):
            routes.post(path, endpoint, body, {200: OK, **errors(*BODY_STATUSES, 504, 507)})
        return routes

    async def embed(self, http: HttpRequest) -> Response:
        """Create embeddings: a vector for each text."""
        return await self.vectors(http, self._read)

    async def vectors(self, http: HttpRequest, read: Read) -> Response:
        return await self._answer(http, partial(self._embed, read))

    async def rerank(self, http: HttpRequest) -> Response:
        """Rank documents by how well they match a query."""
        return await self._answer(http, self._rerank)

    async def score(self, http: HttpRequest) -> Response:
        """Score how well texts match, pair by pair."""
        return await self._answer(http, self._score)

    async def _answer(self, http: HttpRequest, translate: Work[VectorsCall]) -> Response:
        context = context_of(http)
        context.admit(self._clock.now())
        job = await self._intake.take(http, translate)
        context.n_prompt = job.request.n_prompt
        context.count_prompt(job.request.n_prompt, self._clock.now())
        return VectorsReply(job, context, self._clock)

    # -- in a thread of the intake

    def _read(self, context: RequestContext, raw: bytes) -> ParsedVectorsBody:
        body = read_as(EmbeddingBody, context, raw, strict=self._settings.strict)
        packed = body.encoding_format == "base64"
        return ParsedVectorsBody(body, partial(vectors_body, packed=packed))

    def _embed(self, read: Read, context: RequestContext, raw: bytes) -> VectorsCall:
        body, write_rows, param = read(context, raw)
        source, kind = self._source(body.model, context)
        if kind.pooling == "rank":
            raise WrongTaskError(source.card.model_id, "scores pairs of texts; ask /v1/rerank or /v1/score")
        inputs = body.input
        texts = [inputs] if isinstance(inputs, str) or isinstance(inputs[0], int) else inputs
        if len(texts) > MAX_INPUTS:
            raise InvalidParameterError(param, f"must have at most {MAX_INPUTS} texts, got {len(texts)}")
        if body.dimensions is not None and body.dimensions > kind.width:
            raise InvalidParameterError(
                "dimensions", f"must be at most {kind.width} with this model, got {body.dimensions}"
            )
        tokens = _tokens(source, kind, texts, param)
        request = self._request("embd", body, source, tokens)

        def write(rows: Rows) -> Iterator[bytes]:
            return write_rows(unit(rows, body.dimensions), source.card.model_id, request.n_prompt)

        return VectorsCall(source.model, request, kind.width, write)

    def _rerank(self, context: RequestContext, raw: bytes) -> VectorsCall:
        body = read_as(RerankBody, context, raw, strict=self._settings.strict)
        source, kind = self._source(body.model, context)
        documents, tei = (body.texts, True) if body.documents is None else (body.documents, False)
        if documents is None or (body.texts is not None and not tei):
            raise InvalidParameterError("documents", ": exactly one of documents and texts is needed")
        param = "texts" if tei else "documents"
        pairs = _Pairs(source, kind, [body.query], documents, ("query", param))
        request = self._request("rerank", body, source, pairs.tokens)
        texts = documents if (body.return_text if tei else body.return_documents) else None

        def write(rows: Rows) -> Iterator[bytes]:
            ranked = ranking(pairs.scores(rows, raw=bool(body.raw_scores)), body.top_n)
            if tei:
                yield tei_body(ranked, texts)
            else:
                model, n_tokens = source.card.model_id, request.n_prompt
                yield jina_body(ranked, request.request_id, model, n_tokens, texts)

        return VectorsCall(source.model, request, kind.width, write)

    def _score(self, context: RequestContext, raw: bytes) -> VectorsCall:
        body = read_as(ScoreBody, context, raw, strict=self._settings.strict)
        source, kind = self._source(body.model, context)
        pairs = _Pairs(source, kind, body.text_1, body.text_2, ("text_1", "text_2"))
        request = self._request("score", body, source, pairs.tokens)
        created = self._clock.unix()

        def write(rows: Rows) -> Iterator[bytes]:
            scores = pairs.scores(rows, raw=bool(body.raw_scores))
            yield scores_body(scores, request.request_id, created, source.card.model_id, request.n_prompt)

        return VectorsCall(source.model, request, kind.width, write)

    def _source(self, model: str | None, context: RequestContext) -> tuple[Source, EmbeddingKind]:
        source = source_of(self._fleet, model, context)
        if (kind := source.card.embedding) is None:
            why = "does not embed texts; operators can make it do so with the setting pooling"
            if source.card.adapter is not None:
                why = "is an adapter, and texts are embedded without any; ask its model"
            raise WrongTaskError(source.card.model_id, why)
        return source, kind

    def _request(
        self, name: str, body: TextsBody, source: Source, tokens: Sequence[Sequence[int]]
    ) -> EmbeddingRequest:
        caller = source.context.caller
        timeout_s = self._settings.default_timeout_s if body.timeout_s is None else body.timeout_s
        return EmbeddingRequest.of(
            tokens,
            request_id=f"{name}-{uuid.uuid4().hex}",
            timeout_s=timeout_s,
            received_s=source.context.received_s,
            tenant=caller.tenant,
            weight=caller.terms.weight,
            priority=priority_of(body.priority, caller.terms),
        )


class _Pairs:
    """Texts that are compared: read together by a model that ranks, else by the angle of their vectors."""

    def __init__(
        self,
        source: Source,
        kind: EmbeddingKind,
        first: Sequence[str],
        second: Sequence[str],
        params: tuple[str, str],
    ) -> None:
        n, names = max(len(first), len(second)), params
        if min(len(first), len(second)) not in {1, n}:
            raise InvalidParameterError(
                names[0], f"and {names[1]} must have equally many texts, or one of them just one"
            )
        self._kind, self._n_first = kind, len(first)
        if kind.pooling != "rank":
            self.tokens = _tokens(source, kind, first, names[0])
            self.tokens += _tokens(source, kind, second, names[1])
            return
        self.tokens = []
        lefts, rights = (list(texts) * (n // len(texts)) for texts in (first, second))
        for number, (left, right) in enumerate(zip(lefts, rights, strict=True)):
            if source.context.client_left():
                break
            try:
                self.tokens.append(source.words.pair(left, right, n_most=kind.n_most))
            except TooManyTokensError as error:
                where = (names[1], number) if len(second) > 1 else (names[1],)
                raise TextTooLongError(where, error.n_least, error.n_most) from None

    def scores(self, rows: Rows, *, raw: bool) -> list[float]:
        if self._kind.pooling != "rank":
            vectors = unit(rows)
            cosines: list[float] = (vectors[: self._n_first] * vectors[self._n_first :]).sum(axis=1).tolist()
            return cosines
        scores: list[float] = (rows if raw or self._kind.probability else logistic(rows))[:, 0].tolist()
        return scores


def _tokens(
    source: Source, kind: EmbeddingKind, texts: Sequence[str | list[int]], param: str
) -> list[list[int]]:
    """Return the tokens of each text; ids are taken as they are."""
    tokens = []
    for number, text in enumerate(texts):
        if source.context.client_left():
            break
        where = (param, number) if len(texts) > 1 else (param,)
        if not text:
            raise InvalidParameterError(where, "must not be empty")
        try:
            if isinstance(text, str):
                tokens.append(source.words.tokenize(text, n_most=kind.n_most))
            else:
                check_tokens(text, source.card.n_vocab, where)
                tokens.append(text)
        except TooManyTokensError as error:
            raise TextTooLongError(where, error.n_least, error.n_most) from None
        if len(tokens[-1]) > kind.n_most:
            raise TextTooLongError(where, len(tokens[-1]), kind.n_most)
        if not tokens[-1]:
            raise InvalidParameterError(where, "must have at least one token")
    return tokens


class VectorsReply(Response):
    """An answer that asks the engine itself, as `Reply` does."""

    def __init__(self, job: VectorsCall, context: RequestContext, clock: ApiClock) -> None:
        super().__init__()
        self._model, self._job, self._context, self._clock = job.model, job, context, clock
        self._end: End | None = None
        context.answer_id = job.request.request_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 ASGI's shape
        try:
            await unless_gone(receive, self._reply(send))
        finally:
            times = Timings(None, self._clock.now() - self._context.received_s)
            self._context.settle([self._end], 0, times, reason=lambda _, end: end.finish_reason)
            if self._end is not None:
                labels = exemplar_labels(self._job.request.request_id, None)
                self._model.observe("e2e_seconds", Exemplar(labels, times.e2e_s))

    async def _reply(self, send: Send) -> None:
        pieces = self._job.write(await self._rows())
        executor = asyncio.get_running_loop().run_in_executor
        piece = await executor(None, next, pieces, b"")
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while piece:
            following = await executor(None, next, pieces, b"")
            await send({"type": "http.response.body", "body": piece, "more_body": bool(following)})
            piece = following

    async def _rows(self) -> Rows:
        gathered = VectorRows(len(self._job.request.ends), self._job.width)
        async with aclosing(self._model.ask(self._job.request)) as batches:
            async for batch in batches:
                for event in batch:
                    if isinstance(event, Vectors):
                        gathered.add(event)
                    elif isinstance(event, End):
                        self._end = event
        if self._end is None:
            raise InvariantError("the engine's stream stopped without an end event")
        if self._end.error is not None:
            raise self._end.error
        return gathered.whole()
