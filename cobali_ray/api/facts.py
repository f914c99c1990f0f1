"""The routes that tell: models, tokens, health, metrics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson
from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from cobali_ray.api.account import account_of
from cobali_ray.api.body import parse, read_body
from cobali_ray.api.client import EngineClient
from cobali_ray.api.faults import retry_after
from cobali_ray.api.fields import judge_fields
from cobali_ray.api.openapi import Responses, errors, takes
from cobali_ray.api.schema import DetokenizeBody, TokenizeBody
from cobali_ray.api.settings import ApiSettings
from cobali_ray.api.translate import check_model, check_tokens
from cobali_ray.core.stats import EngineState, EngineStatus, ModelCard
from cobali_ray.errors import InvalidParameterError, LoadingError

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


class Facts:
    """Everything but generation."""

    def __init__(self, client: EngineClient, settings: ApiSettings) -> None:
        self._client, self._settings = client, settings

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(tags=["facts"])
        keyed = errors(401, 500, 503)
        body = errors(400, 401, 404, 413, 500, 503)
        not_ready: Responses = {
            503: {"description": "Loading, restarting, draining, stalled; `Retry-After` is set."}
        }
        router.get("/v1/models", response_model=None, responses=keyed)(self.models)
        router.get("/v1/models/{model_id:path}", response_model=None, responses=keyed | errors(404))(
            self.model
        )
        router.post("/tokenize", response_model=None, responses=body, openapi_extra=takes(TokenizeBody))(
            self.tokenize
        )
        router.post("/detokenize", response_model=None, responses=body, openapi_extra=takes(DetokenizeBody))(
            self.detokenize
        )
        router.get("/health", response_model=None)(self.health)
        router.get("/ready", response_model=None, responses=not_ready)(self.ready)
        router.get("/metrics", response_model=None, responses=errors(401, 500))(self.metrics)
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
        body = parse(TokenizeBody, await read_body(http, self._settings.max_body_bytes))
        self._check(body, http)
        texts = [text for text in (body.content, body.text, body.prompt) if text is not None]
        if len(texts) != 1:
            raise InvalidParameterError("content", "exactly one of content, text and prompt is needed")
        tokens = await self._client.tokenize(
            texts[0],
            add_special=bool(body.add_special),
            parse_special=body.parse_special is None or body.parse_special,
        )
        if not body.with_pieces:
            return _json({"tokens": tokens, "count": len(tokens)})
        pieces = {token: await self._client.detokenize([token]) for token in dict.fromkeys(tokens)}
        named = [{"id": token, "piece": pieces[token]} for token in tokens]
        return _json({"tokens": named, "count": len(tokens)})

    async def detokenize(self, http: HttpRequest) -> Response:
        """Turn token ids into text."""
        body = parse(DetokenizeBody, await read_body(http, self._settings.max_body_bytes))
        self._check(body, http)
        check_tokens(body.tokens, self._client.card.n_vocab, "tokens")
        return _json({"content": await self._client.detokenize(body.tokens)})

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

    def _check(self, body: TokenizeBody | DetokenizeBody, http: HttpRequest) -> None:
        check_model(body.model, self._client.card, self._settings)
        account_of(http).ignore(judge_fields(body.model_extra, strict=self._settings.strict))


def _model(name: str, card: ModelCard) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": card.created_s,
        "owned_by": "cobali",
        "root": card.model_id,
        "max_model_len": card.n_ctx_slot,
        "description": card.description,
    }


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
