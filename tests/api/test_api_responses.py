"""POST /v1/responses: what the model reads of a body, what is refused and in which words, what comes back."""

import json

import pytest
from fake_client import ends_with, says
from pydantic import BaseModel
from response_rules import Checked, Codex, events_of

from cobali_ray.chat.format import GENERIC, Format
from cobali_ray.errors import EngineDiedError

PATH = "/v1/responses"
USER = {"role": "user", "content": "hi"}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "get_weather", "description": "d", "parameters": PARAMETERS}
STRICT = WEATHER | {"strict": True, "parameters": PARAMETERS | {"additionalProperties": False}}
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: LINE+"},
}
FILES = {
    "type": "namespace",
    "name": "mcp__fs",
    "description": "Files.",
    "tools": [WEATHER | {"name": "read"}],
}
SEARCH = {"type": "web_search", "external_web_access": False}
ASK = {"model": "fake", "input": "hi"}
THINKS = Format(calls=GENERIC, reasoning_start="<think>", reasoning_end="</think>", padded=True)
CALL = ("<tool", '_call>\n{"name": "get_weather", "argu', 'ments": {"city": "Łó', 'dź"}}\n</tool_call>')
PATCHES = ('<tool_call>\n{"name": "patch", "arguments": ', '{"input": "*** Begin\\n+x"}}\n</tool_call>')


def call(call_id, name="get_weather", arguments="{}", **more):
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **more}


def output(call_id, said):
    return {"type": "function_call_output", "call_id": call_id, "output": said}


def told(call_id, name="get_weather", arguments="{}"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def text(said, kind="input_text"):
    return {"type": kind, "text": said}


def said(role, *parts):
    return {"type": "message", "role": role, "content": list(parts)}


def thought(*texts, **more):
    parts = [{"type": "reasoning_text", "text": one} for one in texts]
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": parts, **more}


# What the model reads

READ = [
    pytest.param({}, [USER], id="a-string"),
    pytest.param({"instructions": "Be."}, [{"role": "system", "content": "Be."}, USER], id="instructions"),
    pytest.param(
        {"input": [said("user", text("a"), text("b"))]}, [{"role": "user", "content": "a\nb"}], id="parts"
    ),
    pytest.param(
        {
            "instructions": "A",
            "input": [said("developer", text("B")), {"role": "system", "content": "C"}, USER],
        },
        [{"role": "system", "content": "A\n\nB\n\nC"}, USER],
        id="one-system-message",
    ),
    pytest.param(
        {"input": [USER, {"role": "developer", "content": "B"}]},
        [USER, {"role": "developer", "content": "B"}],
        id="a-later-one-stays",
    ),
    pytest.param(
        {
            "input": [
                USER,
                thought("a", "b"),
                said("assistant", text("look", "output_text")) | {"id": "msg_1", "status": "completed"},
                call("1", id="fc_1", status="completed", parsed_arguments={}),
                call("2", arguments='{"city":"x"}'),
                output("1", "4"),
                output("2", [text("5")]),
                said("assistant", text("done", "output_text"), {"type": "refusal", "refusal": "no"}),
            ]
        },
        [
            USER,
            {
                "role": "assistant",
                "content": "look",
                "reasoning_content": "a\nb",
                "tool_calls": [told("1"), told("2", arguments='{"city":"x"}')],
            },
            {"role": "tool", "content": "4", "tool_call_id": "1", "name": "get_weather"},
            {"role": "tool", "content": "5", "tool_call_id": "2", "name": "get_weather"},
            {"role": "assistant", "content": "done\nno"},
        ],
        id="a-turn-is-one-message",
    ),
    pytest.param(
        {"input": [thought("a"), call("1"), thought("b"), call("2"), said("assistant", text("x")), USER]},
        [
            {"role": "assistant", "content": "", "reasoning_content": "a", "tool_calls": [told("1")]},
            {"role": "assistant", "content": "", "reasoning_content": "b", "tool_calls": [told("2")]},
            {"role": "assistant", "content": "x"},
            USER,
        ],
        id="what-comes-again-is-another-turn",
    ),
    pytest.param(
        {
            "input": [
                thought(summary=[{"type": "summary_text", "text": "short"}], content=None),
                said("assistant", text("x")),
                {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAA"},
                USER,
            ]
        },
        [{"role": "assistant", "content": "x", "reasoning_content": "short"}, USER],
        id="reasoning-without-content",
    ),
    pytest.param(
        {
            "input": [
                call("1", name="read", namespace="mcp__fs"),
                {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": "*** é"},
                {"type": "custom_tool_call_output", "call_id": "2", "output": "ok"},
            ]
        },
        [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [told("1", "mcp__fs__read"), told("2", "patch", '{"input":"*** é"}')],
            },
            {"role": "tool", "content": "ok", "tool_call_id": "2", "name": "patch"},
        ],
        id="custom-tools-and-namespaces",
    ),
]


@pytest.mark.parametrize(("fields", "messages"), READ)
async def test_what_the_model_reads(post, client, fields, messages):
    wire = await post(PATH, ASK | fields)
    assert wire.status == 200, wire.body
    assert client.messages == [messages]
    assert "x-cobali-ignored-fields" not in wire.headers


async def test_fields_of_the_request_reach_the_engine(post, client):
    fields = {
        "temperature": 0.5,
        "top_p": 0.25,
        "max_output_tokens": 7,
        "seed": 3,
        "stop": ["a", "b"],
        "reasoning": {"effort": "low", "summary": "auto"},
        "metadata": {"a": "b"},
        "user": "u",
        "prompt_cache_key": "k",
        "service_tier": "flex",
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "stream_options": {"include_obfuscation": False},
        "truncation": "disabled",
        "background": False,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
    }
    wire = await post(PATH, ASK | fields)
    assert wire.status == 200, wire.body
    (request,) = client.requests
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.seed) == (0.5, 0.25, 3)
    assert (request.max_tokens, request.stop) == (7, ("a", "b"))
    assert client.endings[0]["reasoning_effort"] == "low"
    assert "x-cobali-ignored-fields" not in wire.headers
    kept = {
        name: wire.json[name] for name in ("temperature", "top_p", "max_output_tokens", "metadata", "user")
    }
    assert kept == {name: fields[name] for name in kept}
    assert (wire.json["store"], wire.json["prompt_cache_key"]) == (False, "k")
    assert (wire.json["service_tier"], wire.json["truncation"]) == ("default", "disabled")


async def test_tasks_of_agents_are_told_apart_as_those_of_chats_are(post, client):
    for fields in ({}, {"user": "another"}, {"prompt_cache_key": "another"}):
        assert (await post(PATH, ASK | {"tools": [WEATHER]} | fields)).status == 200
    assert len({request.program.name for request in client.requests}) == 3


async def test_a_response_has_what_openais_schema_wants(post):
    tools = [{"type": "function", "name": "now"}, WEATHER | {"strict": True}]
    wire = await post(PATH, ASK | {"tools": tools, "user": None})
    assert "user" not in wire.json, "which may be a string there, and not null"
    now, weather = wire.json["tools"]
    assert now == {"type": "function", "name": "now", "parameters": None, "strict": False}
    assert weather["strict"] is True


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"store": True}, "store"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"fancy": 1, "input": [USER | {"shiny": 1}]}, "fancy, input[].shiny"),
        ({"tools": [WEATHER, SEARCH]}, "tools[].web_search"),
        ({"tools": [PATCH]}, "tools[].format"),
        (
            {"tools": [WEATHER | {"parameters": PARAMETERS | {"uniqueItems": True}}]},
            "tools[0].parameters.uniqueItems",
        ),
    ],
)
async def test_what_changes_nothing_is_named(post, make_app, client, fields, names):
    wire = await post(PATH, ASK | fields)
    assert wire.status == 200, wire.body
    assert wire.headers["x-cobali-ignored-fields"] == names
    client.requests.clear()
    strict = await post(PATH, ASK | fields, app=make_app(strict=True))
    if names != "store":
        assert (strict.status, client.requests) == (400, [])


# What the model is told of tools, and may call


async def test_tools_become_functions(post, client):
    wire = await post(PATH, ASK | {"tools": [SEARCH, STRICT, PATCH, FILES]})
    assert wire.status == 200, wire.body
    weather, patch, read = (tool["function"] for tool in client.tools[0])
    assert weather == {"name": "get_weather", "description": "d", "parameters": STRICT["parameters"]}
    assert patch["name"] == "patch"
    assert patch["description"].startswith("Edits files.")
    assert "start: LINE+" in patch["description"]
    assert list(patch["parameters"]["properties"]) == ["input"]
    assert read["name"] == "mcp__fs__read"
    assert wire.json["tools"] == [STRICT, PATCH, FILES], "those that are in use"
    assert client.requests[0].grammar.triggers == ("<tool_call>",)


def allowed(mode, *tools):
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


CHOICES = [
    pytest.param("required", {"get_weather", "patch", "mcp__fs__read"}, True, id="required"),
    pytest.param({"type": "function", "name": "get_weather"}, {"get_weather"}, True, id="function"),
    pytest.param({"type": "custom", "name": "patch"}, {"patch"}, True, id="custom"),
    pytest.param(
        {"type": "function", "name": "read", "namespace": "mcp__fs"}, {"mcp__fs__read"}, True, id="namespace"
    ),
    pytest.param(
        allowed("required", {"type": "web_search"}, {"type": "function", "name": "get_weather"}),
        {"get_weather"},
        True,
        id="allowed-required",
    ),
    pytest.param(allowed("auto", {"type": "custom", "name": "patch"}), {"patch"}, False, id="allowed-auto"),
]


@pytest.mark.parametrize(("choice", "names", "required"), CHOICES)
async def test_what_may_be_called(post, client, choice, names, required):
    wire = await post(PATH, ASK | {"tools": [WEATHER, PATCH, FILES], "tool_choice": choice})
    assert wire.status == 200, wire.body
    assert len(client.tools[0]) == 3, "all are told"
    grammar = client.requests[0].grammar
    every = {"get_weather", "patch", "mcp__fs__read"}
    assert {name for name in every if f"{name}" in grammar.text} == names
    assert bool(grammar.triggers) != required
    assert wire.json["tool_choice"] == choice


async def test_no_tool_is_called_where_none_may_be(post, client):
    assert (await post(PATH, ASK | {"tools": [WEATHER], "tool_choice": "none"})).status == 200
    assert client.tools == [[]]


FORMATS = [
    {"type": "json_schema", "name": "a", "schema": PARAMETERS, "strict": False},
    {"type": "json_object"},
]


@pytest.mark.parametrize("form", FORMATS)
async def test_a_format_holds_the_answer(post, client, form):
    wire = await post(PATH, ASK | {"text": {"format": form}})
    assert wire.status == 200, wire.body
    assert client.requests[0].grammar is not None
    assert wire.json["text"] == {"format": form}


# What is refused, in the words of this API

IMAGE = {"type": "input_image", "image_url": "u"}


def chosen(choice):
    return {"tools": [WEATHER], "tool_choice": choice}


def held_to(schema):
    return {"text": {"format": {"type": "json_schema", "schema": schema}}}


REFUSED = [
    ({"input": None}, "input", "a string or a list"),
    ({"input": []}, "input", "list of items"),
    ({"input": 5}, "input", "a string or a list"),
    ({"input": [5]}, "input", "list of items"),
    ({"input": [USER, {"role": "king", "content": "x"}]}, "input[1].role", "input[1].role must be one of"),
    ({"input": [{"role": "user", "content": None}]}, "input[0].content", "must not be null"),
    ({"input": [{"role": "user"}]}, "input[0].content", "missing required"),
    ({"input": [said("user", {"type": "input_text"})]}, "input[0].content[0].text", "must be a string"),
    ({"input": [said("user", {"type": "input_file"})]}, "input[0].content[0].type", "input_file"),
    ({"input": [said("user", {"type": ["x"]})]}, "input[0].content[0].type", "not supported"),
    (
        {"instructions": "x", "input": [USER, said("user", text("x"), IMAGE)]},
        "input[1].content[1].type",
        "input[1].content[1]: parts of type 'image_url' are not supported",
    ),
    ({"input": [said("assistant", IMAGE)]}, "input[0].content[0].type", "only text"),
    ({"input": [call("1"), output("1", [IMAGE])]}, "input[1].output[0].type", "not supported"),
    ({"input": [{"type": ["message"]}]}, "input[0].type", "not supported"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "send the item itself"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type", "web_search_call"),
    ({"input": [call("1", arguments=None)]}, "input[0].arguments", "missing"),
    ({"input": [call("1", name="")]}, "input[0].name", "at least 1"),
    ({"input": [{"type": "custom_tool_call", "call_id": "1", "name": "x"}]}, "input[0].input", "missing"),
    ({"input": [thought(content=[{"type": "reasoning_text"}])]}, "input[0].content[0].text", "string"),
    ({"input": [call(str(i)) for i in range(129)]}, "input[128]", "at most 128"),
    ({"input": [USER] * 99}, "input", "maximum context length"),
    ({"input": "a b " * 99}, "input", "in the input"),
    ({"instructions": 5}, "instructions", "valid string"),
    ({"input": "refuse me"}, None, "the template refuses"),
    ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must be at least 1"),
    ({"max_tokens": 5}, "max_tokens", "send max_output_tokens instead"),
    ({"n_predict": 5}, "n_predict", "send max_output_tokens instead"),
    ({"min_tokens": 6, "max_output_tokens": 5}, "min_tokens", "more than max_output_tokens"),
    ({"messages": [USER]}, "messages", "send input instead"),
    ({"response_format": {"type": "json_object"}}, "response_format", "send text.format instead"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "not supported"),
    ({"return_token_ids": True}, "return_token_ids", "not supported"),
    ({"mirostat": 2}, "mirostat", "not supported"),
    ({"n": 2}, "n", "not supported"),
    ({"include": ["nothing"]}, "include[0]", "nothing"),
    ({"top_logprobs": 21}, "top_logprobs", "20"),
    ({"temperature": -1}, "temperature", "temperature"),
    ({"metadata": {"a": "b" * 513}}, "metadata.a", "512"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "16"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "reasoning.effort must be one of"),
    ({"text": {"verbosity": "huge"}}, "text.verbosity", "'low'"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "text.format.type must be text"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "missing"),
    (held_to({"$ref": "#/x"}), "text.format.schema", "text.format.schema"),
    (held_to(5), "text.format.schema", "JSON schema"),
    ({"tools": [{"name": "x"}]}, "tools[0].type", "must be a string"),
    ({"tools": [SEARCH]}, "tools[0].type", "web_search"),
    ({"tools": [WEATHER | {"name": "a b"}]}, "tools[0].name", "tools[0].name"),
    ({"tools": [SEARCH, WEATHER, WEATHER]}, "tools[2].name", "two tools"),
    ({"tools": [FILES, WEATHER | {"name": "mcp__fs__read"}]}, "tools[1].name", "two tools"),
    (
        {"tools": [FILES | {"tools": [WEATHER | {"name": "?"}]}]},
        "tools[0].tools[0].name",
        "tools[0].tools[0]",
    ),
    ({"tools": [FILES | {"tools": [FILES]}]}, "tools[0].tools[0].type", "function"),
    ({"tools": [WEATHER | {"parameters": {"type": "string"}}]}, "tools[0].parameters", "schema of an object"),
    (
        {"tools": [SEARCH, STRICT | {"parameters": PARAMETERS | {"uniqueItems": True}}]},
        "tools[1].parameters",
        "uniqueItems",
    ),
    ({"tools": [WEATHER | {"name": f"f{i}"} for i in range(513)]}, "tools", "at most 512"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    (chosen("always"), "tool_choice", "tool_choice must be"),
    (chosen({"type": ["function"]}), "tool_choice.type", "function"),
    (chosen({"type": "web_search"}), "tool_choice.type", "web_search"),
    (chosen({"type": "function"}), "tool_choice.name", "must be a string"),
    (chosen({"type": "function", "name": "x"}), "tool_choice", "not a function tool"),
    (chosen({"type": "custom", "name": "get_weather"}), "tool_choice", "not a custom"),
    (chosen({"type": "allowed_tools"}), "tool_choice.tools", "must be a list"),
    (chosen({"type": "allowed_tools", "tools": []}), "tool_choice", "tool_choice must have a mode"),
    (chosen(allowed([], {"type": []})), "tool_choice", "must have a mode"),
    (chosen(allowed("auto", "x")), "tool_choice.tools[0].type", "not supported"),
    (chosen(allowed("auto", SEARCH)), "tool_choice.tools", "1 to 512"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED)
async def test_what_cannot_be_done_is_refused_by_its_name_here(post, client, fields, param, words):
    wire = await post(PATH, ASK | {"stream": True} | fields)
    assert wire.status == 400, wire.body
    error = wire.json["error"]
    assert (error["param"], words in error["message"]) == (param, True), error
    assert "messages" not in error["message"] or param in {"messages", None}
    assert client.requests == []


@pytest.mark.parametrize("field", ["tools", "text", "tool_choice", "input"])
async def test_what_is_nested_too_deeply_is_refused(post, field):
    deep = json.loads('{"a":' * 400 + "1" + "}" * 400)
    values = {
        "tools": [WEATHER | {"parameters": deep}],
        "text": held_to(deep)["text"],
        "tool_choice": deep,
        "input": [USER | {"x": deep}],
    }
    wire = await post(PATH, ASK | {field: values[field]})
    assert (wire.status, "nested too deeply" in wire.json["error"]["message"]) == (400, True)


async def test_tokens_of_the_input_are_counted(post, client):
    wire = await post(f"{PATH}/input_tokens", ASK | {"instructions": "be brief"})
    assert wire.json == {"object": "response.input_tokens", "input_tokens": len(client.vocabulary) - 1}
    assert client.requests == []
    wire = await post(f"{PATH}/input_tokens", ASK | {"input": [{"role": "king", "content": ""}]})
    assert (wire.status, wire.json["error"]["param"]) == (400, "input[0].role")


# What comes back


async def streamed(post, **fields):
    wire = await post(PATH, ASK | {"stream": True} | fields)
    assert wire.status == 200, wire.body
    return Checked(events_of(wire.body)).response, wire


async def test_a_stream_and_an_answer_in_one_piece_say_the_same(post, client):
    client.form = THINKS
    client.script = says("<think>", "hm", "</think>\n\n", "Let me", " look.\n", *CALL, *PATCHES)
    fields = {"tools": [WEATHER, PATCH]}
    response, _ = await streamed(post, **fields)
    whole = (await post(PATH, ASK | fields)).json
    thought, message, weather, patch = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "Let me look."
    assert json.loads(weather["arguments"]) == {"city": "Łódź"}
    assert patch["input"] == "*** Begin\n+x"
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 11,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 14,
    }
    ids = {item["id"] for item in response["output"]} | {response["id"]}
    others = {item["id"] for item in whole["output"]} | {whole["id"]}
    assert (len(ids), len(others), ids & others) == (5, 5, set())
    assert [item["type"] for item in whole["output"]] == [item["type"] for item in response["output"]]
    assert whole.keys() == response.keys()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_had_to_end_is_incomplete(post, client, stream):
    client.script = says("Let", " me", reason="length")
    wire = await post(PATH, ASK | {"stream": stream})
    response = Checked(events_of(wire.body)).response if stream else wire.json
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    assert response["usage"]["output_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_words_has_a_message(post, client, stream):
    client.script = says()
    wire = await post(PATH, ASK | {"stream": stream})
    response = Checked(events_of(wire.body)).response if stream else wire.json
    (message,) = response["output"]
    assert message["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]


async def test_a_stream_that_fails_says_so_with_what_there_was(post, client):
    client.script = ends_with(EngineDiedError(), "Half", " of it")
    response, wire = await streamed(post)
    assert response["error"] == {"code": "engine_died", "message": str(EngineDiedError())}
    assert response["output"][0]["content"][0]["text"] == "Half of it"
    assert not wire.body.endswith(b"[DONE]\n\n")
    assert Codex(wire.body).error == f"engine_died: {EngineDiedError()}"


@pytest.mark.parametrize("fields", [{"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}])
async def test_logprobs_are_those_of_the_text(post, fields):
    response, _ = await streamed(post, **fields)
    (part,) = response["output"][0]["content"]
    assert [one["token"] for one in part["logprobs"]] == ["Hello", " world", "!"]
    assert [len(one["top_logprobs"]) for one in part["logprobs"]] == [fields.get("top_logprobs", 0)] * 3


# As clients read it


class Weather(BaseModel):
    """The weather."""

    city: str


async def test_the_package_streams(openai, client):
    client.form = THINKS
    client.script = says("<think>", "hm</think>\n\n", "Let me look.\n", *CALL)
    async with openai.responses.stream(**ASK, tools=[STRICT]) as stream:
        events = [event async for event in stream]
        response = await stream.get_final_response()
    assert response.output_text == "Let me look."
    _, _, weather = response.output
    assert weather.parsed_arguments == {"city": "Łódź"}
    snapshots = [event.snapshot for event in events if event.type == "response.output_text.delta"]
    assert snapshots[-1] == "Let me look."
    assert response.usage.output_tokens_details.reasoning_tokens == 2
    again = [{"role": "user", "content": "hi"}, *response.output]
    again.append({"type": "function_call_output", "call_id": weather.call_id, "output": "4"})
    await openai.responses.create(model="fake", input=again, tools=[STRICT])
    assert client.messages[-1][1]["reasoning_content"] == "hm"
    assert client.messages[-1][1]["tool_calls"][0]["id"] == weather.call_id
    assert client.messages[-1][2]["name"] == "get_weather"


async def test_the_package_parses(openai, client):
    client.script = says('{"city":', ' "Oslo"}')
    answer = await openai.responses.parse(**ASK, text_format=Weather)
    assert answer.output_parsed == Weather(city="Oslo")
    async with openai.responses.stream(**ASK, text_format=Weather) as stream:
        assert (await stream.get_final_response()).output_parsed == Weather(city="Oslo")
    assert client.requests[0].grammar == client.requests[1].grammar


CODEX = {
    "model": "fake",
    "instructions": "You are Codex.",
    "input": [
        said("developer", text("<permissions>")),
        said("user", text("# AGENTS.md")),
        said("user", text("fix it")),
    ],
    "tools": [
        WEATHER | {"strict": False},
        PATCH,
        SEARCH,
        FILES,
        {"type": "tool_search", "execution": "client"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "client_metadata": {"x": "y"},
    "text": {"verbosity": "low"},
}


async def test_a_loop_as_codex_has_it(post, client):
    client.form = THINKS
    client.script = says("<think>hm</think>\n\n", "Let me.\n", *CALL, *PATCHES)
    wire = await post(PATH, CODEX)
    assert wire.headers["x-cobali-ignored-fields"] == (
        "text.verbosity, tools[].format, tools[].web_search, tools[].tool_search"
    )
    codex = Codex(wire.body)
    assert (codex.error, codex.text) == (None, "Let me.")
    assert codex.usage[2] == codex.usage[0] + codex.usage[1]
    *_, weather, patch = codex.items
    results = [
        output(weather["call_id"], "4"),
        {"type": "custom_tool_call_output", "call_id": patch["call_id"], "output": "ok"},
    ]
    client.script = says("Done.")
    codex = Codex((await post(PATH, CODEX | {"input": [*CODEX["input"], *codex.items, *results]})).body)
    assert (codex.error, codex.text) == (None, "Done.")
    system, *users, turn, weather, patch = client.messages[-1]
    assert (system["content"], len(users)) == ("You are Codex.\n\n<permissions>", 2)
    assert (turn["reasoning_content"], turn["content"], len(turn["tool_calls"])) == ("hm", "Let me.", 2)
    assert [(one["name"], one["content"]) for one in (weather, patch)] == [
        ("get_weather", "4"),
        ("patch", "ok"),
    ]
