"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from cobali_ray.api.account import Account, account_of
from cobali_ray.api.answer import Answer, ChatAnswer, CompletionAnswer
from cobali_ray.api.body import parse
from cobali_ray.api.clock import ApiClock
from cobali_ray.api.constraint import constraint_of
from cobali_ray.api.fields import judge_fields
from cobali_ray.api.fleet import Fleet
from cobali_ray.api.images import in_order, tokens_of
from cobali_ray.api.intake import Intake, Source, source_of
from cobali_ray.api.openapi import generation_responses, takes
from cobali_ray.api.params import asked_max_tokens, n_of
from cobali_ray.api.prompt import ChatPrompt, prompt_of
from cobali_ray.api.replies import Reply, StreamReply, WholeReply
from cobali_ray.api.schema import ChatBody, CompletionBody, GenerationBody
from cobali_ray.api.settings import ApiSettings
from cobali_ray.api.sse import ChatFrames, CompletionFrames, Frames
from cobali_ray.api.translate import (
    Call,
    Origin,
    bad_words_of,
    chat_call,
    check_tokens,
    completion_call,
    prompts_of,
)
from cobali_ray.backend.grammar import Checked, Kind, check
from cobali_ray.backend.port import Gone
from cobali_ray.chat.call_grammar import after_reasoning, call_grammar
from cobali_ray.core.request import Grammar
from cobali_ray.core.stats import ModelCard
from cobali_ray.errors import PromptTooLongError, TooManyTokensError

PREFIXES = {"chat": "chatcmpl", "text_completion": "cmpl"}
"""What the ids of an operation's answers begin with."""


Translate = Callable[[Account, bytes, Gone], Call]


class Generation:
    """The two routes that ask the engine for tokens."""

    def __init__(self, fleet: Fleet, settings: ApiSettings, clock: ApiClock, intake: Intake) -> None:
        self._fleet, self._settings, self._clock, self._intake = fleet, settings, clock, intake

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
        return await self._answer(http, self._chat, ChatFrames, ChatAnswer)

    async def complete(self, http: HttpRequest) -> Response:
        """Continue one or several texts."""
        return await self._answer(http, self._completion, CompletionFrames, CompletionAnswer)

    async def _answer(
        self, http: HttpRequest, translate: Translate, frames: type[Frames], answer: type[Answer]
    ) -> Response:
        account = account_of(http)
        account.enter(self._clock.now())
        call = await self._intake.take(http, partial(translate, account))
        if account.quota is not None:
            account.quota.read(call.n_prompt, self._clock.now())
        return self._reply(call, account, frames, answer)

    # -- in a thread of the intake

    def _chat(self, account: Account, raw: bytes, gone: Gone) -> Call:
        body = parse(ChatBody, raw)
        source = source_of(self._fleet, body.model, account)
        card, words = source.card, source.words
        self._check(body, source, n_prompts=1)
        if len(body.messages) > card.n_ctx_slot:  # each has a token at least
            raise self._too_long(len(body.messages), body, card)
        found = prompt_of(body, words, strict=self._settings.strict, images=card.images)
        source.account.ignore(found.ignored)
        # The template writes the model's opening tokens itself.
        tokenize = partial(self._tokenize, body=body, source=source, gone=gone, add_special=False)
        prompt = tokens_of(found.text, found.images, tokenize)
        origin = replace(
            self._origin("chat", source, body),
            grammar=self._chat_grammar(body, source, found),
            speech=found.speech,
            shown_tokens=found.shown_tokens,
            reasoning_budget=found.budget,
            images=in_order(found.text, found.images) if found.images else (),
        )
        return chat_call(body, prompt, origin)

    def _completion(self, account: Account, raw: bytes, gone: Gone) -> Call:
        body = parse(CompletionBody, raw)
        source = source_of(self._fleet, body.model, account)
        card, words = source.card, source.words
        prompts = prompts_of(body)
        self._check(body, source, n_prompts=len(prompts))
        tokens, echoes = [], []
        for prompt in prompts:
            if isinstance(prompt, str):
                tokens.append(self._tokenize(prompt, body, source, gone, add_special=True))
                echoes.append(prompt if body.echo else "")
            else:
                if len(prompt) > card.n_ctx_slot:
                    raise self._too_long(len(prompt), body, card)
                check_tokens(prompt, card.n_vocab, "prompt")
                tokens.append(prompt)
                echoes.append(words.detokenize(prompt, gone=gone) if body.echo else "")
        origin = self._origin("text_completion", source, body)
        return completion_call(body, tokens, echoes, replace(origin, grammar=self._grammar(body, source)))

    def _tokenize(
        self, text: str, body: GenerationBody, source: Source, gone: Gone, *, add_special: bool
    ) -> list[int]:
        try:
            return source.words.tokenize(
                text, add_special=add_special, parse_special=True, n_most=source.card.n_ctx_slot, gone=gone
            )
        except TooManyTokensError as error:
            raise self._too_long(error.n_least, body, source.card) from None

    @staticmethod
    def _too_long(n_least: int, body: GenerationBody, card: ModelCard) -> PromptTooLongError:
        return PromptTooLongError(n_least, asked_max_tokens(body) or 1, card.n_ctx_slot, True)

    def _check(self, body: GenerationBody, source: Source, *, n_prompts: int) -> None:
        source.account.ignore(judge_fields(body.model_extra, strict=self._settings.strict))
        if body.stream_options is not None:
            source.account.ignore(judge_fields(body.stream_options.model_extra, strict=self._settings.strict))
        n_of(body, n_prompts)  # too many answers are refused before anything is tokenised for them

    def _grammar(self, body: GenerationBody, source: Source) -> Grammar | None:
        """Return what the answer must look like. What of it is not held is refused or named to the client."""
        if (constraint := constraint_of(body)) is None:
            return None
        param, kind, text, strict, compact = constraint
        grammar, ignored = check(param, kind, text, strict=strict or self._settings.strict, compact=compact)
        source.account.ignore(ignored)
        return grammar

    def _chat_grammar(self, body: ChatBody, source: Source, found: ChatPrompt) -> Grammar | None:
        """Do the same for an answer that may reason before it, or call tools."""
        answer, offer, words = self._grammar(body, source), found.offer, source.words
        if not offer.callable:
            if answer is None or words.form.plain:
                return answer
            text = after_reasoning(words.form, found.end, answer.text, special=words.markers)
            return answer._replace(text=text)
        held = call_grammar(
            words.form,
            offer.callable,
            check=self._check_schema,
            special=words.markers,
            prompt=found.end,
            required=offer.required,
            parallel=offer.parallel,
            answer=None if answer is None else answer.text,
        )
        if held is None:
            return None
        source.account.ignore(held.ignored)
        return Grammar(held.text, "tools", held.triggers, held.heads)

    def _check_schema(self, param: str, kind: Kind, text: str, *, strict: bool = False) -> Checked:
        return check(param, kind, text, strict=strict or self._settings.strict)

    def _origin(self, operation: str, source: Source, body: GenerationBody) -> Origin:
        span = source.account.span
        return Origin(
            call_id=f"{PREFIXES[operation]}-{uuid.uuid4().hex}",
            created=self._clock.unix(),
            card=source.card,
            settings=self._settings,
            received_s=source.account.received_s,
            holder=source.account.holder,
            bad_words=bad_words_of(body, source.words),
            trace=None if span is None else span.link(operation, body.model or source.card.model_id),
        )

    def _reply(self, call: Call, account: Account, frames: type[Frames], answer: type[Answer]) -> Reply:
        model = self._fleet.find(call.model)
        if not call.stream:
            return WholeReply(model, call, account, answer(call), clock=self._clock)
        return StreamReply(
            model,
            call,
            account,
            frames(call),
            clock=self._clock,
            min_gap_s=self._settings.min_stream_gap_s,
        )
