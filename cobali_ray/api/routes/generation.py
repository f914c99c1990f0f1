"""Generation: a body -> the engine's answer. POST /v1/chat/completions and /v1/completions.

Other APIs read their bodies into these two, and write the answers in their own words (`Dialect`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from fastapi import Request as HttpRequest
from fastapi import Response

from cobali_ray.api.body.constraint import constraint_of
from cobali_ray.api.body.fields import judge, read_as
from cobali_ray.api.body.images import in_order, tokens_of, with_media_marks
from cobali_ray.api.body.params import n_of, requested_max_tokens, whole_number
from cobali_ray.api.body.reading import check_choice
from cobali_ray.api.body.schema import ChatBody, CompletionBody, GenerationBody
from cobali_ray.api.call.intake import Intake, Source, Work, source_of, tokens_of_prompt
from cobali_ray.api.call.judges import Verdicts
from cobali_ray.api.call.programs import HINT_HEADERS, program_of
from cobali_ray.api.call.prompt import ChatPrompt, prompt_of
from cobali_ray.api.call.translate import (
    Call,
    Origin,
    bad_words_of,
    call_of,
    check_tokens,
    prompts_of,
)
from cobali_ray.api.door.clock import ApiClock
from cobali_ray.api.door.context import RequestContext, context_of
from cobali_ray.api.engines.fleet import Fleet, ServedModel
from cobali_ray.api.reply.answer import Writer
from cobali_ray.api.reply.replies import StreamReply, WholeReply, json_response
from cobali_ray.api.reply.sse import ChatWriter, CompletionWriter
from cobali_ray.api.reply.streams import RecordedReply, StreamRecordings
from cobali_ray.api.routes.openapi import Routes, content, errors, generation_responses, query
from cobali_ray.backend.grammar import CheckedGrammar, Kind, check
from cobali_ray.chat.call_grammar import after_reasoning, call_grammar
from cobali_ray.core.request.request import Grammar
from cobali_ray.errors import (
    Field,
    PromptTooLongError,
    UnsupportedParameterError,
    WrongTaskError,
    dotted,
)
from cobali_ray.settings import ApiSettings


class Dialect(NamedTuple):
    """How an API writes the answer to a call."""

    id_prefix: str
    writer: Callable[[Call], Writer]
    call_id: str = ""
    """The id that the answer has already, and since when it is under way; "": neither."""
    created: int = 0


SUPERSEDES_HEADER = "x-cobali-supersedes"
"""Asks for what the field `supersedes` does, where an API has no such field."""
PROGRESS_HEADER = "x-cobali-progress"
"""Asks for what `return_progress` and `return_queue_progress` do, in every API."""
CHAT = Dialect("chatcmpl-", ChatWriter)
COMPLETION = Dialect("cmpl-", CompletionWriter)


class ParsedBody(NamedTuple):
    body: ChatBody | CompletionBody
    dialect: Dialect
    before: tuple[int, ...] = ()
    """Tokens that a chat's prompt goes on from."""


class ReadCall(NamedTuple):
    """What a body asks, of which model, and how the answer is written."""

    call: Call
    dialect: Dialect
    model: ServedModel


Read = Work[ParsedBody]
"""Reads a body, in a thread of the intake. It judges the fields that it does not know."""


class TokenizedPrompt(NamedTuple):
    text: str
    tokens: Sequence[int]


_AFTER = query(
    "after",
    "The id of the last event received; the header `Last-Event-ID` means the same.",
    type="integer",
    minimum=0,
    default=0,
)


class Generation:
    """All that asks the engine for tokens goes through `answer`."""

    def __init__(
        self, fleet: Fleet, settings: ApiSettings, clock: ApiClock, intake: Intake, streams: StreamRecordings
    ) -> None:
        self._fleet, self._settings, self._clock, self._intake = fleet, settings, clock, intake
        self._streams = streams
        self.read_chat: Read = partial(self._read_own, ChatBody, CHAT)
        """Reads the body of a chat as OpenAI has it."""

    def routes(self) -> Routes:
        routes = Routes("generation")
        routes.post("/v1/chat/completions", self.chat, ChatBody, generation_responses())
        routes.post("/v1/completions", self.complete, CompletionBody, generation_responses())
        routes.add(
            "GET",
            "/v1/streams/{stream_id}",
            self.read_on,
            response_class=Response,
            responses=content("text/event-stream", "The events after `after`, then new ones as they come.")
            | errors(400, 401, 404, 500),
            openapi_extra={"parameters": [_AFTER]},
        )
        stopped = content("application/json", "Its `id`, and `stopped`: false if it had already ended.")
        wrong = errors(401, 404, 500)
        routes.add("DELETE", "/v1/streams/{stream_id}", self.stop, responses=stopped | wrong)
        return routes

    async def chat(self, http: HttpRequest) -> Response:
        """Create a chat completion: the next message of a chat."""
        return await self.answer(http, self.read_chat)

    async def complete(self, http: HttpRequest) -> Response:
        """Create a completion: the continuation of one or several texts."""
        return await self.answer(http, partial(self._read_own, CompletionBody, COMPLETION))

    async def read_on(self, http: HttpRequest, stream_id: str) -> Response:
        """Resume a resumable stream after the last event received."""
        context = context_of(http)
        context.stream = True
        last = http.query_params.get("after") or http.headers.get("last-event-id") or "0"
        after = whole_number(last, "after", low=0, high=2**63 - 1)
        return await self._streams.resumed(stream_id, context.caller, after)

    async def stop(self, http: HttpRequest, stream_id: str) -> Response:
        """Stop the answer of a resumable stream, and delete its stored events."""
        stopped = await self._streams.stop(stream_id, context_of(http).caller)
        return json_response({"id": stream_id, "object": "stream", "stopped": stopped})

    async def answer(self, http: HttpRequest, read: Read) -> Response:
        """Answer a body of any API. Raises what is wrong with it, and what keeps the engine from it."""
        return self.reply(await self.take(http, read), context_of(http))

    async def take(self, http: HttpRequest, read: Read) -> ReadCall:
        """Return what a body of any API asks, counted against its key's limits."""
        context = context_of(http)
        context.path = http.url.path
        context.supersedes = _asks(http, SUPERSEDES_HEADER)
        context.progress = _asks(http, PROGRESS_HEADER)
        context.hints = tuple([http.headers.get(name, "") for name in HINT_HEADERS])
        context.admit(self._clock.now())
        read_call = await self._intake.take(http, partial(self._translated, read))
        context.count_prompt(read_call.call.n_prompt, self._clock.now())
        return read_call

    async def prompt(self, http: HttpRequest, read: Read) -> TokenizedPrompt:
        """Return what a chat's body would have the model continue, and ask nothing of the engine.

        Raises what the chat would be refused for, except for tool schemas, which take time to compile.
        """
        return await self._intake.take(http, partial(self._prompted, read))

    # -- in a thread of the intake

    def _read_own(
        self,
        shape: type[ChatBody | CompletionBody],
        dialect: Dialect,
        context: RequestContext,
        raw: bytes,
    ) -> ParsedBody:
        """Read a body as OpenAI has it."""
        body = read_as(shape, context, raw, strict=self._settings.strict)
        if body.stream_options is not None:
            context.ignore(judge(body.stream_options.model_extra, strict=self._settings.strict))
        return ParsedBody(body, dialect)

    def _read(self, read: Read, context: RequestContext, raw: bytes) -> tuple[ParsedBody, Source]:
        context.named = dotted  # a body may be read again
        parsed = read(context, raw)
        source = source_of(self._fleet, parsed.body.model, context)
        if not source.card.generates:
            raise WrongTaskError(source.card.model_id, "generates no text; ask /v1/embeddings or /v1/rerank")
        return parsed, source

    def _translated(self, read: Read, context: RequestContext, raw: bytes) -> ReadCall:
        (body, dialect, before), source = self._read(read, context, raw)
        if isinstance(body, ChatBody):
            return ReadCall(self._chat(body, source, dialect, before), dialect, source.model)
        return ReadCall(self._completion(body, source, dialect), dialect, source.model)

    def _prompted(self, read: Read, context: RequestContext, raw: bytes) -> TokenizedPrompt:
        (body, dialect, _), source = self._read(read, context, raw)
        if not isinstance(body, ChatBody):
            raise TypeError("only chats have a prompt that is rendered")
        prompt = self._chat_prompt(body, source)
        origin = self._origin("chat", dialect, source, body, grammar=self._grammar(body, source))
        tokens = self._chat_tokens(prompt, body, source)
        call_of(body, [tokens], origin)  # for what it refuses
        return TokenizedPrompt(with_media_marks(prompt.text), tokens)

    # What may have to wait for a verdict comes before the tokens: after the wait all is done again.

    def _chat_prompt(self, body: ChatBody, source: Source) -> ChatPrompt:
        if len(body.messages) > source.card.n_ctx_slot:  # each has a token at least
            raise PromptTooLongError(len(body.messages), _n_answer(body), source.card.n_ctx_slot, True)
        prompt = prompt_of(body, source.words, strict=self._settings.strict, images=source.card.images)
        source.context.ignore(prompt.ignored)
        if prompt.images and body.prompt_logprobs is not None:
            raise UnsupportedParameterError("prompt_logprobs", "is not supported for prompts with images")
        return prompt

    def _chat_tokens(self, prompt: ChatPrompt, body: ChatBody, source: Source) -> list[int]:
        def tokenize(text: str) -> list[int]:
            # The template writes the model's opening tokens itself.
            return tokens_of_prompt(source, text, _n_answer(body), add_special=False)

        return tokens_of(prompt.text, prompt.images, tokenize)

    def _chat(self, body: ChatBody, source: Source, dialect: Dialect, before: tuple[int, ...]) -> Call:
        n_of(body, 1)  # too many answers are refused before anything is tokenised for them
        check_tokens(before, source.card.n_vocab, "context")
        prompt = self._chat_prompt(body, source)
        origin = self._origin(
            "chat",
            dialect,
            source,
            body,
            grammar=self._chat_grammar(body, source, prompt),
            speech=prompt.speech,
            shown_tokens=prompt.shown_tokens,
            reasoning_budget=prompt.budget,
            images=in_order(prompt.text, prompt.images) if prompt.images else (),
            program=program_of(body, prompt.offer.tools, source.context.hints),
        )
        return call_of(body, [[*before, *self._chat_tokens(prompt, body, source)]], origin)

    def _completion(self, body: CompletionBody, source: Source, dialect: Dialect) -> Call:
        card, words, client_left = source.card, source.words, source.context.client_left
        prompts = prompts_of(body)
        n_of(body, len(prompts))
        grammar = self._grammar(body, source)
        tokens, echoes, starts = [], [], []
        for prompt in prompts:
            if isinstance(prompt, str):
                tokens.append(tokens_of_prompt(source, prompt, _n_answer(body), add_special=True))
                echoes.append(prompt if body.echo else "")
                if body.echo and body.logprobs is not None:
                    starts.append(_start(prompt, words.detokenize(tokens[-1], is_cancelled=client_left)))
            else:
                if len(prompt) > card.n_ctx_slot:
                    raise PromptTooLongError(len(prompt), _n_answer(body), card.n_ctx_slot, True)
                check_tokens(prompt, card.n_vocab, "prompt")
                tokens.append(prompt)
                echoes.append(words.detokenize(prompt, is_cancelled=client_left) if body.echo else "")
                starts.append(0)
        origin = self._origin("text_completion", dialect, source, body, grammar=grammar)
        return call_of(body, tokens, origin, echoes, starts if body.echo else ())

    def _grammar(self, body: GenerationBody, source: Source) -> Grammar | None:
        """Return what the answer must look like. What of it cannot be kept is refused or named to the client.

        Raises MustWait if it is not known yet whether it can be used.
        """
        verdicts = Verdicts(self._intake.judges, source.context.caller.tenant)
        grammar = self._requested_grammar(body, source, verdicts)
        verdicts.close()
        return grammar

    def _requested_grammar(self, body: GenerationBody, source: Source, verdicts: Verdicts) -> Grammar | None:
        if (constraint := constraint_of(body)) is None:
            return None
        path, kind, text, strict, compact = constraint
        strict = strict or self._settings.strict
        grammar, ignored = check(path, kind, text, strict=strict, compact=compact, judge=verdicts.judge)
        source.context.ignore(ignored)
        return grammar

    def _chat_grammar(self, body: ChatBody, source: Source, prompt: ChatPrompt) -> Grammar | None:
        """Do the same for an answer that may reason before it, or call tools."""
        verdicts = Verdicts(self._intake.judges, source.context.caller.tenant)
        answer, offer, words = self._requested_grammar(body, source, verdicts), prompt.offer, source.words
        if not offer.callable:
            verdicts.close()
            if answer is None or words.form.plain:
                return answer
            text = after_reasoning(words.form, prompt.end, answer.text, special=words.markers)
            return answer._replace(text=text)
        try:
            held = call_grammar(
                words.form,
                offer.tools,
                names={tool["function"]["name"] for tool in offer.callable},
                check=partial(self._check_schema, verdicts),
                special=words.markers,
                prompt=prompt.end,
                required=offer.required,
                parallel=offer.parallel,
                answer=None if answer is None else answer.text,
            )
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
            verdicts.close()  # what failed may be no schema: its verdict says so better
            raise
        verdicts.close()
        if held is None or (held.heads and prompt.speech is not None and prompt.speech.continues):
            return None  # what goes on with a text does not begin like a call
        source.context.ignore(held.ignored)
        return Grammar(held.text, "tools", held.triggers, held.heads)

    def _check_schema(
        self, verdicts: Verdicts, field: Field, kind: Kind, text: str, *, strict: bool = False
    ) -> CheckedGrammar:
        return check(field, kind, text, strict=strict or self._settings.strict, judge=verdicts.judge)

    def _origin(
        self, operation: str, dialect: Dialect, source: Source, body: GenerationBody, **more: Any
    ) -> Origin:
        span = source.context.span
        return Origin(
            call_id=dialect.call_id or f"{dialect.id_prefix}{uuid.uuid4().hex}",
            created=dialect.created or self._clock.unix(),
            card=source.card,
            settings=self._settings,
            context=source.context,
            bad_words=bad_words_of(body, source.words),
            turn_marks=source.words.turn_marks,
            trace=None if span is None else span.link(operation, body.model or source.card.model_id),
            **more,
        )

    def reply(self, read_call: ReadCall, context: RequestContext) -> Response:
        """Return the answer to a call."""
        call, dialect, model = read_call
        if not call.stream:
            return WholeReply(model, call, context, dialect.writer(call), clock=self._clock)
        reply = StreamReply(model, call, context, dialect.writer(call), clock=self._clock)
        if not call.resumable:
            return reply
        recorded = self._streams.has_room(context.caller.tenant)
        stored = recorded and call.stored and self._streams.has_room_to_store(context.caller)
        if not recorded or stored != call.stored:
            context.ignore(("resumable",))
        return (
            RecordedReply(self._streams, call.call_id, reply, context, stored=stored) if recorded else reply
        )


def _asks(http: HttpRequest, name: str) -> bool:
    """Return whether a header says true. Raises InvalidParameterError for what is neither that nor false."""
    value = http.headers.get(name, "false").lower()
    check_choice(name, value, ("true", "false"))
    return value == "true"


def _n_answer(body: GenerationBody) -> int:
    """Return how many tokens an answer needs at least, for the error of a prompt that is too long."""
    return max(requested_max_tokens(body) or 1, 1)


def _start(prompt: str, written: str) -> int:
    """Return where in a prompt its first token begins: below 0 where the tokens have more text in front.

    That is what the model wants there, or a space that its vocabulary puts before every text.
    """
    return len(prompt) - len(written) if written.endswith(prompt) else 0
