"""Anthropic's Messages API over HTTP, through the real `anthropic` client where it shows something."""

import json
from dataclasses import replace

import anthropic
import httpx2
import pytest
from fake_client import Wire, ends_with, says
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cobali_ray.chat.format import GENERIC, Format
from cobali_ray.errors import (
    DeadlineExceededError,
    DrainingError,
    EngineDiedError,
    QueueFullError,
    RateLimitError,
)

MESSAGES = "/v1/messages"
USER = {"role": "user", "content": "weather in Łódź?"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "d", "input_schema": SCHEMA}
ASK = {"model": "fake", "max_tokens": 20, "messages": [USER]}
CALLS = (
    "Let me",
    " look.\n<tool_call>\n{",
    '"name": "get_weather", "arguments": {"city": "Łó',
    'dź"}}\n</tool_c',
    "all>",
)
THINKS = Format(calls=GENERIC, reasoning_start="<think>", reasoning_end="</think>", padded=True)
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


@pytest.fixture
async def claude(app):
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http:
        yield anthropic.AsyncAnthropic(api_key="x", base_url="http://app", http_client=http, max_retries=0)


@pytest.fixture
def rendered(post, client):
    """Post a body and return the messages that the template got."""

    async def go(**fields):
        wire = await post(MESSAGES, ASK | fields)
        assert wire.status == 200, wire.body
        return client.messages[-1]

    return go


async def final(claude, **fields):
    """Return the message of a call and that of a stream, which must be the same."""
    whole = await claude.messages.create(**ASK | fields)
    async with claude.messages.stream(**ASK | fields) as stream:
        events = [event.type async for event in stream]
        streamed = await stream.get_final_message()
    assert events[0] == "message_start"
    assert events[-1] == "message_stop"
    assert whole.model_dump(exclude={"id", "content"}) == streamed.model_dump(exclude={"id", "content"})
    assert without_ids(whole) == without_ids(streamed)
    return whole


def without_ids(message):
    return [
        {name: value for name, value in block.model_dump(exclude_none=True).items() if name != "id"}
        for block in message.content
    ]


# What comes back


async def test_text(claude, client):
    message = await final(claude)
    assert without_ids(message) == [{"type": "text", "text": "Hello world!"}]
    assert (message.stop_reason, message.stop_sequence, message.role) == ("end_turn", None, "assistant")
    assert message.id.startswith("msg_")
    n_prompt = client.requests[0].n_prompt
    assert message.usage.model_dump(exclude_none=True) == {
        "input_tokens": n_prompt - 1,
        "cache_read_input_tokens": 1,
        "cache_creation_input_tokens": 0,
        "output_tokens": 3,
    }


async def test_thinking_and_calls(claude, client):
    client.form = THINKS
    client.script = says("<think>\nHm.", "\n</think>\n\n", *CALLS)
    message = await final(claude, tools=[WEATHER], thinking={"type": "enabled", "budget_tokens": 1024})
    assert without_ids(message) == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "name": "get_weather", "input": {"city": "Łódź"}},
    ]
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens_details.thinking_tokens == 2


async def test_what_came_back_may_be_sent_again(claude, client):
    client.form = THINKS
    client.script = says("<think>\nHm.\n</think>\n\n", *CALLS)
    first = await claude.messages.create(**ASK, tools=[WEATHER])
    call = first.content[-1]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "4 degrees"}
    history = [USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    await claude.messages.create(**ASK | {"messages": history}, tools=[WEATHER])
    assert client.messages[-1][1:] == [
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": {"city": "Łódź"}},
                }
            ],
        },
        {"role": "tool", "content": "4 degrees", "tool_call_id": call.id, "name": "get_weather"},
    ]


async def test_thoughts_may_be_left_out(claude, client):
    client.form = THINKS
    client.script = says("<think>\nHm.\n</think>\n\nNo.")
    message = await final(claude, thinking={"type": "adaptive", "display": "omitted"})
    assert without_ids(message) == [{"type": "text", "text": "No."}]


# What the model is told


async def test_system_texts_come_first_and_later_ones_as_reminders(rendered):
    told = await rendered(
        system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "system", "content": "Be brief."},
            USER,
            {"role": "assistant", "content": [{"type": "text", "text": "4 degrees."}]},
            {"role": "system", "content": [{"type": "text", "text": "It is night."}]},
            {"role": "user", "content": "And now?"},
        ],
    )
    assert told == [
        {"role": "system", "content": "Be kind.\nBe brief."},
        USER,
        {"role": "assistant", "content": "4 degrees."},
        {
            "role": "user",
            "content": "<system-reminder>\nIt is night.\n</system-reminder>\nAnd now?",
        },
    ]


@pytest.mark.parametrize(
    "stamped",
    [
        "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch={};You are Claude.",
        "x-anthropic-billing-header: cc_version=2.1.{}; cc_entrypoint=cli; cch=00000;\n\nYou are Claude.",
        [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch={}"},
            {"type": "text", "text": "You are Claude."},
        ],
    ],
)
async def test_a_stamp_that_differs_with_each_request_is_not_for_the_model(rendered, stamped):
    texts = [
        await rendered(system=json.loads(json.dumps(stamped).replace("{}", stamp)))
        for stamp in ("a5145", "b7712")
    ]
    assert texts[0] == texts[1] == [{"role": "system", "content": "You are Claude."}, USER]


async def test_other_system_text_stays_as_it_is(rendered):
    text = "Never say x-anthropic-billing-header: a=b; or cch=12345;"
    assert (await rendered(system=text))[0]["content"] == text


async def test_results_of_tools_stand_before_what_the_user_says(rendered):
    uses = [{"type": "tool_use", "id": str(i), "name": "get_weather", "input": {}} for i in (1, 2, 3)]
    told = await rendered(
        messages=[
            USER,
            {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, *uses]},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Here:"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "1",
                        "content": [{"type": "text", "text": "cold"}],
                    },
                    {"type": "tool_result", "tool_use_id": "2", "content": "broke", "is_error": True},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "3"}]},
            {"role": "user", "content": "Go on."},
        ]
    )
    assert [(one["role"], one["content"]) for one in told] == [
        ("user", USER["content"]),
        ("assistant", ""),
        ("tool", "cold"),
        ("tool", "Error:\nbroke"),
        ("tool", ""),
        ("user", "Here:\nGo on."),
    ]
    assert [call["id"] for call in told[1]["tool_calls"]] == ["1", "2", "3"]


async def test_an_answer_goes_on_from_the_last_turn(rendered, client):
    await rendered(messages=[USER, {"role": "assistant", "content": "In Łódź"}])
    assert client.endings[-1]["continue_final_message"] is True


CHOICES = [
    ({"type": "auto"}, False, True),
    ({"type": "auto", "disable_parallel_tool_use": True}, False, False),
    ({"type": "any"}, True, True),
    ({"type": "tool", "name": "get_weather"}, True, False),
    (None, False, True),
]


@pytest.mark.parametrize(("choice", "required", "parallel"), CHOICES)
async def test_tool_choice(post, client, choice, required, parallel):
    tools = [WEATHER, {"name": "now", "type": "custom", "input_schema": {"type": "object"}}]
    client.script = says("x")
    assert (await post(MESSAGES, ASK | {"tools": tools, "tool_choice": choice})).status == 200
    grammar = client.requests[0].grammar
    names = [function["function"]["name"] for function in client.tools[-1]]
    assert names == ["get_weather", "now"]
    assert bool(grammar.triggers) != required  # held from the beginning, or from where a call opens
    chat = {
        "model": "fake",
        "messages": [USER],
        "tools": [
            {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
            {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
        ],
        "tool_choice": "required" if required else "auto",
        "parallel_tool_calls": parallel,
    }
    if choice and choice["type"] == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": "get_weather"}}
    assert (await post("/v1/chat/completions", chat)).status == 200
    assert client.requests[1].grammar == grammar


async def test_with_tool_choice_none_the_model_hears_of_no_tool(post, client):
    assert (await post(MESSAGES, ASK | {"tools": [WEATHER], "tool_choice": {"type": "none"}})).status == 200
    assert client.tools == [[]]


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [(None, False), ("disabled", False), ("enabled", True), ("adaptive", True), ("between_tools", True)],
)
async def test_the_model_reasons_only_if_asked_to(post, client, thinking, thinks):
    fields = {} if thinking is None else {"thinking": {"type": thinking, "budget_tokens": 1024}}
    assert (await post(MESSAGES, ASK | fields)).status == 200
    assert client.endings[-1].items() >= {"enable_thinking": thinks, "thinking": thinks}.items()


async def test_how_tokens_are_drawn(post, client):
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "max_tokens": 11, "stop_sequences": ["#", "."]}
    assert (await post(MESSAGES, ASK | fields)).status == 200
    (request,) = client.requests
    assert (request.max_tokens, request.stop) == (11, ("#", "."))
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.5, 0.9, 7)


HELD = {"type": "json_schema", "schema": SCHEMA}


@pytest.mark.parametrize(
    "fields",
    [
        {"output_format": HELD},
        {"output_config": {"format": HELD, "effort": "low"}},
        {"output_format": HELD, "output_config": {"effort": "low"}},
    ],
)
async def test_an_answer_is_held_to_a_schema(post, client, fields):
    assert (await post(MESSAGES, ASK | fields)).status == 200
    assert client.requests[0].grammar is not None
    assert ("reasoning_effort" in client.endings[-1]) == ("output_config" in fields)


async def test_what_only_others_need_is_accepted_in_silence(make_app, client):
    app = make_app(strict=True)
    fields = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
        "tools": [WEATHER | {"cache_control": {"type": "ephemeral"}, "eager_input_streaming": True}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]}],
        "mcp_servers": [],
    }
    headers = [("anthropic-version", "2023-06-01"), ("anthropic-beta", "a,b")]
    wire = await Wire(app, MESSAGES + "?beta=true", ASK | fields, headers=headers).run()
    assert wire.status == 200, wire.body
    assert "x-cobali-ignored-fields" not in wire.headers


async def test_what_changes_nothing_is_named(post):
    wire = await post(MESSAGES, ASK | {"context_management": {"edits": []}})
    assert wire.headers["x-cobali-ignored-fields"] == "context_management"


# Counting


@pytest.mark.parametrize("fields", [{}, {"system": "Be kind."}, {"tools": [WEATHER]}, {"thinking": None}])
async def test_counting_is_what_the_call_is_charged_for(claude, client, fields):
    fields = {"model": "fake", "messages": [USER], **fields}
    counted = await claude.messages.count_tokens(**{k: v for k, v in fields.items() if v is not None})
    assert client.requests == []
    usage = (await claude.messages.create(max_tokens=5, **{k: v for k, v in fields.items() if v})).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


# What is refused


def message(*blocks, role="user"):
    return {"messages": [USER, {"role": role, "content": list(blocks)}]}


USE = {"type": "tool_use", "id": "1", "name": "x"}
RESULT = {"type": "tool_result", "tool_use_id": "1"}
REFUSED = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    (message({"type": "document", "source": {}}), "messages[1].content[0]"),
    (message({"type": "text"}), "messages[1].content[0].text"),
    (message({"text": "x"}), "messages[1].content[0]"),
    (message({"type": "tool_result", "content": "x"}), "messages[1].content[0].tool_use_id"),
    (message(RESULT | {"content": 5}), "messages[1].content[0].content"),
    (message(RESULT | {"content": [5]}), "messages[1].content[0].content"),
    (message({"type": "server_tool_use", "id": "1"}, role="assistant"), "messages[1].content[0]"),
    (message(USE | {"input": []}, role="assistant"), "messages[1].content[0]"),
    (message(USE, role="assistant"), "messages[1].content"),
    (message({"type": "image", "source": {"type": "file"}}), "messages[1].content[0]"),
    (message({"type": "text", "text": "x"}, IMAGE), "messages[1].content[1]"),
    (message(RESULT | {"content": [IMAGE]}), "messages[1].content[0].content[0]"),
    ({"system": [{"type": "image"}]}, "system[0]"),
    ({"system": 5}, "system"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305'"),
    ({"tools": [{"name": "x", "input_schema": {}, "type": ["custom"]}]}, "tools[0]"),
    ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [WEATHER, WEATHER]}, "get_weather"),
    ({"tools": [{"name": "x", "input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
    (
        {"tools": [{"name": "x", "input_schema": {"type": "object", "required": [{}]}}]},
        "tools[0].input_schema",
    ),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"thinking": {"type": "much"}}, "thinking.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"output_config": {"effort": "extreme"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}},
        "output_config.format.schema",
    ),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"temperature": "warm"}, "temperature"),
    ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
    ({"container": "x"}, "container"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED)
async def test_what_cannot_be_done_is_named_in_the_words_of_the_api(post, client, fields, named):
    wire = await post(MESSAGES, ASK | fields)
    assert wire.status == 400
    assert wire.json["type"] == "error"
    assert wire.json["error"]["type"] == "invalid_request_error"
    assert named in wire.json["error"]["message"]
    for other in ("function", "parameters", "response_format", "image_url", "reasoning_"):
        assert other not in wire.json["error"]["message"].replace("image_url' are", "")
    assert client.requests == []


async def test_threads_are_refused_in_the_way_that_sends_the_tool_runner_on_without(post):
    wire = await post(MESSAGES, ASK | {"thread": {"type": "create"}})
    assert wire.status == 400
    assert wire.json["error"]["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }


ERRORS = [
    (QueueFullError("requests", 3, 2.1), 529, "overloaded_error"),
    (DrainingError(), 529, "overloaded_error"),
    (RateLimitError("requests per minute", 3, 2.0), 429, "rate_limit_error"),
    (DeadlineExceededError(1.0), 504, "timeout_error"),
    (EngineDiedError(), 500, "api_error"),
    (ValueError("secret"), 500, "api_error"),
]


@pytest.mark.parametrize(("error", "status", "kind"), ERRORS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_have_the_types_of_the_api(post, client, error, status, kind, stream):
    client.script = lambda _: iter([error])
    wire = await post(MESSAGES, ASK | {"stream": stream}, headers=[("x-request-id", "mine")])
    assert wire.status == status
    assert (wire.json["type"], wire.json["error"]["type"]) == ("error", kind)
    assert wire.json["request_id"] == wire.headers["x-request-id"] == wire.headers["request-id"]
    assert ("retry-after" in wire.headers) == (status in {429, 529})
    assert "secret" not in wire.json["error"]["message"]


async def test_the_client_knows_the_errors(claude, client, make_app):
    with pytest.raises(anthropic.NotFoundError) as found:
        await claude.messages.create(**ASK | {"model": "nope"})
    assert found.value.type == "not_found_error"
    with pytest.raises(anthropic.NotFoundError):  # though it looks like a place in the body
        await claude.messages.create(**ASK | {"model": "messages[99].content[7]"})
    client.the_card = replace(client.card, n_ctx_slot=2)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        await claude.messages.create(**ASK)


@pytest.mark.parametrize(
    ("path", "body", "keys", "status", "kind"),
    [
        (MESSAGES, b"{", (), 400, "invalid_request_error"),
        (MESSAGES + "/nothing", {}, (), 404, "not_found_error"),
        (MESSAGES, b"[" * 100, (), 413, "request_too_large"),
        (MESSAGES, {}, ("right",), 401, "authentication_error"),
    ],
)
async def test_the_frames_own_errors_have_the_same_shape(make_app, path, body, keys, status, kind):
    wire = await Wire(make_app(max_body_bytes=50, api_keys=keys), path, body).run()
    assert wire.status == status
    assert (wire.json["type"], wire.json["error"]["type"]) == ("error", kind)


# Streams


async def test_an_error_inside_a_stream_is_an_event(claude, client):
    client.script = ends_with(EngineDiedError(), "Hello")
    heard = []

    async def hear():
        async with claude.messages.stream(**ASK) as stream:
            async for event in stream:
                heard.append(event.type)  # noqa: PERF401 what was heard before it fails

    with pytest.raises(anthropic.APIStatusError) as raised:
        await hear()
    assert heard[-1] == "text"
    assert raised.value.body["error"]["type"] == "api_error"
    assert raised.value.body["request_id"]


# Whatever is sent

words = st.sampled_from(
    ["user", "assistant", "system", "text", "image", "tool_use", "tool_result", "thinking", "type", "x", ""]
)
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.just(1e308) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=6,
)
names = ("text", "id", "name", "input", "content", "source", "tool_use_id", "is_error", "thinking")
blocks = st.fixed_dictionaries({"type": words}, optional=dict.fromkeys(names, junk | words))
turns = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system"]),
        "content": words | st.lists(blocks, max_size=3),
    }
)
FIELDS = (
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "stop_sequences",
    "top_k",
    "max_tokens",
)


@given(
    st.lists(turns, min_size=1, max_size=4) | junk,
    st.dictionaries(st.sampled_from(FIELDS), junk | st.lists(blocks, max_size=2), max_size=2),
    st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_is_sent_is_answered_in_the_words_of_the_api(app, client, messages, fields, stream):
    wire = await Wire(app, MESSAGES, ASK | {"messages": messages, "stream": stream} | fields).run()
    assert wire.status in {200, 400}
    if wire.status == 400:
        assert wire.json["error"]["type"] == "invalid_request_error"
        assert wire.json["error"]["message"]
