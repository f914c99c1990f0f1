"""Calls that must be calls, and constraints behind reasoning: over HTTP, random logits in a real engine."""

import json
from functools import partial

import pytest
from fake_client import CHAT, FakeClient
from jsonschema import validate
from test_api_constraint import SCHEMA, engine_says, named

from cobali_ray.backend.scripted import ByteVocab
from cobali_ray.core.views.stats import ModelCard

QWEN_LIKE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if thinks %}<think>\n{% endif %}{% endif %}"
)
SIDE = {
    "type": "object",
    "properties": {
        "side": {"enum": ["left", "right"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["side", "n"],
    "additionalProperties": False,
}
TURN = {"type": "function", "function": {"name": "turn", "parameters": SIDE}}
STOP = {"type": "function", "function": {"name": "halt"}}
ASK = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [TURN, STOP],
    "max_tokens": 400,
    "temperature": 1,
}
SEEDS = range(3)


class Reading(FakeClient):
    """An engine's client whose vocabulary is the engine's."""

    @property
    def words(self):
        return self.vocab


@pytest.fixture
def client():
    card = ModelCard(model_id="fake", n_vocab=260, n_ctx_slot=1024, created_s=1)
    made = Reading(partial(engine_says, n_ctx=card.n_ctx_slot), card)
    made.vocab = ByteVocab(QWEN_LIKE)
    return made


async def messages(post, **fields):
    """Return the finished ones of some answers."""
    found = []
    for seed in SEEDS:
        wire = await post(CHAT, ASK | {"seed": seed} | fields)
        assert wire.status == 200, wire.body
        choice = wire.json["choices"][0]
        if choice["finish_reason"] != "length":
            found.append(choice)
    assert found, "every answer was cut"
    return [choice["message"] | {"finish_reason": choice["finish_reason"]} for choice in found]


def check_call(call):
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "turn":
        validate(arguments, SIDE)
    else:
        assert call["function"]["name"] == "halt"
        assert isinstance(arguments, dict)


async def test_a_required_call_is_one_and_fits_its_schema(post):
    for message in await messages(post, tool_choice="required", parallel_tool_calls=False, tools=[TURN]):
        assert message["finish_reason"] == "tool_calls"
        assert message["content"] is None
        assert len(message["tool_calls"]) == 1
        check_call(message["tool_calls"][0])


async def test_a_schema_or_a_call(post):
    """With both, an answer from random logits is the one or the other."""
    kinds = set()
    for message in await messages(post, response_format=named(SCHEMA), tools=[TURN]):
        if message.get("tool_calls"):
            kinds.add("call")
            check_call(message["tool_calls"][0])
        else:
            kinds.add("schema")
            validate(json.loads(message["content"]), SCHEMA)
    assert kinds


@pytest.mark.parametrize("thinks", [True, False], ids=["the-prompt-thinks", "the-model-may"])
async def test_a_schema_holds_behind_the_reasoning(post, thinks):
    found = await messages(
        post,
        tools=None,
        response_format=named(SCHEMA),
        chat_template_kwargs={"thinks": thinks},
        reasoning_budget=8,
    )
    for message in found:
        validate(json.loads(message["content"]), SCHEMA)
        assert thinks <= ("reasoning_content" in message)


async def test_a_schema_of_a_tool_that_cannot_be_used_is_named(post, client):
    broken = {"type": "function", "function": {"name": "f"}}
    for schema in ({"type": "nonsense"}, {"properties": {"a": {"type": "nonsense"}}}, {"$ref": "#/x"}):
        broken["function"]["parameters"] = schema
        for choice in ("auto", {"type": "function", "function": {"name": "f"}}):
            wire = await post(CHAT, ASK | {"tools": [STOP, broken], "tool_choice": choice})
            assert (wire.status, wire.json["error"]["param"]) == (400, "tools[1].function.parameters")
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    loose = {"type": "function", "function": {"name": "f", "parameters": unique}}
    wire = await post(CHAT, ASK | {"tools": [loose], "max_tokens": 3})
    assert wire.headers["x-cobali-ignored-fields"] == "tools[0].function.parameters.uniqueItems"
    loose["function"]["strict"] = True
    wire = await post(CHAT, ASK | {"tools": [loose]})
    assert (wire.status, wire.json["error"]["param"]) == (400, "tools[0].function.parameters")
    assert "uniqueItems" in wire.json["error"]["message"]
    assert len(client.requests) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_choice": ["abc"]},
        {"grammar": 'start: "abc"'},
        {"grammar": 'root ::= "abc"'},
        {"regex": "abc"},
    ],
    ids=["choice", "lark", "gbnf", "regex"],
)
async def test_every_kind_of_constraint_holds_behind_reasoning_and_beside_tools(post, fields):
    thinks = {"tools": None, "chat_template_kwargs": {"thinks": True}, "reasoning_budget": 4}
    for message in await messages(post, **thinks, **fields):
        assert message["content"] == "abc"
    for message in await messages(post, tools=[TURN], parallel_tool_calls=False, **fields):
        if message.get("tool_calls"):
            check_call(message["tool_calls"][0])
        else:
            assert message["content"] == "abc"


@pytest.mark.parametrize("name", ["self", "chat"])
async def test_a_variable_of_the_template_may_have_any_name(post, client, name):
    client.vocab = ByteVocab(QWEN_LIKE + "{{ " + name + " }}")
    wire = await post(CHAT, ASK | {"tools": None, "max_tokens": 1, "chat_template_kwargs": {name: "zzz"}})
    assert wire.status == 200
    said = bytes(client.requests[0].prompt)
    assert said.endswith(b"zzz") or name == "self"  # which Jinja has for itself


@pytest.mark.parametrize(("depth", "says"), [(240, "context length"), (900, "nested too deeply")])
async def test_arguments_of_earlier_calls_that_are_too_deep_are_refused(post, depth, says):
    deep = json.loads('{"a":' * depth + "1" + "}" * depth)
    call = {"function": {"name": "halt", "arguments": deep}}
    wire = await post(
        CHAT, ASK | {"messages": [*ASK["messages"], {"role": "assistant", "tool_calls": [call]}]}
    )
    assert (wire.status, says in wire.json["error"]["message"]) == (400, True)


@pytest.mark.parametrize("content", ["<think>\nHm, ", "<think>\nHm.\n</think>\n\n<think>" + "so " * 300])
async def test_reasoning_that_a_message_has_begun_goes_on(post, content):
    body = {
        "messages": [*ASK["messages"], {"role": "assistant", "content": content}],
        "continue_final_message": True,
        "tools": None,
        "response_format": named(SCHEMA),
        "reasoning_budget": 8,
        "max_tokens": 100,
    }
    for message in await messages(post, **body):
        assert message["reasoning_content"]
        validate(json.loads(message["content"]), SCHEMA)


async def test_an_answer_that_a_message_has_begun_behind_reasoning_is_held_at_once(post):
    body = {
        "messages": [*ASK["messages"], {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nIt is "}],
        "continue_final_message": True,
        "tools": None,
        "regex": "abc",
        "seed": 23,  # most others reason once more
    }
    for message in await messages(post, **body):
        assert message["content"] == "abc"
