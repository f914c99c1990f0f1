"""Ollama's routes: POST /api/chat, /api/generate, /api/embed, /api/show; GET /api/tags, /api/ps and others.

What fetches, makes or removes models is refused by name: they stand in the server's settings.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any

from fastapi import Request as HttpRequest
from fastapi import Response

from cobali_ray import __version__
from cobali_ray.api.body.fields import read_as
from cobali_ray.api.body.reading import MISSING, parse
from cobali_ray.api.body.texts import EmbeddingBody
from cobali_ray.api.call.intake import Intake, Source, Work, requested_model, source_of
from cobali_ray.api.door.context import RequestContext
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.api.ollama.answer import (
    NDJSON,
    AnswerPart,
    Style,
    TalkWriter,
    WriteVectors,
    chat_message,
    many_vectors,
    one_vector,
    response,
    when,
)
from cobali_ray.api.ollama.body import (
    OllamaBody,
    OllamaChatBody,
    OllamaEmbedBody,
    OllamaErrorBody,
    OllamaGenerateBody,
    OllamaModelBody,
)
from cobali_ray.api.ollama.read import chat_of, ignored_of, named, prompt_chat_of, raw_of
from cobali_ray.api.reply.replies import json_response
from cobali_ray.api.routes.embeddings import Embeddings, ParsedVectorsBody
from cobali_ray.api.routes.generation import Dialect, Generation, ParsedBody
from cobali_ray.api.routes.openapi import BODY_STATUSES, Routes, errors, tells
from cobali_ray.core.views.stats import ModelCard
from cobali_ray.errors import InvalidParameterError, LoadingError, NotOfferedError, UnknownModelError
from cobali_ray.settings import ApiSettings

SPEAKS = "0.13.0"
"""The version of Ollama whose API this is: some clients require a minimum."""
LATEST = ":latest"
UNLOADS = (0, "0", "0s", "0m")
REFUSED = (
    ("POST", "/api/pull"),
    ("POST", "/api/push"),
    ("POST", "/api/create"),
    ("POST", "/api/copy"),
    ("DELETE", "/api/delete"),
)


class _LoadsOnly(Exception):  # noqa: N818 nothing is wrong
    """A body has no prompt: it is about the model being loaded."""

    def __init__(self, model: ServedModel, body: OllamaBody | OllamaEmbedBody, reply: dict[str, Any]) -> None:
        super().__init__(model)
        self.model, self.body, self.reply = model, body, reply


class Ollama:
    def __init__(
        self,
        fleet: Fleet,
        settings: ApiSettings,
        generation: Generation,
        embeddings: Embeddings,
        intake: Intake,
    ) -> None:
        self._fleet, self._settings = fleet, settings
        self._generation, self._embeddings, self._intake = generation, embeddings, intake

    def routes(self) -> Routes:
        routes = Routes("ollama")
        wrong = partial(errors, body=OllamaErrorBody)
        answers = tells(NDJSON.decode()) | wrong(*BODY_STATUSES, 409, 504, 507)
        vectors = wrong(*BODY_STATUSES, 504, 507)
        routes.post("/api/chat", self.chat, OllamaChatBody, answers)
        routes.post("/api/generate", self.generate, OllamaGenerateBody, answers)
        routes.post("/api/embed", self.embed, OllamaEmbedBody, vectors)
        routes.post("/api/embeddings", self.embed_one, OllamaEmbedBody, vectors)
        routes.post("/api/show", self.show, OllamaModelBody, wrong(*BODY_STATUSES))
        routes.get("/api/tags", self.tags, responses=wrong(401, 500, 503))
        routes.get("/api/ps", self.running, responses=wrong(401, 500, 503))
        routes.get("/api/version", self.version, responses=wrong(401, 500))
        for method, path in REFUSED:
            refused = wrong(401, 403, 500)
            routes.add(method, path, self.refuse, responses=refused, name=f"refuse {path}")
        return routes

    async def chat(self, http: HttpRequest) -> Response:
        """Answer a chat."""
        return await self._answer(http, self._read_chat)

    async def generate(self, http: HttpRequest) -> Response:
        """Answer a prompt, or continue it without a template."""
        return await self._answer(http, self._read_prompt)

    async def embed(self, http: HttpRequest) -> Response:
        """Create embeddings: a vector for each text."""
        return await self._vectors(http, "input", "embeddings", many_vectors)

    async def embed_one(self, http: HttpRequest) -> Response:
        """Embed one text, in an older format."""
        return await self._vectors(http, "prompt", "embedding", one_vector)

    async def _vectors(self, http: HttpRequest, field: str, reply: str, write: WriteVectors) -> Response:
        try:
            return await self._embeddings.vectors(http, partial(self._read_texts, field, reply, write))
        except _LoadsOnly as loaded:
            return json_response(loaded.reply)

    async def _answer(self, http: HttpRequest, read: Work[ParsedBody]) -> Response:
        try:
            return await self._generation.answer(http, read)
        except _LoadsOnly as moves:
            unloads = moves.body.keep_alive in UNLOADS
            if unloads:
                await moves.model.unload()
            reason = {"done": True, "done_reason": "unload" if unloads else "load"}
            return json_response(moves.reply | reason)

    async def show(self, http: HttpRequest) -> Response:
        """Describe a model."""
        model, card, words, _ = await self._intake.take(http, self._read_name)
        capabilities = ["completion", "tools"] if card.generates else []
        capabilities += ["thinking"] if card.generates and words.form.reasoning_start else []
        capabilities += ["embedding"] if card.embedding and card.embedding.pooling != "rank" else []
        capabilities += ["vision"] if card.images else []
        return json_response(
            {
                "modelfile": "",
                "parameters": "",
                "template": words.chat.source,
                "details": _details(card),
                # Clients look for the length under the name of the architecture, whatever that is.
                "model_info": {
                    "general.architecture": "cobali",
                    "general.basename": model.names[0],
                    "cobali.context_length": card.n_ctx_slot,
                },
                "capabilities": capabilities,
                "modified_at": when(card.created_s),
            }
        )

    async def tags(self) -> Response:
        """List models and adapters by all of their names."""
        models = self._fleet.models
        return json_response(
            {"models": [_listed(name, model) for model in models for name in (*model.names, *model.adapters)]}
        )

    async def running(self) -> Response:
        """List the models that are loaded."""
        models = [model for model in self._fleet.models if model.present]
        return json_response({"models": [_listed(model.names[0], model) for model in models]})

    async def version(self) -> Response:
        """Return the version of Ollama's API, and the server's own."""
        return json_response({"version": SPEAKS, "server": f"cobali_ray {__version__}"})

    async def refuse(self, http: HttpRequest) -> Response:
        """Refuse to manage models: the operator chooses them."""
        raise NotOfferedError(http.url.path.rpartition("/")[2])

    # -- in a thread of the intake

    def _read_chat(self, context: RequestContext, raw: bytes) -> ParsedBody:
        body = parse(OllamaChatBody, raw)
        name = self._begin(body, context, chat_message, empty=not body.messages)
        parsed = ParsedBody(
            chat_of(body.model_copy(update={"model": name})), _dialect(Style(body.model, chat_message))
        )
        context.named = named
        return parsed

    def _read_prompt(self, context: RequestContext, raw: bytes) -> ParsedBody:
        body = parse(OllamaGenerateBody, raw)
        name = self._begin(body, context, response, empty=not (body.prompt or body.system or body.images))
        style = Style(body.model, response, with_context=not body.raw)
        body = body.model_copy(update={"model": name})
        if body.raw:
            parsed = ParsedBody(raw_of(body), _dialect(style))
        else:
            parsed = ParsedBody(prompt_chat_of(body), _dialect(style), before=tuple(body.context or ()))
        context.named = named
        return parsed

    def _read_texts(
        self, field: str, reply: str, write: WriteVectors, context: RequestContext, raw: bytes
    ) -> ParsedVectorsBody:
        body = read_as(OllamaEmbedBody, context, raw, frozenset(), {}, strict=self._settings.strict)
        name, texts = self._name(body.model), getattr(body, field)
        if texts is None:
            raise InvalidParameterError(field, MISSING)
        if not texts:  # which is how clients load a model beforehand
            model = requested_model(self._fleet, name, context)
            source_of(self._fleet, name, context)  # raises where it is to be loaded first
            raise _LoadsOnly(model, body, {"model": body.model or model.names[0], reply: []})
        embedding = EmbeddingBody.model_construct(model=name, input=texts, dimensions=body.dimensions)
        return ParsedVectorsBody(embedding, write, field)

    def _begin(
        self,
        body: OllamaBody,
        context: RequestContext,
        say: Callable[[AnswerPart], dict[str, Any]],
        *,
        empty: bool,
    ) -> str | None:
        """Return the name here of a model that is loaded. Raises _LoadsOnly for a body without a prompt."""
        name = self._name(body.model)
        model = requested_model(self._fleet, name, context)
        reply = {"model": body.model or model.names[0]} | say(AnswerPart())
        if empty and body.keep_alive in UNLOADS:
            raise _LoadsOnly(model, body, reply)
        source = source_of(self._fleet, name, context)
        if empty:
            raise _LoadsOnly(model, body, reply | {"created_at": when(source.card.created_s)})
        context.ignore(ignored_of(body, source.card.n_ctx_slot, strict=self._settings.strict))
        return name

    def _read_name(self, context: RequestContext, raw: bytes) -> Source:
        neutral = frozenset({"verbose"})
        body = read_as(OllamaModelBody, context, raw, neutral, {}, strict=self._settings.strict)
        return source_of(self._fleet, self._name(body.model or body.name), context)

    def _name(self, name: str | None) -> str | None:
        """Return the name under which a model is served: Ollama's clients add a tag to names without one."""
        if name is None or not name.endswith(LATEST):
            return name
        try:
            self._fleet.find(name)
        except UnknownModelError:
            return name.removesuffix(LATEST)
        return name


def _dialect(style: Style) -> Dialect:
    return Dialect("ollama-", partial(TalkWriter, style=style))


def _listed(name: str, model: ServedModel) -> dict[str, Any]:
    """Describe a model under a name; sizes are not known here."""
    tagged = name if ":" in name else name + LATEST
    card, identity = None, name
    with suppress(LoadingError):
        card = model.card.under(name)
        identity = f"{card.model_id}:{card.created_s}:{card.n_vocab}"
    reply = {
        "name": tagged,
        "model": tagged,
        "size": 0,
        "size_vram": 0,
        "modified_at": when(card.created_s if card else 0),
        "digest": sha256(identity.encode()).hexdigest(),
        "details": _details(card),
    }
    return reply | ({"context_length": card.n_ctx_slot} if card else {})


def _details(card: ModelCard | None) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": "" if card is None else card.description,
        "families": [],
        "parameter_size": "",
        "quantization_level": "",
    }
