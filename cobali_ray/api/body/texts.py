"""The wire models of requests about texts: vectors, scores, tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from cobali_ray.api.body.schema import BodyModel, CheckedPrompt, ItemT, Many, TokenId, one_of

MAX_INPUTS = 2048
"""Texts of one request for vectors, or for scores, as OpenAI has it."""

Inputs: TypeAlias = Annotated[list[ItemT], Field(min_length=1, max_length=MAX_INPUTS)]


def _documents(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and 0 < len(value) <= MAX_INPUTS:
        texts: list[Any] = [entry.get("text") if isinstance(entry, dict) else entry for entry in value]
        if all(isinstance(text, str) for text in texts):
            return texts
    raise PydanticCustomError(
        "documents", f"must be 1 to {MAX_INPUTS:,} texts, as strings or as objects with a text"
    )


Texts: TypeAlias = Annotated[list[str], PlainValidator(_documents, json_schema_input_type=Inputs[str])]
OneOrMore: TypeAlias = Annotated[
    list[str], PlainValidator(_documents, json_schema_input_type=str | Inputs[str])
]


class TextsBody(BodyModel):
    """What bodies share that ask about texts."""

    model: str | None = Field(None, description="One of the served names; optional if there is only one.")
    timeout_s: float | None = Field(None, description="Seconds from arrival to the last vector or score.")
    priority: int | None = Field(
        None, description="Class of the request: lower numbers go first, within what the key allows."
    )


class EmbeddingBody(TextsBody):
    """POST /v1/embeddings."""

    input: Annotated[
        CheckedPrompt,
        Field(description=f"One text or up to {MAX_INPUTS:,}, as strings or as token ids."),
    ]
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="float (default), or base64: 32-bit floats, little-endian."
    )
    dimensions: int | None = Field(
        None, ge=1, description="Keep this many numbers from the front, rescaled to length 1."
    )
    user: str | None = Field(None, description="No effect.")


class ScoringBody(TextsBody):
    """What bodies share that ask how well texts go together."""

    raw_scores: bool | None = Field(None, description="Return raw scores, not scaled to 0 to 1.")


class RerankBody(ScoringBody):
    """POST /v1/rerank. With `texts` in place of `documents` the answer has the shape of TEI."""

    model_config = ConfigDict(json_schema_extra=one_of("documents", "texts"))
    query: Annotated[str, Field(description="What the documents are compared with.")]
    documents: (
        Annotated[
            list[str],
            PlainValidator(_documents, json_schema_input_type=Inputs[str] | Inputs[dict[str, str]]),
        ]
        | None
    ) = Field(None, description=f"Up to {MAX_INPUTS:,} texts, or objects with a text.")
    texts: Texts | None = Field(None, description="The same as documents, as TEI names it.")
    top_n: int | None = Field(None, ge=1, description="How many to return, best first; absent: all.")
    return_documents: bool | None = Field(None, description="Return each text; default false.")
    return_text: bool | None = Field(None, description="The same as return_documents, as TEI names it.")


class ScoreBody(ScoringBody):
    """POST /v1/score: of each pair of texts; one text goes with each of the others."""

    text_1: Annotated[OneOrMore, Field(description="One text, or several.")]
    text_2: Annotated[OneOrMore, Field(description="One text, or as many as in text_1.")]


class TokenizeBody(BodyModel):
    """POST /tokenize; exactly one of content, text and prompt."""

    model_config = ConfigDict(json_schema_extra=one_of("content", "text", "prompt"))
    model: str | None = Field(None, description="One of the served names.")
    content: str | None = Field(None, description="The text; text and prompt are other names for it.")
    text: str | None = Field(None, description="See content.")
    prompt: str | None = Field(None, description="See content.")
    add_special: bool | None = Field(None, description="Add the model's own leading tokens; default false.")
    add_special_tokens: bool | None = Field(None, description="Another spelling of add_special.")
    parse_special: bool | None = Field(None, description="Read control tokens in the text; default true.")
    with_pieces: bool | None = Field(None, description="Return the text of each token; default false.")


class DetokenizeBody(BodyModel):
    """POST /detokenize."""

    model: str | None = Field(None, description="One of the served names.")
    tokens: Annotated[Many[TokenId], Field(description="Token ids.")]
