"""llama-server's bodies -> a CompletionBody. Pure, but for the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import ConfigDict, Field, PlainValidator

from cobali_ray.api.body.fields import NO_PENALTIES, SAMPLERS, without_idle
from cobali_ray.api.body.params import MAX_CHOICES, NO_LIMIT
from cobali_ray.api.body.reading import MISSING, model_of
from cobali_ray.api.body.schema import (
    MAX_BIASES,
    BodyModel,
    CheckedPrompt,
    CompletionBody,
    GenerationBody,
    Many,
    one_of,
)
from cobali_ray.api.body.texts import EmbeddingBody
from cobali_ray.api.call.intake import Source, tokens_of_prompt
from cobali_ray.api.call.translate import check_tokens
from cobali_ray.api.llama_server.infill import infilled
from cobali_ray.core.request.request import MAX_TOP_LOGPROBS
from cobali_ray.errors import (
    InvalidParameterError,
    NoInfillError,
    Path,
    PromptTooLongError,
    UnsupportedParameterError,
)

INFILL_SHARE = 8
MAX_FIELDS = 64
"""Names in `response_fields`."""
BANNED_BIAS = -100.0
"""The bias of a token that a client switches off with `false`."""
SPELLINGS = {"typical_p": "typ_p", "temp": "temperature"}
SWITCHED_OFF: Mapping[str, dict[str, Any]] = {
    "penalties": NO_PENALTIES,
    "top_n_sigma": {"top_n_sigma": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "temperature": {"temperature": 1.0},
}
"""What a sampler that is not in `samplers` amounts to."""
IDLE_WITHOUT: Mapping[str, tuple[str, ...]] = {
    "dry_multiplier": ("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    "dynatemp_range": ("dynatemp_exponent",),
    "mirostat": ("mirostat_eta", "mirostat_tau"),
    "xtc_probability": ("xtc_threshold",),
}
"""Fields that mean nothing while another is 0 or absent; most clients send all of them always."""
UNUSED_FIELDS = (
    *("n_cache_reuse", "n_discard", "n_indent", "n_keep"),
    *("t_max_predict_ms", "t_max_prompt_ms", "timings_per_token"),
)
"""Fields that are named as ignored where they ask for something."""

Part: TypeAlias = str | list[int]


class NativeBody(GenerationBody):
    """POST /completion."""

    prompt: Annotated[
        Any,
        PlainValidator(
            lambda value: value,
            json_schema_input_type=str | list[str | int | list[str | int] | dict[str, Any]] | dict[str, Any],
        ),
        Field(description="Text, tokens, a list that mixes both, {prompt_string}, or a list of these."),
    ] = None
    n_predict: int | None = Field(None, description="Maximum tokens; -1 and -2: as many as fit.")
    n_cmpl: int | None = Field(None, description="Answers per prompt.")
    n_probs: int | None = Field(None, description="Alternatives per token; 0: none.")
    logit_bias: Annotated[
        Any,
        PlainValidator(
            lambda value: value,
            json_schema_input_type=dict[str, float | bool] | list[list[int | str | float | bool]] | None,
        ),
        Field(description="[[token or text, bias or false], ...], or an object."),
    ] = None
    samplers: Many[str] | None = Field(None, description="The samplers to use; their order is fixed.")
    response_fields: list[str] | None = Field(
        None, max_length=MAX_FIELDS, description="Return only these fields; a/b is field b of a."
    )
    return_tokens: bool | None = Field(None, description="Return the tokens of the answer; default false.")
    post_sampling_probs: bool | None = Field(None, description="Must be false.")
    id_slot: int | None = Field(None, description="Must be -1: the scheduler chooses slots.")


class InfillExtra(BodyModel):
    """A file that belongs to the one that is written."""

    text: str
    filename: str | None = None


class InfillBody(NativeBody):
    """POST /infill."""

    input_prefix: str | None = Field(None, description="The text before the gap.")
    input_suffix: str | None = Field(None, description="The text after the gap.")
    input_extra: list[dict[str, Any]] | None = Field(
        None, max_length=1024, description="Other files: {filename, text}."
    )


class NativeEmbeddingBody(BodyModel):
    """POST /embedding and /embeddings."""

    model_config = ConfigDict(json_schema_extra=one_of("input", "content"))
    model: str | None = Field(None, description="One of the served names; optional if there is only one.")
    input: CheckedPrompt | None = Field(
        None, description="One text or up to 2,048, as strings or as token ids."
    )
    content: CheckedPrompt | None = Field(None, description="Another name for input.")
    embd_normalize: int | None = Field(None, description="Must be 2: vectors have length 1.")


class ParsedNativeBody(NamedTuple):
    body: CompletionBody
    prompts: tuple[str, ...]
    """As texts."""
    silent: bool
    """Only the cache is to be filled."""
    response_fields: tuple[str, ...]


def unknown_fields(body: NativeBody) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields that are to be judged by name, and names that have no effect here.

    What has none in any server is in neither.
    """
    extra, ignored = without_idle(body)
    for field in UNUSED_FIELDS:
        if extra.get(field) in (0, -1):  # False is 0
            del extra[field]
    for switch, fields in IDLE_WITHOUT.items():
        if not extra.get(switch):
            for field in fields:
                extra.pop(field, None)
    return extra, ignored


def completion_of(body: NativeBody, source: Source) -> ParsedNativeBody:
    """Return the completion that a body asks for. Raises BadRequestError."""
    n_predict = body.n_predict
    if n_predict is not None and n_predict < -2:
        raise InvalidParameterError("n_predict", f"must be at least -2, got {n_predict}")
    if body.id_slot not in (None, -1):
        raise UnsupportedParameterError("id_slot", "must be -1: the scheduler chooses the slot")
    n_probs = body.n_probs or 0
    if n_probs and body.post_sampling_probs:
        raise UnsupportedParameterError(
            "post_sampling_probs", "is not supported: n_probs returns the model's own"
        )
    if not 0 <= n_probs <= MAX_TOP_LOGPROBS:
        raise InvalidParameterError("n_probs", f"must be in [0, {MAX_TOP_LOGPROBS}], got {n_probs}")
    reader = _NativeReader(source, _room_for_answer(body, source.card.n_ctx_slot))
    parts = reader.infill(body) if isinstance(body, InfillBody) else reader.prompts(body.prompt)
    requested, param = (body.n, "n") if body.n_cmpl is None else (body.n_cmpl, "n_cmpl")
    n = 1 if requested is None else requested
    if not 1 <= n * len(parts) <= MAX_CHOICES:
        param = param if n != 1 else "prompt"
        raise InvalidParameterError(param, f": 1 to {MAX_CHOICES} answers, got {n * len(parts)}")
    prompts = tuple(part if isinstance(part, str) else reader.text(part) for part in parts)
    values: dict[str, Any] = {name: getattr(body, name) for name in GenerationBody.model_fields}
    if body.samplers is not None:
        values |= _only(body.samplers)
    if n_predict is not None:
        values["max_tokens"] = NO_LIMIT if n_predict < 0 else max(n_predict, 1)
        values["max_completion_tokens"] = None
    values["logit_bias"] = reader.biases(body.logit_bias)
    values["seed"] = None if body.seed == -1 else body.seed
    values["grammar"] = body.grammar or None  # llama-server's default is an empty one
    values["n"] = n
    values["return_token_ids"] = body.return_tokens or body.return_token_ids
    values["logprobs"] = n_probs or None
    # All texts, or all tokens: a body has no third kind of list.
    values["prompt"] = list(parts) if all(isinstance(part, str) for part in parts) else reader.tokens(parts)
    return ParsedNativeBody(
        body=CompletionBody.model_construct(**values),
        prompts=prompts,
        silent=n_predict == 0,
        response_fields=tuple(body.response_fields or ()),
    )


def _room_for_answer(body: NativeBody, n_ctx: int) -> int:
    """Return how many tokens a prompt that is cut leaves for its answer: the limit, else an eighth."""
    limits = (body.n_predict, body.max_completion_tokens, body.max_tokens)
    return next((limit for limit in limits if limit is not None and limit > 0), n_ctx // INFILL_SHARE)


def _only(samplers: list[str]) -> dict[str, Any]:
    """Return fields that switch off the samplers that are not named. Raises UnsupportedParameterError."""
    named = [SPELLINGS.get(name, name) for name in samplers]
    used = [name for name in named if name in SAMPLERS]
    if used != sorted(set(used), key=SAMPLERS.index):
        raise UnsupportedParameterError(
            "samplers", f"must be in this order, each at most once: {', '.join(SAMPLERS)}"
        )
    off: dict[str, Any] = {}
    for name in SAMPLERS:
        if name not in used:
            off |= SWITCHED_OFF[name]
    return off


def embedding_of(body: NativeEmbeddingBody) -> tuple[EmbeddingBody, str]:
    texts, param = (body.content, "content") if body.input is None else (body.input, "input")
    if texts is None or (body.input is not None and body.content is not None):
        raise InvalidParameterError("content", ": exactly one of content and input is needed")
    if body.embd_normalize not in (None, 2):
        raise UnsupportedParameterError("embd_normalize", "must be 2: vectors have length 1")
    return EmbeddingBody.model_construct(model=body.model, input=texts), param


class _NativeReader:
    def __init__(self, source: Source, n_predict: int) -> None:
        self._words, self._card, self._n_predict = source.words, source.card, n_predict
        self._source, self._gone = source, source.context.client_left

    def prompts(self, value: Any) -> list[Part]:
        if value is None:
            raise InvalidParameterError("prompt", MISSING)
        many = isinstance(value, list) and not any(type(part) is int for part in value)
        if not many:
            return [self._prompt(value, ("prompt",))]
        if not 0 < len(value) <= MAX_CHOICES:
            raise InvalidParameterError("prompt", f"must hold 1 to {MAX_CHOICES} prompts")
        return [self._prompt(prompt, ("prompt", index)) for index, prompt in enumerate(value)]

    def infill(self, body: InfillBody) -> list[Part]:
        marks = self._words.infill
        if marks is None:
            raise NoInfillError(self._card.model_id)
        line = body.prompt if body.prompt is not None else ""
        if not isinstance(line, str):
            raise InvalidParameterError("prompt", "must be a string")
        extra = [
            model_of(InfillExtra, raw, ("input_extra", index))
            for index, raw in enumerate(body.input_extra or [])
        ]
        room = self._card.n_ctx_slot - self._n_predict

        def tokenize(text: str) -> list[int]:
            return self._words.tokenize(text, add_special=False, parse_special=False, is_cancelled=self._gone)

        files = [(file.filename or "tmp", file.text) for file in extra]
        texts = (body.input_prefix or "", line, body.input_suffix or "")
        tokens = infilled(marks, texts, files, tokenize=tokenize, n_most=room)
        if tokens is None:
            raise PromptTooLongError(room + 1, self._n_predict, self._card.n_ctx_slot, True)
        return [tokens]

    def text(self, part: list[int]) -> str:
        check_tokens(part, self._card.n_vocab, "prompt")
        return self._words.detokenize(part, is_cancelled=self._gone)

    def tokens(self, parts: list[Part]) -> list[list[int]]:
        return [self._tokenize(part, add_special=True) if isinstance(part, str) else part for part in parts]

    def biases(self, value: Any) -> dict[str, float] | None:
        """Return biases by token id, as OpenAI has them; a text stands for each of its tokens."""
        if not value:
            return None
        pairs = list(value.items()) if isinstance(value, dict) else value
        if not isinstance(pairs, list) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
            raise InvalidParameterError("logit_bias", "must be an object or a list of pairs")
        if len(pairs) > MAX_BIASES:
            raise InvalidParameterError(
                "logit_bias", f"must have at most {MAX_BIASES} entries, got {len(pairs)}"
            )
        biases: dict[str, float] = {}
        for key, raw_bias in pairs:
            bias = BANNED_BIAS if raw_bias is False else raw_bias
            if isinstance(bias, bool) or not isinstance(bias, int | float):
                raise InvalidParameterError("logit_bias", ": a bias must be a number or false")
            if isinstance(key, str) and not (isinstance(value, dict) and key.isdecimal()):
                ids = self._words.tokenize(key, add_special=False, parse_special=False, n_most=MAX_BIASES)
            else:
                ids = [key]
            biases |= {str(token): float(bias) for token in ids}
        return biases

    def _prompt(self, value: Any, where: Path) -> Part:
        if isinstance(value, dict):
            if value.get("multimodal_data"):
                raise UnsupportedParameterError((*where, "multimodal_data"), "is not supported on this route")
            value = value.get("prompt_string")
            where = (*where, "prompt_string")
        if isinstance(value, str):
            return value
        if not isinstance(value, list) or not value:
            raise InvalidParameterError(where, "must be a string or a list of strings and token ids")
        tokens: list[int] = []
        for index, part in enumerate(value):
            if isinstance(part, str):
                tokens += self._tokenize(part, add_special=index == 0)
            elif type(part) is int:
                tokens.append(part)
            else:
                raise InvalidParameterError((*where, index), ": neither text nor a token id")
            if len(tokens) > self._card.n_ctx_slot:
                raise PromptTooLongError(len(tokens), self._n_predict, self._card.n_ctx_slot, True)
        return tokens

    def _tokenize(self, text: str, *, add_special: bool) -> list[int]:
        return tokens_of_prompt(self._source, text, self._n_predict, add_special=add_special)
