"""The OpenAI wire models: shapes and kinds only, ranges are the core's to judge.

Strict: a bool is no number, a string is no number. null means absent. Fields not listed here end up in
`model_extra`, where `fields.py` judges them by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from cobali_ray.core.request.request import MAX_ALLOWED_TOKENS

MAX_BIASES = MAX_ALLOWED_TOKENS
"""More would be most of a vocabulary, and travel to the engine with every request."""

MAX_ADAPTERS = 256

MAX_SALT_CHARS = 256

MAX_CALLS = 128
"""Calls of one earlier turn. Some templates take seconds for twice as many."""

ItemT = TypeVar("ItemT")
Many: TypeAlias = Annotated[list[ItemT], Field(fail_fast=True)]
"""A list that reports its first wrong entry: an error for each would hold the interpreter for seconds."""
TokenId: TypeAlias = Annotated[int, Field(ge=0)]
Prompt: TypeAlias = str | list[str] | list[TokenId] | list[list[TokenId]]
NotEmpty: TypeAlias = Annotated[list[ItemT], Field(min_length=1)]
PromptSchema: TypeAlias = str | NotEmpty[str] | NotEmpty[TokenId] | NotEmpty[NotEmpty[TokenId]]
"""What the document says of a prompt; `_prompt` checks it."""


def _is_tokens(value: Any) -> bool:
    # `type is int`, because True is an int too.
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _prompt(value: Any) -> Prompt:
    # By hand and not a union of pydantic: that would collect one error per token of a wrong branch.
    if isinstance(value, str) or _is_tokens(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, list) and value:
        if all(isinstance(text, str) for text in value):
            return value
        if all(_is_tokens(tokens) for tokens in value):
            return value
    raise PydanticCustomError(
        "prompt",
        "must be a string, a list of strings, a list of token ids or a list of such lists, not empty",
    )


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return tuple(value)
    raise PydanticCustomError("stop", "must be a string or a list of strings")


def _content(value: Any) -> str | list[dict[str, Any]] | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        return value
    raise PydanticCustomError("content", "must be a string or a list of content parts")


CheckedPrompt: TypeAlias = Annotated[Prompt, PlainValidator(_prompt, json_schema_input_type=PromptSchema)]

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

Content: TypeAlias = Annotated[
    str | list[dict[str, Any]] | None,
    PlainValidator(_content, json_schema_input_type=str | list[dict[str, Any]] | None),
]
Stop: TypeAlias = Annotated[
    tuple[str, ...], PlainValidator(_stop, json_schema_input_type=str | list[str] | None)
]


def _messages(value: Any) -> list[dict[str, Any]]:
    # Each is checked on its own (`call/messages.py`): all at once would hold the interpreter.
    if isinstance(value, list) and value and all(isinstance(message, dict) for message in value):
        return value
    raise PydanticCustomError("messages", "must be a list of messages, not empty")


def _few(value: Any) -> Any:
    # Before each is checked: one error per entry of a long list would hold the interpreter.
    if isinstance(value, list | dict) and len(value) > MAX_ALLOWED_TOKENS:
        raise PydanticCustomError("few", f"must have at most {MAX_ALLOWED_TOKENS} entries, got {len(value)}")
    return value


def described_as(shape: Any) -> BeforeValidator:
    """Have the document say what the entries are like, which are checked one by one later."""
    return BeforeValidator(lambda value: value, json_schema_input_type=shape)


def one_of(*names: str) -> dict[str, Any]:
    """Return what the document says of fields of which exactly one is needed; null is none."""
    alternatives = ({"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names)
    return {"oneOf": list(alternatives)}


class BodyModel(BaseModel):
    """What all bodies share."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class StreamOptions(BodyModel):
    """What a stream may add."""

    include_usage: bool | None = Field(None, description="Close with a chunk of counts and timings.")
    include_obfuscation: bool | None = Field(None, description="No effect.")


class LoraScale(BodyModel):
    """How much of an adapter."""

    id: int
    scale: float


class SampledBody(BodyModel):
    """The fields of all bodies that ask for tokens."""

    model: str | None = Field(None, description="One of the served names; optional if there is only one.")
    temperature: float | None = Field(
        None, description="0 to 100, default 1 or the model's own; 0 takes the likeliest token."
    )
    top_p: float | None = Field(
        None, description="Keep the likeliest tokens up to this total probability: 1 keeps all, 0 only one."
    )
    top_k: int | None = Field(None, description="Keep the k likeliest tokens; 0 or -1 keeps all.")
    min_p: float | None = Field(
        None, description="Keep tokens at least this likely, relative to the likeliest; 0 keeps all."
    )
    typical_p: float | None = Field(
        None, description="Keep the most typical tokens up to this total probability; 1 keeps all."
    )
    frequency_penalty: float | None = Field(
        None, description="-2 to 2: subtracted from a token's logit each time it is in the output."
    )
    presence_penalty: float | None = Field(
        None, description="-2 to 2: subtracted once if the token is in the output."
    )
    repetition_penalty: float | None = Field(
        None, description="0.01 to 100: divides the logits of tokens in the prompt or output; 1 is off."
    )
    repeat_penalty: float | None = Field(None, description="The same as repetition_penalty.")
    logit_bias: Annotated[
        dict[str, float] | None,
        BeforeValidator(_few),
        Field(description="Token id to a bias of -100 to 100, for at most 4,096 tokens."),
    ] = None
    top_n_sigma: float | None = Field(
        None, description="Keep tokens within this many standard deviations of the best; 0 or less keeps all."
    )
    stop_token_ids: Annotated[
        list[TokenId] | None,
        BeforeValidator(_few),
        Field(description="Up to 128 more tokens that end the answer, even with ignore_eos."),
    ] = None
    bad_words: Annotated[
        list[str] | None,
        BeforeValidator(_few),
        Field(description="Up to 128 texts that the answer must not contain."),
    ] = None
    allowed_token_ids: Annotated[
        Annotated[list[TokenId], Field(min_length=1)] | None,
        BeforeValidator(_few),
        Field(description="Sample only these, end tokens included; at most 4,096; absent: all."),
    ] = None
    include_stop_str_in_output: bool | None = Field(
        None, description="Show the stop string or stop token that ended the answer; default false."
    )
    seed: int | None = Field(
        None,
        description="The same request and seed give the same random numbers; answer i of n uses seed + i.",
    )
    ignore_eos: bool | None = Field(None, description="Never end at an end token; default false.")
    min_tokens: int | None = Field(
        None, description="Minimum output tokens: no token ends the answer earlier."
    )
    stop: Annotated[Stop, Field(description="One string or up to 16, of at most 1,000 characters each.")] = ()
    stream: bool | None = Field(None, description="Send the answer as it is generated; default false.")
    timeout_s: float | None = Field(
        None, description="Deadline in seconds from arrival at the engine, queue included."
    )
    priority: int | None = Field(
        None, description="Class of the request: lower numbers go first, within what the key allows."
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_SALT_CHARS,
        description="Share computed prefixes only with requests of the same key and the same salt.",
    )
    cache_prompt: bool | None = Field(
        None, description="Reuse computed prefixes, and let other requests reuse this one; default true."
    )
    lora: list[LoraScale] | None = Field(
        None, max_length=MAX_ADAPTERS, description="Adapters by id; those that are not named have scale 0."
    )
    structured_outputs: dict[str, Any] | None = Field(
        None, description="A constraint, in vLLM's format: one of json, regex, choice, grammar, json_object."
    )
    json_schema: dict[str, Any] | bool | str | None = Field(None, description="A schema for the answer.")
    guided_json: dict[str, Any] | bool | str | None = Field(None, description="The same as json_schema.")
    grammar: str | None = Field(None, description="A grammar in GBNF or Lark.")
    guided_grammar: str | None = Field(None, description="The same as grammar.")
    ebnf: str | None = Field(None, description="The same as grammar.")
    regex: str | None = Field(None, description="What the whole answer must match.")
    guided_regex: str | None = Field(None, description="The same as regex.")
    guided_choice: Many[str] | None = Field(None, description="The answer must be one of these texts.")


class GenerationBody(SampledBody):
    """The fields that chat and plain completions share."""

    max_tokens: int | None = Field(
        None, description="Maximum output tokens, limited to what fits into the context; -1: no limit."
    )
    max_completion_tokens: int | None = Field(None, description="The same as max_tokens.")
    n: int | None = Field(None, description="Answers per prompt; prompts times n are at most 128.")
    stream_options: StreamOptions | None = Field(None, description="include_usage.")
    resumable: bool | Literal["stored"] | None = Field(
        None,
        description="true: continue five minutes without a reader; stored: to the end, and store it. "
        "GET /v1/streams/{id} resumes, DELETE stops.",
    )
    supersedes: bool | None = Field(
        None, description="Cancel the older request that set this, too, and has the same key, user and route."
    )
    user: str | None = Field(None, description="Whose request it is, for supersedes.")
    return_progress: bool | None = Field(
        None,
        description="Report how much of the prompt is computed, as prompt_progress in streams and timings.",
    )
    return_queue_progress: bool | None = Field(
        None,
        description="Report the place in the queue and the wait, as queue_progress in streams and timings.",
    )
    sse_ping_interval: int | None = Field(
        None, description="Seconds of silence after which a stream gets a keep-alive; 0 or -1: none."
    )
    prompt_logprobs: int | None = Field(
        None,
        description="Return logprobs of the prompt's tokens and of this many alternatives; not in streams.",
    )
    return_token_ids: bool | None = Field(
        None, description="Return the tokens of prompts and answers: prompt_token_ids, token_ids."
    )
    response_format: dict[str, Any] | None = Field(
        None, description="What the answer must look like: text, json_object or json_schema."
    )


class CalledFunction(BodyModel):
    """Which function a turn called, and with what."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str | dict[str, Any] | None = Field(None, description="JSON, as text or as it is.")


class MessageToolCall(BodyModel):
    """One call of an earlier turn."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class Message(BodyModel):
    """One turn of a chat."""

    role: Annotated[str, Field(json_schema_extra={"enum": list(ROLES)}, description="Whose turn it is.")]
    content: Content = Field(
        None,
        description="Text, or parts: text, refusal, and image_url (a data URL) if the model sees images.",
    )
    refusal: str | None = Field(None, description="What an assistant's turn said instead of content.")
    name: str | None = Field(None, description="Who says it; the template decides.")
    tool_calls: list[MessageToolCall] | None = Field(
        None, max_length=MAX_CALLS, description="What an assistant's turn called."
    )
    tool_call_id: str | None = Field(None, description="Which call a tool's message answers.")
    function_call: CalledFunction | None = Field(
        None, description="The one call of an assistant's turn, before a message of the role function."
    )
    reasoning_content: str | None = Field(None, description="What the turn reasoned; the template decides.")
    reasoning: str | None = Field(None, description="Another spelling of reasoning_content.")


class Thinking(BodyModel):
    """Whether the model reasons."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(None, ge=1)
    display: Literal["summarized", "omitted"] | None = None

    @property
    def thinks(self) -> bool:
        return self.type != "disabled"


class ToolFunction(BodyModel):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = Field(None, description="Refuse keys of the schema that cannot be honoured.")


class Tool(BodyModel):
    """Something that the model may use."""

    type: str
    function: ToolFunction


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[
        list[dict[str, Any]],
        PlainValidator(_messages, json_schema_input_type=NotEmpty[Message]),
        Field(description="The turns of the chat: role and content."),
    ]
    tools: Many[dict[str, Any]] | None = Field(
        None, description="At most 512 functions that the model may call: type, function."
    )
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="none, auto, required, one function, or allowed_tools; auto if there are tools."
    )
    parallel_tool_calls: bool | None = Field(
        None, description="Allow several calls in one turn; default true."
    )
    reasoning_effort: str | None = Field(None, description="For the chat template; none turns reasoning off.")
    enable_thinking: bool | None = Field(
        None, description="For the chat template: sets its variables enable_thinking and thinking."
    )
    thinking: Thinking | None = Field(
        None,
        description="type: disabled, or enabled with budget_tokens for reasoning_budget.",
    )
    reasoning_format: str | None = Field(
        None, description="auto: in reasoning_content; parsed: in reasoning; none: in the content."
    )
    include_reasoning: bool | None = Field(None, description="Show the reasoning; default true.")
    reasoning_budget: int | None = Field(
        None, ge=-1, description="Tokens of reasoning before it is cut off; -1: no limit."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the chat template, such as enable_thinking."
    )
    add_generation_prompt: bool | None = Field(None, description="Open the assistant's turn; default true.")
    continue_final_message: bool | None = Field(
        None, description="Leave the last message open and continue it; default false."
    )
    logprobs: bool | None = Field(None, description="Return the logprob of each token; default false.")
    top_logprobs: int | None = Field(None, description="Alternatives per token, at most 20.")


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Annotated[CheckedPrompt, Field(description="A string, strings, token ids or lists of token ids.")]
    echo: bool | None = Field(None, description="Begin the answer with the prompt; default false.")
    logprobs: int | None = Field(None, description="Alternatives per token, at most 20; absent: no logprobs.")
    best_of: int | None = Field(None, description="Must equal n.")
