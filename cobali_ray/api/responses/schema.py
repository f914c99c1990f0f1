"""The wire models of the Responses API: shapes and kinds only, as in `api/body/schema.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from cobali_ray.api.body.schema import BodyModel, Content, Many, NotEmpty, SampledBody

ROLES = ("system", "developer", "user", "assistant")


def _input(value: Any) -> str | list[dict[str, Any]]:
    # Each item is checked on its own (`items.py`): all at once would hold the interpreter.
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return value
    raise PydanticCustomError("input", "must be a string or a list of items, not empty")


class MessageItem(BodyModel):
    """What somebody said."""

    type: Literal["message"] | None = None
    id: str | None = None
    status: str | None = None
    role: Annotated[str, Field(json_schema_extra={"enum": list(ROLES)})]
    content: Content


class CallItem(BodyModel):
    """A call of an earlier turn: function_call or custom_tool_call."""

    type: str
    id: str | None = None
    status: str | None = None
    call_id: str
    name: Annotated[str, Field(min_length=1)]
    namespace: str | None = None
    arguments: str | None = Field(None, description="JSON, of a function.")
    input: str | None = Field(None, description="Text, of a custom tool.")


class OutputItem(BodyModel):
    """What a call came to: function_call_output or custom_tool_call_output."""

    type: str
    id: str | None = None
    status: str | None = None
    call_id: str
    output: Content


class ReasoningItem(BodyModel):
    """What an earlier turn reasoned."""

    type: Literal["reasoning"]
    id: str | None = None
    status: str | None = None
    summary: Many[dict[str, Any]] | None = None
    content: Many[dict[str, Any]] | None = None
    encrypted_content: str | None = Field(None, description="Only who wrote it can read it; passed over.")


class FunctionTool(BodyModel):
    """A function that the model may call. Its name is judged with those of all tools."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = Field(None, description="Refuse keys of the schema that cannot be honoured.")
    defer_loading: bool | None = None


class CustomFormat(BodyModel):
    """What the text of a custom tool must look like."""

    type: Literal["text", "grammar"]
    syntax: str | None = None
    definition: str | None = None


class CustomTool(BodyModel):
    """A tool that takes a text."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: CustomFormat | None = None
    defer_loading: bool | None = None


class Namespace(BodyModel):
    """Tools under a common name."""

    type: Literal["namespace"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    tools: Many[dict[str, Any]]


class TextConfig(BodyModel):
    """How the answer is to be written."""

    format: dict[str, Any] | None = Field(None, description="text, json_object or json_schema.")
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(BodyModel):
    """How the model is to reason."""

    effort: str | None = Field(None, description="For the chat template; none turns reasoning off.")
    summary: str | None = Field(None, description="Reasoning is told as it is, so there is none.")
    generate_summary: str | None = None


MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)]
Name = Annotated[str | None, Field(max_length=1024)]


StoredId = Annotated[str, Field(min_length=1, max_length=128)]


class ConversationRef(BodyModel):
    """A conversation by its id."""

    id: StoredId


def _conversation_id(value: Any) -> Any:
    return value.get("id") if isinstance(value, dict) else value


class ResponsesBody(SampledBody):
    """POST /v1/responses."""

    input: Annotated[
        str | list[dict[str, Any]],
        PlainValidator(
            _input, json_schema_input_type=str | NotEmpty[MessageItem | CallItem | OutputItem | ReasoningItem]
        ),
        Field(description="A text, or the items of the conversation so far."),
    ]
    instructions: str | None = Field(None, description="A system message before the input.")
    max_output_tokens: int | None = Field(
        None, description="Maximum output tokens, reasoning included, limited to what fits into the context."
    )
    tools: Many[dict[str, Any]] | None = Field(
        None, description="What the model may call: function, custom, namespace; hosted ones are left out."
    )
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="none, auto, required, one tool, or allowed_tools; auto if there are tools."
    )
    parallel_tool_calls: bool | None = Field(
        None, description="Allow several calls in one turn; default true."
    )
    text: TextConfig | None = Field(None, description="format: what the answer must look like.")
    reasoning: Reasoning | None = Field(None, description="effort: for templates that know it.")
    include: list[str] | None = Field(
        None, max_length=32, description="message.output_text.logprobs adds them."
    )
    top_logprobs: int | None = Field(None, description="How many alternatives per token, at most 20.")
    metadata: Metadata | None = Field(None, description="Returned unchanged.")
    store: bool | None = Field(
        None, description="Store the response, so that it can be continued; default true with a `data_dir`."
    )
    previous_response_id: StoredId | None = Field(
        None, description="A stored response: the conversation up to its end is put before the input."
    )
    conversation: Annotated[
        StoredId | None,
        BeforeValidator(_conversation_id, json_schema_input_type=str | ConversationRef | None),
        Field(description="A stored conversation, put before the input; input and output are added to it."),
    ] = None
    background: bool | None = Field(
        None, description="Return at once; the response is computed without the client, and stored."
    )
    max_tool_calls: int | None = Field(None, description="Limits calls of hosted tools; there are none.")
    prompt_cache_key: Name = Field(None, description="Returned unchanged.")
    safety_identifier: Name = Field(None, description="Returned unchanged.")
    service_tier: str | None = Field(None, description="No effect.")
    user: Name = Field(None, description="Returned unchanged.")


Items = Annotated[Many[dict[str, Any]], Field(max_length=20)]


class ConversationUpdateBody(BodyModel):
    """POST /v1/conversations/{conversation_id}."""

    metadata: Metadata | None = Field(None, description="At most 16 texts by name.")


class ConversationBody(ConversationUpdateBody):
    """POST /v1/conversations."""

    items: Items | None = Field(None, description="The first items: at most 20, as in an input.")


class ConversationItemsBody(BodyModel):
    """POST /v1/conversations/{conversation_id}/items."""

    items: Items = Field(description="The items to add: at most 20, as in an input.")
