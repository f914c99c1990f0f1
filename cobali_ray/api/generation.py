"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import uuid

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from cobali_ray.api.account import Account, account_of
from cobali_ray.api.answer import chat_answer, completion_answer
from cobali_ray.api.body import parse, read_body
from cobali_ray.api.client import EngineClient
from cobali_ray.api.clock import ApiClock
from cobali_ray.api.fields import judge_fields
from cobali_ray.api.openapi import generation_responses, takes
from cobali_ray.api.replies import Answer, Reply, StreamReply, WholeReply
from cobali_ray.api.schema import ChatBody, CompletionBody, GenerationBody
from cobali_ray.api.settings import ApiSettings
from cobali_ray.api.sse import ChatFrames, CompletionFrames, Frames
from cobali_ray.api.translate import (
    Call,
    Origin,
    chat_call,
    check_choices,
    check_model,
    check_tokens,
    completion_call,
    messages_of,
    prompts_of,
)
from cobali_ray.core.stats import ModelCard

PREFIXES = {"chat": "chatcmpl", "text_completion": "cmpl"}
"""What the ids of an operation's answers begin with."""


class Generation:
    """The two routes that ask the engine for tokens."""

    def __init__(self, client: EngineClient, settings: ApiSettings, clock: ApiClock) -> None:
        self._client, self._settings, self._clock = client, settings, clock

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(tags=["generation"])
        for path, endpoint, body in (
            ("/v1/chat/completions", self.chat, ChatBody),
            ("/v1/completions", self.complete, CompletionBody),
        ):
            router.add_api_route(
                path,
                endpoint,
                methods=["POST"],
                response_model=None,
                responses=generation_responses(),
                openapi_extra=takes(body),
            )
        return router

    async def chat(self, http: HttpRequest) -> Response:
        """Continue a chat."""
        account = account_of(http)
        card = self._client.card
        body = parse(ChatBody, await read_body(http, self._settings.max_body_bytes))
        self._check(body, card, account, n_prompts=1)
        messages, ignored = messages_of(body, strict=self._settings.strict)
        account.ignore(ignored)
        # The template writes the model's opening tokens itself.
        prompt = await self._client.tokenize(
            self._client.render_chat(messages), add_special=False, parse_special=True
        )
        call = chat_call(body, prompt, self._origin("chat", card, body, account))
        return self._reply(call, account, ChatFrames, chat_answer)

    async def complete(self, http: HttpRequest) -> Response:
        """Continue one or several texts."""
        account = account_of(http)
        card = self._client.card
        body = parse(CompletionBody, await read_body(http, self._settings.max_body_bytes))
        prompts = prompts_of(body)
        self._check(body, card, account, n_prompts=len(prompts))
        tokens, echoes = [], []
        for prompt in prompts:
            if isinstance(prompt, str):
                tokens.append(await self._client.tokenize(prompt, add_special=True, parse_special=True))
                echoes.append(prompt if body.echo else "")
            else:
                check_tokens(prompt, card.n_vocab, "prompt")
                tokens.append(prompt)
                echoes.append(await self._client.detokenize(prompt) if body.echo else "")
        call = completion_call(body, tokens, echoes, self._origin("text_completion", card, body, account))
        return self._reply(call, account, CompletionFrames, completion_answer)

    def _check(self, body: GenerationBody, card: ModelCard, account: Account, *, n_prompts: int) -> None:
        check_model(body.model, card, self._settings)
        account.ignore(judge_fields(body.model_extra, strict=self._settings.strict))
        if body.stream_options is not None:
            account.ignore(judge_fields(body.stream_options.model_extra, strict=self._settings.strict))
        check_choices(body, n_prompts, self._settings)

    def _origin(self, operation: str, card: ModelCard, body: GenerationBody, account: Account) -> Origin:
        span = account.span
        return Origin(
            call_id=f"{PREFIXES[operation]}-{uuid.uuid4().hex}",
            created=self._clock.unix(),
            card=card,
            settings=self._settings,
            received_s=account.received_s,
            trace=None if span is None else span.link(operation, body.model or card.model_id),
        )

    def _reply(self, call: Call, account: Account, frames: type[Frames], answer: Answer) -> Reply:
        if not call.stream:
            return WholeReply(self._client, call, account, answer, clock=self._clock)
        return StreamReply(
            self._client,
            call,
            account,
            frames(call),
            clock=self._clock,
            min_gap_s=self._settings.min_stream_gap_s,
        )
