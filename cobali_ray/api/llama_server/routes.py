"""POST /completion, /infill, /apply-template and input_tokens, GET /props: as llama-server has them."""

from __future__ import annotations

from functools import partial

from fastapi import Request as HttpRequest
from fastapi import Response

from cobali_ray import __version__
from cobali_ray.api.body.fields import judge, read_as
from cobali_ray.api.body.reading import parse
from cobali_ray.api.body.schema import ChatBody
from cobali_ray.api.call.intake import loaded_model, source_of
from cobali_ray.api.door.context import RequestContext, context_of
from cobali_ray.api.engines.fleet import Fleet
from cobali_ray.api.llama_server.answer import NativeWriter, generation_settings, native_vectors
from cobali_ray.api.llama_server.body import (
    InfillBody,
    NativeBody,
    NativeEmbeddingBody,
    completion_of,
    embedding_of,
    unknown_fields,
)
from cobali_ray.api.reply.replies import json_response
from cobali_ray.api.routes.embeddings import Embeddings, ParsedVectorsBody
from cobali_ray.api.routes.generation import Dialect, Generation, ParsedBody
from cobali_ray.api.routes.openapi import BODY_STATUSES, MODEL_STATUSES, Routes, errors, generation_responses
from cobali_ray.core.request.request import Request
from cobali_ray.settings import ApiSettings


class LlamaServer:
    """Routes that translate; the engine gets the same requests as from `/v1/completions`."""

    def __init__(
        self, fleet: Fleet, settings: ApiSettings, generation: Generation, embeddings: Embeddings
    ) -> None:
        self._fleet, self._settings = fleet, settings
        self._generation, self._embeddings = generation, embeddings

    def routes(self) -> Routes:
        routes = Routes("llama-server")
        generates, reads = generation_responses(), errors(*BODY_STATUSES)
        vectors = errors(*BODY_STATUSES, 504, 507)
        routes.post("/completion", self.complete, NativeBody, generates)
        routes.post("/completions", self.complete, NativeBody, generates)
        routes.post("/infill", self.infill, InfillBody, generates | errors(501))
        routes.post("/chat/completions", self._generation.chat, ChatBody, generates)
        routes.post("/apply-template", self.apply_template, ChatBody, reads)
        routes.post("/embedding", self.embed, NativeEmbeddingBody, vectors)
        routes.post("/embeddings", self.embed, NativeEmbeddingBody, vectors)
        routes.post("/v1/chat/completions/input_tokens", self.count, ChatBody, reads)
        routes.get("/props", self.props, responses=errors(*MODEL_STATUSES))
        return routes

    async def complete(self, http: HttpRequest) -> Response:
        """Continue one or several texts."""
        return await self._generation.answer(http, partial(self._read, NativeBody))

    async def infill(self, http: HttpRequest) -> Response:
        """Fill the gap between two texts."""
        return await self._generation.answer(http, partial(self._read, InfillBody))

    async def embed(self, http: HttpRequest) -> Response:
        """Embed texts, in llama-server's format."""
        return await self._embeddings.vectors(http, self._read_texts)

    async def apply_template(self, http: HttpRequest) -> Response:
        """Render a chat as the text that the model continues."""
        prompted = await self._generation.prompt(http, self._generation.read_chat)
        return json_response({"prompt": prompted.text})

    async def count(self, http: HttpRequest) -> Response:
        """Count the prompt tokens of a chat."""
        prompted = await self._generation.prompt(http, self._generation.read_chat)
        return json_response({"object": "response.input_tokens", "input_tokens": len(prompted.tokens)})

    async def props(self, http: HttpRequest, model: str | None = None) -> Response:
        """Describe the model and the defaults of requests."""
        served = await loaded_model(self._fleet, model, context_of(http))
        card, words, states = served.card, served.words, await served.states()
        defaults = Request(
            request_id="", prompt=(0,), max_tokens=self._settings.default_max_tokens or card.n_ctx_slot,
            sampling=card.sampling,
        )  # fmt: skip
        settings = generation_settings(defaults, stream=False)
        if self._settings.default_max_tokens is None:
            settings |= {"max_tokens": -1, "n_predict": -1}
        return json_response(
            {
                "default_generation_settings": {"n_ctx": card.n_ctx_slot, "params": settings},
                "total_slots": sum(state.n_slots for state in states),
                "model_alias": served.names[0],
                # Without its folder: clients need not know the server's paths.
                "model_path": card.model_id,
                "chat_template": words.chat.source,
                "modalities": {"vision": card.images, "audio": False},
                "bos_token": words.chat.bos,
                "eos_token": words.chat.eos,
                "build_info": f"cobali_ray {__version__}",
                "is_sleeping": False,
            }
        )

    # -- in a thread of the intake

    def _read_texts(self, context: RequestContext, raw: bytes) -> ParsedVectorsBody:
        body = read_as(NativeEmbeddingBody, context, raw, strict=self._settings.strict)
        embedding, param = embedding_of(body)
        return ParsedVectorsBody(embedding, native_vectors, param)

    def _read(self, shape: type[NativeBody], context: RequestContext, raw: bytes) -> ParsedBody:
        body = parse(shape, raw)
        extra, ignored = unknown_fields(body)
        context.ignore((*ignored, *judge(extra, strict=self._settings.strict)))
        source = source_of(self._fleet, body.model, context)
        native = completion_of(body, source)
        return ParsedBody(native.body, Dialect("cmpl-", partial(NativeWriter, native=native)))
