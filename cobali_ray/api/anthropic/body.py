"""The wire models of Anthropic's API: shapes and kinds only. Blocks of content are read in read.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from cobali_ray.api.body.schema import BodyModel, Content, Many, NotEmpty, Thinking, described_as


class OneMessage(BodyModel):
    """One turn, or a system text that stands between turns."""

    role: Literal["user", "assistant", "system"]
    content: Content


class AnthropicTool(BodyModel):
    """A function that the client runs."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]{1,128}$")]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = Field(None, description="Refuse keys of the schema that cannot be honoured.")


class ToolChoice(BodyModel):
    """Whether the model calls."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(BodyModel):
    """What the answer must look like."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(BodyModel):
    """How much the model reasons, and what its answer must look like."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountBody(BodyModel):
    """POST /v1/messages/count_tokens."""

    model: str | None = Field(None, description="One of the served names; optional if there is only one.")
    messages: Annotated[
        Many[dict[str, Any]],
        Field(min_length=1, description="The turns: role, and content as text or blocks."),
        described_as(NotEmpty[OneMessage]),
    ]
    system: Content = Field(None, description="Text, or a list of text blocks.")
    tools: Many[dict[str, Any]] | None = Field(
        None, description="Functions: name, description, input_schema."
    )
    tool_choice: ToolChoice | None = Field(None, description="auto, any, tool with a name, or none.")
    thinking: Thinking | None = Field(None, description="Absent: no reasoning is asked for.")
    output_config: OutputConfig | None = Field(None, description="effort, and format: a schema.")
    output_format: OutputFormat | None = Field(None, description="The same as output_config.format.")


class MessagesBody(CountBody):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1, description="Most output tokens.")]
    temperature: float | None = Field(None, description="0 to 100; 0 takes the likeliest token.")
    top_p: float | None = Field(None, description="Keep the likeliest tokens up to this total probability.")
    top_k: int | None = Field(None, description="Keep the k likeliest tokens.")
    stop_sequences: Many[str] | None = Field(None, description="Texts that end the answer, at most 16.")
    stream: bool | None = Field(None, description="Send the answer as it is generated; default false.")


class AnthropicErrorDetail(BaseModel):
    """What went wrong."""

    type: str
    message: str


class AnthropicErrorBody(BaseModel):
    """Every answer of Anthropic's routes that is no success."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str
