"""The wire models of Ollama's API: shapes and kinds only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from cobali_ray.api.body.schema import (
    MAX_CALLS,
    BodyModel,
    CalledFunction,
    Many,
    Stop,
    TokenId,
    described_as,
)
from cobali_ray.api.body.texts import MAX_INPUTS


class Options(BodyModel):
    """How tokens are drawn."""

    num_predict: int | None = Field(None, description="Most tokens of the answer; 0 or less: any.")
    num_ctx: int | None = Field(None, description="The operator's setting n_ctx decides.")
    seed: int | None = None
    stop: Stop = ()
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class OllamaBody(BodyModel):
    """The fields that /api/chat and /api/generate share."""

    model: str | None = Field(None, description="One of the served names; optional if there is only one.")
    stream: bool | None = Field(None, description="Default true.")
    format: str | dict[str, Any] | None = Field(None, description="json, or a schema.")
    options: Options | None = Field(
        None, description="Sampling options: temperature, num_predict and others."
    )
    think: bool | Literal["low", "medium", "high", "max"] | None = Field(
        None, description="Whether, or how much, the model reasons."
    )
    keep_alive: float | str | None = Field(None, description="0 without a prompt unloads the model.")
    logprobs: bool | None = Field(None, description="Return the logprob of each token; default false.")
    top_logprobs: int | None = Field(None, description="Alternatives per token, at most 20.")


class OllamaCall(BodyModel):
    """One call of an earlier turn."""

    id: str | None = None
    function: CalledFunction


class OllamaMessage(BodyModel):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Many[str] | None = Field(None, description="Data in base64.")
    tool_calls: list[OllamaCall] | None = Field(None, max_length=MAX_CALLS)
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatBody(OllamaBody):
    """POST /api/chat."""

    messages: Annotated[
        Many[dict[str, Any]] | None,
        Field(description="The turns: role and content."),
        described_as(list[OllamaMessage] | None),
    ] = None
    tools: Many[dict[str, Any]] | None = Field(None, description="Functions that the model may call.")


class OllamaGenerateBody(OllamaBody):
    """POST /api/generate."""

    prompt: str | None = Field(None, description="The prompt.")
    system: str | None = Field(None, description="A system text.")
    images: Many[str] | None = Field(None, description="Data in base64.")
    raw: bool | None = Field(None, description="Continue the prompt as it is, without a template.")
    context: Many[TokenId] | None = Field(
        None, description="The context of an earlier answer, to continue from."
    )


class OllamaEmbedBody(BodyModel):
    """POST /api/embed, and /api/embeddings with `prompt`."""

    model: str | None = Field(None, description="One of the served names; optional if there is only one.")
    input: str | Annotated[Many[str], Field(max_length=MAX_INPUTS)] | None = Field(
        None, description="One text, or up to 2,048."
    )
    prompt: str | None = Field(None, description="The text of /api/embeddings.")
    truncate: bool | None = Field(None, description="No effect: texts that are too long are refused.")
    dimensions: int | None = Field(
        None, ge=1, description="Keep this many numbers from the front, rescaled to length 1."
    )
    options: dict[str, Any] | None = Field(None, description="No effect.")
    keep_alive: float | str | None = Field(None, description="No effect: the settings decide.")


class OllamaModelBody(BodyModel):
    """POST /api/show."""

    model: str | None = Field(None, description="One of the served names; optional if there is only one.")
    name: str | None = Field(None, description="An older name of model.")


class OllamaErrorBody(BaseModel):
    """Every answer of Ollama's routes that is no success."""

    error: str
