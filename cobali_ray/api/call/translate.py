"""A body -> a Call: the engine's requests and how to answer them. Pure: ids, time and tokens are given."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cobali_ray.api.body.params import (
    NO_LIMIT,
    adapter_of,
    chat_logprobs,
    check_prompt_values,
    completion_logprobs,
    n_of,
    ping_s,
    prompt_logprobs,
    requested_max_tokens,
    sampling_of,
    wants_recording,
    wants_usage,
)
from cobali_ray.api.body.schema import ChatBody, CompletionBody, GenerationBody
from cobali_ray.api.call.prompt import Speech
from cobali_ray.api.door.context import RequestContext
from cobali_ray.api.door.keys import Terms, own_salt
from cobali_ray.backend.port import Words
from cobali_ray.backend.turn_marks import turns_of
from cobali_ray.core.queue.admission import fit
from cobali_ray.core.request.media import Image
from cobali_ray.core.request.request import (
    MAX_BAD_WORDS,
    MAX_STOP_CHARS,
    Grammar,
    Program,
    ReasoningBudget,
    Request,
    TraceLink,
)
from cobali_ray.core.views.stats import ModelCard
from cobali_ray.errors import Field, InvalidParameterError
from cobali_ray.settings import ApiSettings

PROMPT_PROGRESS: Final = "prompt_progress"
QUEUE_PROGRESS: Final = "queue_progress"
"""How much of a prompt is computed, and where in the queue a request is, in what clients get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request, translated."""

    call_id: str
    created: int
    model: str
    fingerprint: str
    requests: tuple[Request, ...]
    """One per choice, prompt-major: choice i answers prompt i // n."""
    n: int
    echoes: tuple[str, ...]
    """Per choice, the text that stands in front of the answer."""
    stream: bool
    include_usage: bool
    with_logprobs: bool
    resumable: bool = False
    stored: bool = False
    """If resumable: whether it goes on without a reader, and is stored."""
    progress: tuple[str, ...] = ()
    """What is reported of requests without a token: `prompt_progress`, `queue_progress`, both or neither."""
    ping_s: float = 0.0
    """How long a stream may be silent; 0: as long as it takes."""
    n_echo_logprobs: int | None = None
    """How many alternatives tokens of the prompt have in the logprobs; None: only the answer has logprobs."""
    echo_starts: tuple[int, ...] = ()
    """If some: per choice, where in the echo the first token begins; below 0 if the echo lacks its text."""
    n_prompt_logprobs: int | None = None
    """How many alternatives `prompt_logprobs` has per token; None without."""
    return_token_ids: bool = False
    prompt_only: bool = False
    """No engine is asked: echo with max_tokens 0 and without logprobs."""
    speech: Speech | None = None
    """How the answers are taken apart; None where they are text and nothing else."""

    def prompt_token_ids(self, choice: int) -> Sequence[int] | None:
        """Return the tokens of a choice's prompt; None where images stand between them, which have none."""
        request = self.requests[choice]
        return None if request.images else request.prompt

    @property
    def n_prompt(self) -> int:
        """Prompt tokens, each prompt counted once however many answers it gets."""
        return sum(request.n_prompt for request in self.requests[:: self.n])


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a call needs beside its body and its tokens."""

    call_id: str
    created: int
    card: ModelCard
    settings: ApiSettings
    context: RequestContext
    trace: TraceLink | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Those of the body, as tokens."""
    grammar: Grammar | None = None
    speech: Speech | None = None
    reasoning_budget: ReasoningBudget | None = None
    shown_tokens: tuple[int, ...] = ()
    images: tuple[Image, ...] = ()
    """What stands where the prompt has negative ids."""
    turn_marks: frozenset[int] = frozenset()
    """Tokens that turns begin with."""
    program: Program | None = None
    """The agent's task that it is part of."""


def bad_words_of(body: GenerationBody, words: Words) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each bad word, as it stands at the beginning of a text and behind a space."""
    texts = body.bad_words or []
    if len(texts) > MAX_BAD_WORDS or any(len(text) > MAX_STOP_CHARS for text in texts):
        most = f": at most {MAX_BAD_WORDS} bad words of {MAX_STOP_CHARS} characters"
        raise InvalidParameterError("bad_words", most)
    if not all(text.strip() for text in texts):
        raise InvalidParameterError("bad_words", ": a bad word must not be empty")
    forms = dict.fromkeys(form for text in texts for form in (text, f" {text.lstrip()}"))
    tokens = (tuple(words.tokenize(form, add_special=False, parse_special=False)) for form in forms)
    return tuple(dict.fromkeys(tokens))


def priority_of(requested: int | None, terms: Terms) -> int:
    """Return the class of a request. Raises InvalidParameterError for a better one than its key allows."""
    if requested is None:
        return terms.priority
    if requested < terms.best:
        message = f"must be {terms.best} or a higher number with this key, got {requested}"
        raise InvalidParameterError("priority", message)
    return requested


def fingerprint(card: ModelCard) -> str:
    """Return a name for the model file behind the answers."""
    return f"fp_{zlib.crc32(f'{card.model_id}:{card.created_s}:{card.n_vocab}'.encode()):08x}"


def prompts_of(body: CompletionBody) -> list[str | list[int]]:
    """Return the prompts, one element each, whichever of the four shapes the client used."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


def check_tokens(tokens: Sequence[int], n_vocab: int, field: Field) -> None:
    for token in tokens:
        if not 0 <= token < n_vocab:
            raise InvalidParameterError(field, f": token id {token} is not in [0, {n_vocab - 1}]")


def call_of(
    body: ChatBody | CompletionBody,
    prompts: Sequence[Sequence[int]],
    origin: Origin,
    echoes: Sequence[str] = ("",),
    echo_starts: Sequence[int] = (),
) -> Call:
    """Return the call of a body whose prompts have these tokens; a chat has one prompt.

    `echoes` and `echo_starts` are one per prompt; see `Call`.
    """
    card, settings, context = origin.card, origin.settings, origin.context
    caller = context.caller
    n_logprobs = chat_logprobs(body) if isinstance(body, ChatBody) else completion_logprobs(body)
    n = n_of(body, len(prompts))
    n_echoed = n_logprobs if isinstance(body, CompletionBody) and body.echo else None
    n_scored = max([k for k in (n_echoed, prompt_logprobs(body)) if k is not None], default=None)
    if n_scored is not None:
        check_prompt_values(body, n * sum(map(len, prompts)), 1 + n_scored)
    sampling = sampling_of(body, card, n_logprobs=n_logprobs, bad_words=origin.bad_words)
    max_tokens = requested_max_tokens(body)
    prompt_only = max_tokens == 0 and n_scored is None
    if prompt_only:
        max_tokens = 1  # no engine will see it
    timeout_s = settings.default_timeout_s if body.timeout_s is None else body.timeout_s
    salt = _cache_salt(body, caller.salt)
    terms, priority = caller.terms, priority_of(body.priority, caller.terms)
    adapter = adapter_of(body, card, terms)
    n_choices = n * len(prompts)
    supersedes = ""
    if body.supersedes or context.supersedes:
        supersedes = "\n".join((caller.tenant, context.path, body.user or ""))
    reports = {PROMPT_PROGRESS: body.return_progress, QUEUE_PROGRESS: body.return_queue_progress}
    progress = tuple(name for name, requested in reports.items() if requested or context.progress)
    requests: list[Request] = []
    for prompt in map(tuple, prompts):
        turns = turns_of(prompt, origin.turn_marks)
        begins = None if adapter is None else adapter.begins(prompt)
        for answer in range(n):
            # Counted per prompt, so that a prompt is answered the same alone and in a list.
            seed = None if sampling.seed is None else sampling.seed + answer
            request = fit(
                Request(
                    request_id=origin.call_id if n_choices == 1 else f"{origin.call_id}-{len(requests)}",
                    prompt=prompt,
                    max_tokens=_max_tokens(max_tokens, len(prompt), card, settings, terms.max_tokens),
                    sampling=sampling if seed == sampling.seed else replace(sampling, seed=seed),
                    stop=body.stop,
                    include_stop=bool(body.include_stop_str_in_output),
                    grammar=origin.grammar,
                    shown_tokens=origin.shown_tokens,
                    reasoning_budget=origin.reasoning_budget,
                    # One answer of each prompt asks for them; they are the same for all.
                    n_prompt_logprobs=None if answer else n_scored,
                    timeout_s=timeout_s,
                    supersedes=supersedes,
                    progress=bool(progress),
                    trace=origin.trace,
                    model=card.model_id if adapter is None else adapter.name,
                    x_request_id=context.request_id,
                    cache_salt=salt,
                    adapter="" if adapter is None or begins is None else adapter.key,
                    n_plain=begins or 0,
                    received_s=context.received_s,
                    tenant=caller.tenant,
                    weight=terms.weight,
                    priority=priority,
                    images=origin.images,
                    turns=turns,
                    program=origin.program,
                ),
                card.n_ctx_slot,
            )
            if sampling.min_tokens > request.max_tokens:
                raise InvalidParameterError(
                    "min_tokens",
                    ("min_tokens",),
                    f" {sampling.min_tokens} is more than ",
                    ("max_tokens",),
                    f", here {request.max_tokens}",
                )
            requests.append(request)
    return Call(
        call_id=origin.call_id,
        created=origin.created,
        model=card.model_id,
        fingerprint=fingerprint(card),
        requests=tuple(requests),
        n=n,
        echoes=tuple(echoes[choice // n] for choice in range(n_choices)),
        stream=bool(body.stream),
        include_usage=wants_usage(body),
        with_logprobs=n_logprobs is not None,
        resumable=wants_recording(body),
        stored=body.resumable == "stored",
        progress=progress,
        ping_s=ping_s(body, settings.sse_ping_interval),
        n_echo_logprobs=n_echoed,
        echo_starts=tuple([start for start in echo_starts for _ in range(n)]),
        n_prompt_logprobs=body.prompt_logprobs,
        return_token_ids=bool(body.return_token_ids),
        prompt_only=prompt_only,
        speech=origin.speech,
    )


def _cache_salt(body: GenerationBody, key_salt: str) -> str | None:
    if body.cache_prompt is False:
        return None
    return key_salt if body.cache_salt is None else own_salt(body.cache_salt, key_salt)


def _max_tokens(
    requested: int | None, n_prompt: int, card: ModelCard, settings: ApiSettings, key_limit: int | None
) -> int:
    if requested is None:
        limit = settings.default_max_tokens or card.n_ctx_slot - n_prompt
    elif requested == NO_LIMIT:
        limit = card.n_ctx_slot - n_prompt
    elif requested == 0:
        return 0
    else:
        limit = requested
    limit = max(limit, 1)
    return limit if key_limit is None else min(limit, key_limit)
