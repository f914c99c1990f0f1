"""What the answer must look like, in every spelling, on both routes, through the real sampler."""

import json
import re
from typing import Literal

import pytest
from fake_client import FakeClient
from jsonschema import validate
from pydantic import BaseModel, Field

from cobali_ray.backend.scripted import ScriptedBackend
from cobali_ray.core.request.limits import EngineLimits
from cobali_ray.core.views.stats import ModelCard
from cobali_ray.engine.engine import Engine
from cobali_ray.testing import FakeClock

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 300}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}
UNHELD = {"type": "object", "properties": {"a": {"type": "array", "maxItems": 1, "uniqueItems": True}}}


def engine_says(request, n_ctx=512):
    """Script: what an engine over the scripted backend answers, random logits under the request's grammar."""
    said = []
    backend = ScriptedBackend(n_slots=1, n_ctx_slot=n_ctx, n_batch=n_ctx)
    limits = EngineLimits(
        n_slots=1, n_ctx_slot=n_ctx, n_cells=n_ctx, token_budget=n_ctx, prefill_chunk=n_ctx, min_prefix=0
    )
    engine = Engine(backend, limits, FakeClock(step_s=0.001), said.append)
    engine.submit(request)
    while engine.has_work:
        engine.tick()
        for batch in said:
            yield [event for _, event in batch]
        said.clear()


@pytest.fixture
def client():
    return FakeClient(engine_says, ModelCard(model_id="fake", n_vocab=260, n_ctx_slot=512, created_s=1))


def named(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


def holds_schema(text):
    validate(json.loads(text), SCHEMA)


def is_object(text):
    assert isinstance(json.loads(text), dict)


def matches(pattern):
    def holds(text):
        assert re.fullmatch(pattern, text), text

    return holds


SPELLINGS = [
    pytest.param({"response_format": named(SCHEMA)}, holds_schema, id="openai"),
    pytest.param({"response_format": named(SCHEMA, strict=True)}, holds_schema, id="openai-strict"),
    pytest.param({"response_format": {"type": "json_schema", "schema": SCHEMA}}, holds_schema, id="flat"),
    pytest.param({"response_format": {"type": "json_object", "schema": SCHEMA}}, holds_schema, id="object+"),
    pytest.param({"json_schema": SCHEMA}, holds_schema, id="llama-server"),
    pytest.param({"guided_json": json.dumps(SCHEMA)}, holds_schema, id="schema-as-text"),
    pytest.param({"guided_json": SCHEMA}, holds_schema, id="vllm-old"),
    pytest.param({"structured_outputs": {"json": SCHEMA}}, holds_schema, id="vllm"),
    pytest.param(
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        matches(r'\{"n":\d\}'),
        id="compact",
    ),
    pytest.param({"structured_outputs": {"regex": "[ab]{3}"}}, matches("[ab]{3}"), id="vllm-regex"),
    pytest.param(
        {"structured_outputs": {"regex": "[ab]{3}", "json": False}}, matches("[ab]{3}"), id="vllm-false"
    ),
    pytest.param({"structured_outputs": {"choice": ["x", "yz"]}}, matches("x|yz"), id="vllm-choice"),
    pytest.param({"structured_outputs": {"grammar": 'root ::= "q"'}}, matches("q"), id="vllm-grammar"),
    pytest.param({"guided_regex": "[ab]{3}"}, matches("[ab]{3}"), id="guided-regex"),
    pytest.param({"regex": "[ab]{3}"}, matches("[ab]{3}"), id="regex"),
    pytest.param({"guided_choice": ["x", "yz"]}, matches("x|yz"), id="guided-choice"),
    pytest.param({"grammar": "root ::= [0-9] [0-9]"}, matches(r"\d\d"), id="gbnf"),
    pytest.param({"guided_grammar": "start: /[0-9]{2}/"}, matches(r"\d\d"), id="lark"),
    pytest.param({"ebnf": 'root ::= "a" | "b"'}, matches("a|b"), id="ebnf"),
]


@pytest.mark.parametrize(("fields", "holds"), SPELLINGS)
async def test_every_spelling_holds_on_both_routes(post, client, fields, holds):
    chat = await post(CHAT, ASK | fields)
    plain = await post(COMPLETIONS, {"prompt": ["hi", "ho"], "max_tokens": 300, "n": 2} | fields)
    choices = chat.json["choices"] + plain.json["choices"]
    assert len(choices) == 5
    texts = [one["message"]["content"] if "message" in one else one["text"] for one in choices]
    for text, choice in zip(texts, choices, strict=True):
        if choice["finish_reason"] == "stop":
            holds(text)
    assert "stop" in {one["finish_reason"] for one in choices}
    assert len({request.grammar for request in client.requests}) == 1
    assert "x-cobali-ignored-fields" not in chat.headers


async def test_any_object_will_do(post):
    bias = {"logit_bias": {str(ord("}")): 100}}  # or a random string would never end
    wire = await post(CHAT, ASK | bias | {"response_format": {"type": "json_object"}})
    is_object(wire.json["choices"][0]["message"]["content"])


async def test_a_stream_holds_too(post):
    wire = await post(CHAT, ASK | {"stream": True, "guided_choice": ["x", "yz"], "n": 3})
    chunks = [one for event in wire.events[:-1] for one in event["choices"]]
    for index in range(3):
        mine = [one for one in chunks if one["index"] == index]
        assert "".join(one["delta"].get("content") or "" for one in mine) in {"x", "yz"}
        assert mine[-1]["finish_reason"] == "stop"


DEEP = {}
for _ in range(400):
    DEEP = {"properties": {"a": DEEP}}
REFUSED = [
    pytest.param({"json_schema": DEEP}, None, "nested", id="deep"),
    pytest.param({"json_schema": json.dumps(DEEP)}, "json_schema", "nested", id="deep-text"),
    pytest.param(
        {"response_format": named(UNHELD, strict=True)},
        "response_format.json_schema.schema",
        "uniqueItems",
        id="strict",
    ),
    pytest.param(
        {"response_format": {"type": "json_schema"}}, "response_format.schema", "missing", id="none"
    ),
    pytest.param(
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
        "missing",
        id="no-schema",
    ),
    pytest.param(
        {"response_format": {"type": "json_schema", "json_schema": 5}},
        "response_format.json_schema",
        "object",
        id="no-object",
    ),
    pytest.param(
        {"response_format": named(SCHEMA, strict=["yes"])},
        "response_format.json_schema.strict",
        "true",
        id="flag",
    ),
    pytest.param({"json_schema": {"type": "nothing"}}, "json_schema", "nothing", id="type"),
    pytest.param({"guided_json": "{"}, "guided_json", "JSON", id="broken-text"),
    pytest.param({"guided_json": "5"}, "guided_json", "schema", id="number"),
    pytest.param({"grammar": "root ::= foo"}, "grammar", "foo", id="grammar"),
    pytest.param({"guided_regex": "(?!a)"}, "guided_regex", "look-around", id="regex"),
    pytest.param({"guided_choice": ["a", ""]}, "guided_choice", "empty", id="empty-choice"),
    pytest.param(
        {"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "not", id="tag"
    ),
    pytest.param({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "string", id="kind"),
    pytest.param({"guided_choice": []}, "guided_choice", "one or more", id="no-choice"),
    pytest.param({"structured_outputs": {}}, "structured_outputs", "one of json", id="no-kind"),
    pytest.param(
        {"structured_outputs": {"json_object": False, "disable_any_whitespace": True}},
        "structured_outputs",
        "one of json",
        id="no-kind-switched-off",
    ),
    pytest.param(
        {"structured_outputs": {"choice": []}}, "structured_outputs.choice", "one or more", id="no-choice-in"
    ),
    pytest.param(
        {"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "empty", id="no-regex-in"
    ),
    pytest.param({"regex": ""}, "regex", "empty", id="no-regex"),
    pytest.param({"guided_grammar": " \n"}, "guided_grammar", "empty", id="no-guided-grammar"),
    pytest.param({"allowed_token_ids": []}, "allowed_token_ids", "at least 1", id="no-tokens"),
    pytest.param({"regex": "a", "json_schema": SCHEMA}, "regex", "json_schema", id="two"),
    pytest.param(
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        "structured_outputs.choice",
        "one",
        id="two-in",
    ),
]


@pytest.mark.parametrize(("fields", "param", "says"), REFUSED)
async def test_what_cannot_be_held_is_refused_by_name(post, client, fields, param, says):
    wire = await post(CHAT, ASK | fields | {"stream": True})
    error = wire.json["error"]
    assert (wire.status, error["param"]) == (400, param)
    assert says in error["message"]
    assert client.requests == []


async def test_without_strict_what_is_not_held_is_named(make_app, post, client):
    body = ASK | {"response_format": named(UNHELD)}
    wire = await post(CHAT, body)
    assert wire.headers["x-cobali-ignored-fields"] == "response_format.json_schema.schema.uniqueItems"
    assert client.requests[0].grammar is not None
    wire = await post(CHAT, body, app=make_app(strict=True))
    assert (wire.status, wire.json["error"]["param"]) == (400, "response_format.json_schema.schema")


class Card(BaseModel):
    """What a program wants to know."""

    suit: Literal["hearts", "spades"]
    rank: int = Field(ge=1, le=13)
    marks: list[bool] = Field(max_length=2)


async def test_the_openai_client_parses(openai):
    async with openai.chat.completions.stream(
        model="fake", messages=ASK["messages"], response_format=Card, max_tokens=500, seed=1
    ) as stream:
        final = await stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Card)
