"""Numbers of a body -> SamplingParams and counts. Pure; ranges not checked here are the core's."""

from __future__ import annotations

from dataclasses import replace

from cobali_ray.api.body.schema import ChatBody, CompletionBody, GenerationBody
from cobali_ray.api.door.keys import Terms
from cobali_ray.core.plan.adapters import Adapter
from cobali_ray.core.request.request import MAX_TOP_LOGPROBS, TUNABLE, SamplingParams, tuned
from cobali_ray.core.views.stats import ModelCard
from cobali_ray.errors import InvalidParameterError, ModelNotAllowedError, UnsupportedParameterError
from cobali_ray.settings.api import MAX_PING_S

NO_LIMIT = -1
"""As `max_tokens`: llama-server's word for it, and Ollama's."""
MAX_CHOICES = 128
"""Answers of one HTTP request: prompts times `n`."""
MAX_PROMPT_VALUES = 1 << 19
"""Logprobs of prompts in one answer, alternatives among them: 15 to 40 MB of JSON."""


def sampling_of(
    body: GenerationBody,
    card: ModelCard,
    *,
    n_logprobs: int | None,
    bad_words: tuple[tuple[int, ...], ...] = (),
) -> SamplingParams:
    """Return how tokens are drawn; the card's defaults for what is absent. Raises InvalidParameterError."""
    chosen = {name: value for name in TUNABLE if (value := getattr(body, name)) is not None}
    if (penalty := _repetition_penalty(body)) is not None:
        chosen["repetition_penalty"] = penalty
    params = replace(
        tuned(card.sampling, chosen),
        logit_bias=_logit_bias(body.logit_bias or {}, card.n_vocab),
        seed=body.seed,
        top_n_sigma=max(body.top_n_sigma or 0.0, 0.0),  # -1 is how llama.cpp says "off"
        stop_token_ids=tuple(body.stop_token_ids or ()),
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        bad_words=bad_words,
        ignore_eos=bool(body.ignore_eos),
        min_tokens=0 if body.min_tokens is None else body.min_tokens,
        n_logprobs=n_logprobs,
    )
    params.check_tokens(card.n_vocab)
    return params


def adapter_of(body: GenerationBody, card: ModelCard, terms: Terms) -> Adapter | None:
    """Return the adapter that a body asks for, by the model's name or by `lora`; None: none.

    Raises InvalidParameterError for what is not served as an adapter here, and ModelNotAllowedError.
    """
    if not body.lora:
        return card.adapter
    if card.adapter is not None:
        raise InvalidParameterError(
            "lora", f"can only be sent with the model's own name, not with {card.model_id!r}"
        )
    scales: dict[int, float] = {}
    for i, lora in enumerate(body.lora):
        if not 0 <= lora.id < len(card.adapters):
            raise InvalidParameterError(
                ("lora", i, "id"), f": there is no adapter {lora.id}; GET /lora-adapters lists them"
            )
        own = card.adapters[lora.id]
        if lora.scale not in {0.0, own.scale}:
            raise InvalidParameterError(
                ("lora", i, "scale"),
                f": adapter {lora.id} has the scale {own.scale:g} here, or 0; got {lora.scale:g}",
            )
        scales[lora.id] = lora.scale
    chosen = [card.adapters[adapter_id] for adapter_id, scale in scales.items() if scale]
    if len(chosen) > 1:
        raise InvalidParameterError("lora", ": a request can use at most one adapter")
    if chosen and terms.models and chosen[0].name not in terms.models:
        raise ModelNotAllowedError(chosen[0].name)
    return chosen[0] if chosen else None


def chat_logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidParameterError("top_logprobs", "needs logprobs to be true")
    return None


def completion_logprobs(body: CompletionBody) -> int | None:
    return _n_top("logprobs", body.logprobs)


def prompt_logprobs(body: GenerationBody) -> int | None:
    """Return how many alternatives per token of the prompt `prompt_logprobs` asks for; None without."""
    n = _n_top("prompt_logprobs", body.prompt_logprobs)
    if n is not None and body.stream:
        message = "come with no stream; echo together with logprobs does"
        raise InvalidParameterError("prompt_logprobs", message)
    return n


def _n_top(param: str, n: int | None) -> int | None:
    if n is not None and not 0 <= n <= MAX_TOP_LOGPROBS:
        raise InvalidParameterError(param, f"must be in [0, {MAX_TOP_LOGPROBS}], got {n}")
    return n


def check_prompt_values(body: GenerationBody, n_tokens: int, n_each: int) -> None:
    """Raise InvalidParameterError where an answer would hold too many logprobs of prompts."""
    if n_tokens * n_each > MAX_PROMPT_VALUES:
        param = "logprobs" if body.prompt_logprobs is None else "prompt_logprobs"
        message = (
            f": {n_tokens} prompt tokens of all answers with {n_each} logprobs each are more than "
            f"{MAX_PROMPT_VALUES}; ask for fewer alternatives or send several requests"
        )
        raise InvalidParameterError(param, message)


def n_of(body: GenerationBody, n_prompts: int) -> int:
    n = 1 if body.n is None else body.n
    if n < 1:
        raise InvalidParameterError("n", f"must be at least 1, got {n}")
    if n * n_prompts > MAX_CHOICES:
        param = "n" if n > 1 else "prompt"
        message = f": {n_prompts} prompts times n={n} is more than {MAX_CHOICES} answers"
        raise InvalidParameterError(param, message)
    if isinstance(body, CompletionBody) and body.best_of not in (None, n):
        raise UnsupportedParameterError("best_of", f"must equal n ({n})")
    return n


def requested_max_tokens(body: GenerationBody) -> int | None:
    """Return the answer's length limit under either name, which may be NO_LIMIT; None if there is none."""
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidParameterError(
            "max_completion_tokens", f"{new} and max_tokens {old} contradict each other"
        )
    limit, param = (old, "max_tokens") if new is None else (new, "max_completion_tokens")
    if limit in {None, NO_LIMIT}:
        return limit
    may_be_zero = isinstance(body, CompletionBody) and (body.echo or body.prompt_logprobs is not None)
    if limit < (0 if may_be_zero else 1):
        raise InvalidParameterError(param, f"must be at least 1, or -1 for no limit, got {limit}")
    return limit


def wants_recording(body: GenerationBody) -> bool:
    """Say whether the stream may be read on after a cut. Raises where there is no stream."""
    if body.resumable and not body.stream:
        raise InvalidParameterError("resumable", "is only allowed when stream is true")
    return bool(body.resumable)


def ping_s(body: GenerationBody, otherwise_s: float) -> float:
    """Return after how many seconds of silence a stream has a comment; 0: never."""
    interval_s = body.sse_ping_interval
    if interval_s is None:
        return otherwise_s
    if not -1 <= interval_s <= MAX_PING_S:
        message = f"must be from 1 to {MAX_PING_S} seconds, or 0 or -1 for none, got {interval_s}"
        raise InvalidParameterError("sse_ping_interval", message)
    return float(max(interval_s, 0))


def whole_number(text: str, name: str, *, low: int, high: int) -> int:
    """Return a whole number that stands in a query or a header. Raises InvalidParameterError."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
        raise InvalidParameterError(name, f"must be a whole number from {low} to {high}")
    return int(text)


def wants_usage(body: GenerationBody) -> bool:
    """Say whether the stream closes with a usage chunk. Raises where there is no stream to close."""
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InvalidParameterError("stream_options", "is only allowed when stream is true")
    return bool(body.stream_options.include_usage)


def _repetition_penalty(body: GenerationBody) -> float | None:
    penalty, other = body.repetition_penalty, body.repeat_penalty
    if penalty is not None and other is not None and penalty != other:
        message = f"{other:g} and repetition_penalty {penalty:g} contradict each other"
        raise InvalidParameterError("repeat_penalty", message)
    return other if penalty is None else penalty


def _logit_bias(biases: dict[str, float], n_vocab: int) -> tuple[tuple[int, float], ...]:
    merged: dict[int, float] = {}
    for key, bias in biases.items():
        is_id = key.isascii() and key.isdigit() and len(key) <= len(str(n_vocab))
        if not is_id or int(key) >= n_vocab:
            message = f"has the key {key[:32]!r}; keys are token ids from 0 to {n_vocab - 1}"
            raise InvalidParameterError("logit_bias", message)
        merged[int(key)] = bias
    return tuple(merged.items())
