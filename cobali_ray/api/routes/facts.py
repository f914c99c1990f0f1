"""The routes about models, adapters, tokens, health and metrics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import PurePath
from typing import Any

import orjson
from fastapi import Request as HttpRequest
from fastapi import Response
from prometheus_client import Metric, generate_latest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS
from pydantic import Field

from cobali_ray.api.body.fields import read_as
from cobali_ray.api.body.schema import BodyModel
from cobali_ray.api.body.texts import DetokenizeBody, TokenizeBody
from cobali_ray.api.call.intake import Intake, Work, loaded_model, requested_model, source_of
from cobali_ray.api.call.translate import check_tokens
from cobali_ray.api.door.context import RequestContext, context_of
from cobali_ray.api.door.faults import retry_after
from cobali_ray.api.engines.fleet import TAKES_WORK, Fleet, ServedModel, overall
from cobali_ray.api.reply.replies import json_response
from cobali_ray.api.routes.chats import shelf_of
from cobali_ray.api.routes.openapi import BODY_STATUSES, MODEL_STATUSES, Responses, Routes, content, errors
from cobali_ray.backend.port import IsCancelled
from cobali_ray.core.request.request import TUNABLE
from cobali_ray.core.views.stats import EngineState, EngineStatus, ModelCard
from cobali_ray.errors import FixedScalesError, InvalidParameterError, LoadingError, StoreFailedError
from cobali_ray.settings import ApiSettings
from cobali_ray.store import batches
from cobali_ray.store.database import Store
from cobali_ray.telemetry.exposition import openmetrics
from cobali_ray.telemetry.families import batch_families

MAX_TOKENS = 1_000_000
"""Of one text to tokenise. A list to detokenise is bounded with all values of its body."""
PIECE = 8192
KEPT_S = 1.0
"""How long metrics wait for the store: Prometheus gives up on a scrape after some seconds."""
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


class ModelBody(BodyModel):
    """POST /v1/models/load and /v1/models/unload."""

    model: str = Field(description="One of its names.")


class Facts:
    def __init__(
        self, fleet: Fleet, settings: ApiSettings, intake: Intake, store: Store | None = None
    ) -> None:
        self._fleet, self._settings, self._intake, self._store = fleet, settings, intake, store

    def routes(self) -> Routes:
        routes = Routes("models and health")
        keyed = errors(401, 500, 503)
        body = errors(*BODY_STATUSES)
        not_ready: Responses = {
            503: {
                "description": "Loading, restarting, draining, stalled; `Retry-After` is set.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            }
        }
        routes.get("/v1/models", self.models, responses=keyed)
        routes.get("/v1/models/{model_id:path}", self.model, responses=keyed | errors(404))
        moves = errors(*BODY_STATUSES, 409, 507)
        routes.post("/v1/models/load", self.load, ModelBody, moves)
        routes.post("/v1/models/unload", self.unload, ModelBody, moves)
        routes.post("/tokenize", self.tokenize, TokenizeBody, body)
        routes.post("/detokenize", self.detokenize, DetokenizeBody, body)
        routes.get("/tokenizer_info", self.tokenizer_info, responses=errors(*MODEL_STATUSES))
        routes.get("/health", self.health)
        routes.get("/ready", self.ready, responses=not_ready)
        exposition = content(EXPOSITION, "Prometheus text format.") | errors(401, 500)
        routes.get("/metrics", self.metrics, response_class=Response, responses=exposition)
        routes.get("/lora-adapters", self.adapters, responses=errors(*MODEL_STATUSES))
        routes.add("POST", "/lora-adapters", self.scale, responses=errors(401, 500, 501))
        return routes

    async def models(self, http: HttpRequest) -> Response:
        """List models by all of their names, with their state.

        `chats` names the store of this key's conversations, if the server has one.
        """
        data = [
            _described(name, model, status)
            for model in self._fleet.models
            for status in [status_of(await model.states())]
            for name in (*model.names, *model.adapters)
        ]
        chats = {} if self._store is None else {"chats": shelf_of(context_of(http).caller.salt)}
        return json_response({"object": "list", "data": data, **chats})

    async def model(self, model_id: str) -> Response:
        """Describe a model by one of its names."""
        model = self._fleet.find(model_id)
        return json_response(_described(model_id, model, status_of(await model.states())))

    async def load(self, http: HttpRequest) -> Response:
        """Load a model, and answer when it is loaded."""
        model = await self._named(http)
        await model.load(len(model.engines))
        return await self._moved(model)

    async def unload(self, http: HttpRequest) -> Response:
        """Unload a model, and answer when its memory is free."""
        model = await self._named(http)
        await model.unload()
        return await self._moved(model)

    async def _named(self, http: HttpRequest) -> ServedModel:
        body = await self._intake.read(http, ModelBody)
        return requested_model(self._fleet, body.model, context_of(http))

    @staticmethod
    async def _moved(model: ServedModel) -> Response:
        return json_response(
            {"id": model.names[0], "object": "model", "status": status_of(await model.states())}
        )

    async def tokenize(self, http: HttpRequest) -> Response:
        """Turn text into token ids."""
        return await self._answer(http, self._tokens)

    async def detokenize(self, http: HttpRequest) -> Response:
        """Turn token ids into text."""
        return await self._answer(http, self._text)

    async def tokenizer_info(self, http: HttpRequest, model: str | None = None) -> Response:
        """Describe a model's tokenizer, as a tokenizer_config.json does."""
        served = await loaded_model(self._fleet, model, context_of(http))
        chat, card = served.words.chat, served.card
        return json_response(
            {
                "bos_token": chat.bos or None,
                "eos_token": chat.eos or None,
                "pad_token": None,
                "model_max_length": card.n_ctx_slot,
                "chat_template": chat.source,
            }
        )

    async def _answer(self, http: HttpRequest, work: Work[bytes]) -> Response:
        body = await self._intake.take(http, work)
        return Response(body, media_type="application/json")

    async def adapters(self, http: HttpRequest, model: str | None = None) -> Response:
        """List the adapters of a model; naming it is optional if there is only one."""
        card = (await loaded_model(self._fleet, model, context_of(http))).card
        # Of a path only the file's name: clients need not know the folder.
        return json_response(
            [
                {"id": i, "path": PurePath(adapter.path).name, "scale": adapter.scale, "model": adapter.name}
                for i, adapter in enumerate(card.adapters)
            ]
        )

    async def scale(self) -> Response:
        """Refuse to change scales, which would change the answers of other clients."""
        raise FixedScalesError

    # -- in a thread of the intake

    def _tokens(self, context: RequestContext, raw: bytes) -> bytes:
        body = read_as(TokenizeBody, context, raw, strict=self._settings.strict)
        words = source_of(self._fleet, body.model, context).words
        texts = [text for text in (body.content, body.text, body.prompt) if text is not None]
        if len(texts) != 1:
            raise InvalidParameterError("content", ": exactly one of content, text and prompt is needed")
        tokens = words.tokenize(
            texts[0],
            add_special=bool(body.add_special_tokens if body.add_special is None else body.add_special),
            parse_special=body.parse_special is None or body.parse_special,
            n_most=MAX_TOKENS,
            is_cancelled=context.client_left,
        )
        if not body.with_pieces:
            return _token_list(tokens, context.client_left)
        pieces = {token: words.detokenize([token]) for token in dict.fromkeys(tokens)}
        return _token_list(({"id": token, "piece": pieces[token]} for token in tokens), context.client_left)

    def _text(self, context: RequestContext, raw: bytes) -> bytes:
        body = read_as(DetokenizeBody, context, raw, strict=self._settings.strict)
        source = source_of(self._fleet, body.model, context)
        check_tokens(body.tokens, source.card.n_vocab, "tokens")
        text = source.words.detokenize(body.tokens, is_cancelled=context.client_left)
        return orjson.dumps({"content": text, "prompt": text})  # llama-server's name, and vLLM's

    async def health(self) -> Response:
        """Report that this process is alive, and the state of the engines; always 200."""
        return json_response({"status": "ok"} | _engines(await self._fleet.states()))

    async def ready(self) -> Response:
        """Report whether new requests are accepted: 200 or 503."""
        states = await self._fleet.states()
        status = overall(states).status
        response = json_response({"status": status} | _engines(states))
        if status not in TAKES_WORK:
            response.status_code = 503
            response.headers["retry-after"] = retry_after(LoadingError.retry_after_s)
        return response

    async def metrics(self, http: HttpRequest) -> Response:
        """Return metrics for Prometheus, with exemplars in OpenMetrics format."""
        # prometheus_client's own choice raises for a version that is no number.
        if "application/openmetrics-text" in http.headers.get("accept", ""):
            encode, content_type = openmetrics, OPENMETRICS
        else:
            encode, content_type = generate_latest, EXPOSITION
        kept = [] if self._store is None else await _batch_families(self._store)
        return Response(await self._fleet.metrics(encode, kept), headers={"content-type": content_type})


def _engines(states: Sequence[EngineState]) -> dict[str, Any]:
    return {"engine": asdict(overall(states)), "engines": [asdict(state) for state in states]}


def status_of(states: Sequence[EngineState]) -> dict[str, Any]:
    """Say in one word whether a model takes requests: in llama-server's field, by its word if it has one."""
    state = overall(states)
    return {
        "value": _WORDS[state.status],
        "detail": state.detail,
        "engines": {state.engine_id: state.status for state in states},
    }


_WORDS = {
    EngineStatus.READY: "loaded",
    EngineStatus.DRAINING: "draining",
    EngineStatus.STALLED: "stalled",
    EngineStatus.LOADING: "loading",
    EngineStatus.RESTARTING: "loading",
    EngineStatus.UNLOADED: "unloaded",
    EngineStatus.FAILED: "failed",
}


async def _batch_families(store: Store) -> list[Metric]:
    """Return metrics of all batches; none where the store cannot be read in time: the rest must not wait."""
    try:
        unfinished = await asyncio.wait_for(store(batches.unfinished), KEPT_S)
    except (StoreFailedError, TimeoutError):
        return []
    lines = {
        "waiting": sum([batch.n_left for batch in unfinished]),
        "answered": sum([batch.n_completed for batch in unfinished]),
        "failed": sum([batch.n_failed for batch in unfinished]),
    }
    return batch_families(Counter([str(batch.status) for batch in unfinished]), lines)


def capabilities(card: ModelCard) -> Iterator[str]:
    if card.generates:
        yield "completion"
    if (kind := card.embedding) is not None:
        yield from ["rerank"] if kind.pooling == "rank" else ["embedding", "rerank"]


def _described(name: str, model: ServedModel, status: dict[str, Any]) -> dict[str, Any]:
    """Describe a model; its limits and capabilities are there once it has been loaded."""
    root = model.names[0]
    entry = {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "cobali",
        "root": root,
        "parent": root if name in model.adapters else None,
    }
    with suppress(LoadingError):
        card = model.card
        entry |= {
            "created": card.created_s,
            "max_model_len": card.n_ctx_slot,
            "capabilities": list(capabilities(card.under(name))),
            "architecture": {
                "input_modalities": ["text", "image"] if card.images else ["text"],
                "output_modalities": ["text"],
            },
            "description": card.description,
            "size_bytes": card.size_bytes or None,
            "default_sampling": {name: getattr(card.sampling, name) for name in TUNABLE},
        }
        if card.reuse is not None:
            entry["reuse"] = card.reuse._asdict()
    return entry | {"status": status}


def _token_list(items: Iterable[Any], client_left: IsCancelled) -> bytes:
    """Return tokens and their count as JSON, made in pieces that leave others the interpreter."""
    pieces, n_items, items = [], 0, iter(items)
    while (some := list(islice(items, PIECE))) and not client_left():
        n_items += len(some)
        pieces.append(orjson.dumps(some)[1:-1])
    return b'{"tokens":[%b],"count":%d}' % (b",".join(pieces), n_items)
