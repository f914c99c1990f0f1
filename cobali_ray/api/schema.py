"""The OpenAI wire models: shapes and kinds only, ranges are the core's to judge.

Strict: a bool is no number, a string is no number. null means absent. Fields not listed here end up in
`model_extra`, where `fields.py` judges them by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, PlainValidator
from pydantic_core import PydanticCustomError

from cobali_ray.api.salts import MOST_CHARS
from cobali_ray.core.request import MAX_ALLOWED_TOKENS

MAX_BIASES = 4096
"""More would be most of a vocabulary, and travel to the engine with every request."""

MAX_ADAPTERS = 256
MAX_CALLS = 128
"""Calls of one earlier turn. Some templates take seconds for twice as many."""

TokenId: TypeAlias = Annotated[int, Field(ge=0)]
Prompt: TypeAlias = str | list[str] | list[TokenId] | list[list[TokenId]]


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


ROLES = ("system", "developer", "user", "assistant", "tool")

Content: TypeAlias = Annotated[
    str | list[dict[str, Any]] | None,
    PlainValidator(_content, json_schema_input_type=str | list[dict[str, Any]] | None),
]
Stop: TypeAlias = Annotated[
    tuple[str, ...], PlainValidator(_stop, json_schema_input_type=str | list[str] | None)
]


def _messages(value: Any) -> list[dict[str, Any]]:
    # Each is checked on its own (`translate.messages_of`): all at once would hold the interpreter.
    if isinstance(value, list) and value and all(isinstance(message, dict) for message in value):
        return value
    raise PydanticCustomError("messages", "must be a list of messages, not empty")


def _few_biases(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        raise PydanticCustomError("logit_bias", f"must have at most {MAX_BIASES} entries, got {len(value)}")
    return value


def _few(value: Any) -> Any:
    # Before each is looked at: one error per entry of a long list would hold the interpreter.
    if isinstance(value, list) and len(value) > MAX_ALLOWED_TOKENS:
        raise PydanticCustomError("few", f"must have at most {MAX_ALLOWED_TOKENS} entries, got {len(value)}")
    return value


class Shape(BaseModel):
    """What all bodies share."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class StreamOptions(Shape):
    """What a stream may add."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class LoraScale(Shape):
    """How much of an adapter."""

    id: int
    scale: float


class GenerationBody(Shape):
    """The fields that chat and plain completions share."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(None, description="Keep the k likeliest tokens; 0 or -1 keeps all.")
    min_p: float | None = None
    typical_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = Field(None, description="Another spelling of repetition_penalty.")
    logit_bias: Annotated[dict[str, float] | None, BeforeValidator(_few_biases)] = None
    top_n_sigma: float | None = Field(
        None, description="Keep tokens within so many standard deviations of the best; 0 or less keeps all."
    )
    stop_token_ids: Annotated[list[TokenId] | None, BeforeValidator(_few)] = None
    bad_words: Annotated[
        list[str] | None,
        BeforeValidator(_few),
        Field(description="Texts that the answer must not hold."),
    ] = None
    allowed_token_ids: Annotated[
        list[TokenId] | None, BeforeValidator(_few), Field(description="Draw no others; absent: all.")
    ] = None
    include_stop_str_in_output: bool | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: Stop = ()
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timeout_s: float | None = Field(None, description="Seconds from arrival to the last token.")
    priority: int | None = Field(
        None, description="Class of the request: the lower number goes first, as far as the key allows."
    )
    cache_salt: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=MOST_CHARS,
            description="Share computed prefixes only with requests of the same key that say the same.",
        ),
    ] = None
    cache_prompt: bool | None = Field(
        None, description="Begin with computed prefixes, and let others begin with this one; default true."
    )
    lora: Annotated[
        list[LoraScale] | None,
        Field(max_length=MAX_ADAPTERS, description="Adapters by id; those that are not named have scale 0."),
    ] = None
    response_format: dict[str, Any] | None = Field(
        None, description="What the answer must look like: text, json_object or json_schema."
    )
    structured_outputs: dict[str, Any] | None = Field(
        None, description="The same, as vLLM has it: one of json, regex, choice, grammar, json_object."
    )
    json_schema: dict[str, Any] | bool | str | None = Field(None, description="A schema for the answer.")
    guided_json: dict[str, Any] | bool | str | None = Field(None, description="The same as json_schema.")
    grammar: str | None = Field(None, description="A grammar in GBNF or Lark.")
    guided_grammar: str | None = Field(None, description="The same as grammar.")
    ebnf: str | None = Field(None, description="The same as grammar.")
    regex: str | None = Field(None, description="What the whole answer must match.")
    guided_regex: str | None = Field(None, description="The same as regex.")
    guided_choice: list[str] | None = Field(None, description="The texts of which the answer must be one.")


class CalledFunction(Shape):
    """Which function a turn called, and with what."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str | dict[str, Any] | None = Field(None, description="JSON, as text or as it is.")


class MessageToolCall(Shape):
    """One call of an earlier turn."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class Message(Shape):
    """One turn of a chat."""

    role: Annotated[str, Field(json_schema_extra={"enum": list(ROLES)})]
    content: Content = None
    name: str | None = None
    tool_calls: Annotated[list[MessageToolCall] | None, Field(max_length=MAX_CALLS)] = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(None, description="What the turn reasoned; the template decides.")
    reasoning: str | None = Field(None, description="Another spelling of reasoning_content.")


class ToolFunction(Shape):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = Field(None, description="Refuse keys of the schema that cannot be honoured.")


class Tool(Shape):
    """Something that the model may use."""

    type: str
    function: ToolFunction


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[dict[str, Any]], PlainValidator(_messages, json_schema_input_type=list[Message])]
    tools: Annotated[
        list[dict[str, Any]] | None, Field(description="Functions that the model may call: type, function.")
    ] = None
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="none, auto, required, or one function; auto where there are tools."
    )
    parallel_tool_calls: bool | None = Field(None, description="Several calls in one turn; default true.")
    reasoning_effort: str | None = Field(None, description="For the chat template; none turns it off.")
    reasoning_format: str | None = Field(
        None,
        description="auto: in reasoning_content; parsed: in reasoning; none: in the content.",
    )
    include_reasoning: bool | None = Field(None, description="Show the reasoning; default true.")
    reasoning_budget: Annotated[
        int | None, Field(ge=-1, description="Tokens of reasoning before it is made to end; -1: any.")
    ] = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the chat template, such as enable_thinking."
    )
    add_generation_prompt: bool | None = Field(None, description="Open the assistant's turn; default true.")
    continue_final_message: bool | None = Field(
        None, description="Leave the last message open, for the answer to go on from; default false."
    )
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Annotated[Prompt, PlainValidator(_prompt, json_schema_input_type=Prompt)]
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


class TokenizeBody(Shape):
    """POST /tokenize; exactly one of content, text and prompt."""

    model: str | None = None
    content: str | None = None
    text: str | None = None
    prompt: str | None = None
    add_special: bool | None = Field(None, description="Add what the model wants in front; default false.")
    parse_special: bool | None = Field(None, description="Read control tokens in the text; default true.")
    with_pieces: bool | None = None


class DetokenizeBody(Shape):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[TokenId], FailFast()]


class SlotBody(Shape):
    """POST /slots/{id_slot} with action=save or action=restore."""

    filename: Annotated[str, Field(description="A plain name, in the folder that slot_save_path names.")]


class ModelBody(Shape):
    """POST /v1/models/load and /v1/models/unload."""

    model: Annotated[str, Field(description="One of its names.")]


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every answer that is no success."""

    error: ErrorDetail
