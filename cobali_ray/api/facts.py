"""The routes that tell: models, tokens, health, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any

import orjson
from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from cobali_ray.api.account import account_of
from cobali_ray.api.body import parse
from cobali_ray.api.client import EngineClient
from cobali_ray.api.faults import retry_after
from cobali_ray.api.fields import judge_fields
from cobali_ray.api.intake import Intake, Source
from cobali_ray.api.openapi import READING, Responses, content, errors, get, takes
from cobali_ray.api.schema import DetokenizeBody, TokenizeBody
from cobali_ray.api.settings import ApiSettings
from cobali_ray.api.translate import check_model, check_tokens
from cobali_ray.backend.port import Gone
from cobali_ray.core.request import TUNABLE
from cobali_ray.core.stats import EngineState, EngineStatus, ModelCard
from cobali_ray.errors import InvalidParameterError, LoadingError

MAX_TOKENS = 1_000_000
"""Of one text to tokenise. A list to detokenise is bounded with all values of its body."""
PIECE = 8192
"""Tokens that are encoded at once."""
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


class Facts:
    """Everything but generation."""

    def __init__(self, client: EngineClient, settings: ApiSettings, intake: Intake) -> None:
        self._client, self._settings, self._intake = client, settings, intake

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(tags=["facts"])
        keyed = errors(401, 500, 503)
        body = errors(*READING)
        not_ready: Responses = {
            503: {
                "description": "Loading, restarting, draining, stalled; `Retry-After` is set.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            }
        }
        get(router, "/v1/models", self.models, responses=keyed)
        get(router, "/v1/models/{model_id:path}", self.model, responses=keyed | errors(404))
        router.post("/tokenize", response_model=None, responses=body, openapi_extra=takes(TokenizeBody))(
            self.tokenize
        )
        router.post("/detokenize", response_model=None, responses=body, openapi_extra=takes(DetokenizeBody))(
            self.detokenize
        )
        get(router, "/health", self.health)
        get(router, "/ready", self.ready, responses=not_ready)
        exposition = content(EXPOSITION, "Prometheus text format.")
        get(
            router,
            "/metrics",
            self.metrics,
            response_class=Response,
            responses=exposition | errors(401, 500),
        )
        return router

    async def models(self) -> Response:
        """List the model under each of its names."""
        card = self._client.card
        names = dict.fromkeys((card.model_id, *self._settings.model_aliases))
        return _json({"object": "list", "data": [_model(name, card) for name in names]})

    async def model(self, model_id: str) -> Response:
        """Describe the model under one of its names."""
        card = self._client.card
        check_model(model_id, card, self._settings)
        return _json(_model(model_id, card))

    async def tokenize(self, http: HttpRequest) -> Response:
        """Turn text into token ids."""
        return await self._answer(http, self._tokens)

    async def detokenize(self, http: HttpRequest) -> Response:
        """Turn token ids into text."""
        return await self._answer(http, self._text)

    async def _answer(self, http: HttpRequest, work: Callable[[Source, bytes, Gone], bytes]) -> Response:
        source = Source(self._client.card, self._client.words, account_of(http))
        body = await self._intake.take(http, partial(work, source))
        return Response(body, media_type="application/json")

    # -- in a thread of the intake

    def _tokens(self, source: Source, raw: bytes, gone: Gone) -> bytes:
        body = parse(TokenizeBody, raw)
        self._check(body, source)
        texts = [text for text in (body.content, body.text, body.prompt) if text is not None]
        if len(texts) != 1:
            raise InvalidParameterError("content", "exactly one of content, text and prompt is needed")
        words = source.words
        tokens = words.tokenize(
            texts[0],
            add_special=bool(body.add_special),
            parse_special=body.parse_special is None or body.parse_special,
            n_most=MAX_TOKENS,
            gone=gone,
        )
        if not body.with_pieces:
            return _token_list(tokens, gone)
        pieces = {token: words.detokenize([token]) for token in dict.fromkeys(tokens)}
        return _token_list(({"id": token, "piece": pieces[token]} for token in tokens), gone)

    def _text(self, source: Source, raw: bytes, gone: Gone) -> bytes:
        body = parse(DetokenizeBody, raw)
        self._check(body, source)
        check_tokens(body.tokens, source.card.n_vocab, "tokens")
        return orjson.dumps({"content": source.words.detokenize(body.tokens, gone=gone)})

    async def health(self) -> Response:
        """Say that this process answers, and how the engine is; always 200."""
        state = await self._client.state()
        return _json({"status": "ok", "engine": asdict(state)})

    async def ready(self) -> Response:
        """Say whether new requests are taken: 200 or 503."""
        state: EngineState = await self._client.state()
        response = _json({"status": state.status, "engine": asdict(state)})
        if state.status is not EngineStatus.READY:
            response.status_code = 503
            response.headers["retry-after"] = retry_after(LoadingError.retry_after_s)
        return response

    async def metrics(self) -> Response:
        """Return the Prometheus exposition."""
        return Response(await self._client.metrics(), headers={"content-type": EXPOSITION})

    def _check(self, body: TokenizeBody | DetokenizeBody, source: Source) -> None:
        check_model(body.model, source.card, self._settings)
        source.account.ignore(judge_fields(body.model_extra, strict=self._settings.strict))


def _model(name: str, card: ModelCard) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": card.created_s,
        "owned_by": "cobali",
        "root": card.model_id,
        "max_model_len": card.n_ctx_slot,
        "description": card.description,
        "default_sampling": {name: getattr(card.sampling, name) for name in TUNABLE},
    }


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")


def _token_list(items: Iterable[Any], gone: Gone) -> bytes:
    """Return tokens and their count as JSON, made in pieces that leave others the interpreter."""
    pieces, n_items, items = [], 0, iter(items)
    while (some := list(islice(items, PIECE))) and not gone():
        n_items += len(some)
        pieces.append(orjson.dumps(some)[1:-1])
    return b'{"tokens":[%b],"count":%d}' % (b",".join(pieces), n_items)
