"""Values that other servers take: what they do here, and what is named back."""

import json

import pytest
from fake_client import Wire, stats

from cobali_ray.api.body.reading import mended
from cobali_ray.chat.format import GENERIC, Format
from cobali_ray.core.request.events import Delta, End

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hi"}
ASK = {"model": "fake", "messages": [USER]}
THINKS = Format(calls=GENERIC, reasoning_start="<think>", reasoning_end="</think>", padded=True)


# return_token_ids


def tells(request):
    """Script: the number of the answer in front of its tokens, one of which has no text; then the end."""
    n = 10 * int(request.request_id.rpartition("-")[2] if "-" in request.request_id[-3:] else 0)
    for text, tokens in (
        ("<th", (n,)),
        ("ink>hm</think>", (n + 1, n + 2)),
        ("", (n + 3,)),
        ("Yes", (n + 4,)),
    ):
        yield [Delta(request.request_id, text, tokens)]
    yield [Delta(request.request_id, "", (n + 5,)), End(request.request_id, "stop", None, stats(request, 6))]


TOKENS = [[0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15]]


@pytest.mark.parametrize("form", [Format(calls=GENERIC), THINKS], ids=["plain", "reasons"])
async def test_a_chats_tokens(post, client, form):
    client.script, client.form = tells, form
    fields = ASK | {"n": 2, "return_token_ids": True, "include_reasoning": False}
    whole = (await post(CHAT, fields)).json
    prompt = list(client.requests[0].prompt)
    assert whole["prompt_token_ids"] == prompt
    assert [choice["token_ids"] for choice in whole["choices"]] == TOKENS
    for more in ({}, {"logprobs": True}):
        *chunks, done = (await post(CHAT, fields | {"stream": True} | more)).events
        assert done == "[DONE]"
        told, prompts = [[], []], [[], []]
        for chunk in chunks:
            (choice,) = chunk["choices"]
            told[choice["index"]] += choice.get("token_ids", [])
            prompts[choice["index"]] += chunk.get("prompt_token_ids", [])
            assert ("prompt_token_ids" in chunk) == ("role" in choice["delta"])
        assert (told, prompts) == (TOKENS, [prompt, prompt])


@pytest.mark.parametrize("echo", [False, True])
async def test_a_completions_tokens(post, client, echo):
    client.script = tells
    fields = {"prompt": ["once", "twice upon"], "return_token_ids": True, "echo": echo}
    whole = (await post(COMPLETION, fields)).json
    prompts = [list(request.prompt) for request in client.requests]
    assert [choice["prompt_token_ids"] for choice in whole["choices"]] == prompts
    assert [choice["token_ids"] for choice in whole["choices"]] == TOKENS
    *chunks, _ = (await post(COMPLETION, fields | {"stream": True})).events
    told, texts = [[], []], ["", ""]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert choice.get("prompt_token_ids") in (None, prompts[choice["index"]])
        assert ("prompt_token_ids" in choice) == (not told[choice["index"]] and not texts[choice["index"]])
        told[choice["index"]] += choice.get("token_ids", [])
        texts[choice["index"]] += choice["text"] or " "
    assert told == TOKENS


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_no_tokens_are_told_that_nobody_asked_for(post, path):
    for fields in ({"stream": True}, {"return_token_ids": False}):
        assert b"token_ids" not in (await post(path, ASK | {"prompt": "x"} | fields)).body


# Lengths and draws


async def test_no_limit_and_no_top_p(make_app, post, client):
    app = make_app(default_max_tokens=3)
    for fields in ({"max_tokens": -1}, {"max_completion_tokens": -1}, {"max_tokens": -1, "top_p": 0}):
        assert (await post(CHAT, ASK | fields, app=app)).status == 200
        assert client.requests[-1].max_tokens == 64 - client.requests[-1].n_prompt
    assert client.requests[-1].sampling.top_p == 0
    wire = await post("/v1/responses", {"input": "hi", "max_output_tokens": -1}, app=app)
    assert (wire.status, wire.json["max_output_tokens"]) == (200, -1)
    assert client.requests[-1].max_tokens == 64 - client.requests[-1].n_prompt
    await post("/completion", {"prompt": "hi", "n_predict": -1}, app=app)
    assert client.requests[-1].max_tokens == 64 - client.requests[-1].n_prompt
    assert (await post(CHAT, ASK | {"max_tokens": -2})).json["error"]["param"] == "max_tokens"
    assert (await post(CHAT, ASK | {"max_tokens": -1, "messages": [USER] * 40})).status == 400


# Reasoning


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({"enable_thinking": False}, {"enable_thinking": False, "thinking": False}),
        ({"enable_thinking": True}, {"enable_thinking": True, "thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"thinking": {"type": "enabled"}}, {"enable_thinking": True, "thinking": True}),
        (
            {"thinking": {"type": "disabled"}, "enable_thinking": False, "reasoning_effort": "none"},
            {"enable_thinking": False, "thinking": False, "reasoning_effort": "none"},
        ),
        (
            {"enable_thinking": False, "chat_template_kwargs": {"thinking": 1}},
            {"enable_thinking": False, "thinking": 1},
        ),
        ({"reasoning": {}}, {}),
    ],
)
async def test_whether_the_model_reasons(post, client, fields, variables):
    assert (await post(CHAT, ASK | fields)).status == 200
    assert client.endings == [{"add_generation_prompt": True} | variables]


async def test_a_budget_comes_with_thinking(post, client):
    client.form = THINKS
    await post(CHAT, ASK | {"thinking": {"type": "enabled", "budget_tokens": 7}})
    assert client.requests[0].reasoning_budget.n_tokens == 7


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"enable_thinking": True, "thinking": {"type": "disabled"}}, "thinking"),
        ({"enable_thinking": True, "reasoning_effort": "none"}, "reasoning_effort"),
        ({"thinking": {"type": "perhaps"}}, "thinking.type"),
        ({"enable_thinking": "no"}, "enable_thinking"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
    ],
)
async def test_what_contradicts_itself_or_means_nothing_is_refused(post, fields, param):
    error = (await post(CHAT, ASK | fields)).json["error"]
    assert error["param"] == param


# What changes nothing


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        (CHAT, {"verbosity": "low"}, "verbosity"),
        (CHAT, {"prediction": {"type": "content", "content": "x"}}, "prediction"),
        (CHAT, {"verbosity": "medium", "prediction": None, "truncation": "disabled"}, None),
        ("/v1/responses", {"truncation": "auto"}, "truncation"),
        ("/v1/responses", {"truncation": "disabled", "reasoning": {}}, None),
    ],
)
async def test_what_changes_nothing_is_named_or_with_strict_refused(make_app, post, path, fields, named):
    body = (ASK if path == CHAT else {"input": "hi"}) | fields
    wire = await post(path, body)
    assert (wire.status, wire.headers.get("x-cobali-ignored-fields")) == (200, named)
    strict = await post(path, body, app=make_app(strict=True))
    assert strict.status == (200 if named is None else 400)


# Histories


async def test_refusals_and_functions_of_earlier_turns_reach_the_template(post, client):
    parts = [{"type": "text", "text": "No."}, {"type": "refusal", "refusal": "I will not."}]
    call = {"name": "now", "arguments": "{}"}
    messages = [
        USER,
        {"role": "assistant", "content": parts},
        {"role": "assistant", "content": None, "refusal": "Never."},
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "now", "content": "noon"},
        {"role": "function", "name": "later", "content": None},
    ]
    assert (await post(CHAT, ASK | {"messages": messages})).status == 200
    told = {"id": "call00003", "type": "function", "function": call}
    assert client.messages == [
        [
            USER,
            {"role": "assistant", "content": "No.\nI will not."},
            {"role": "assistant", "content": "Never."},
            {"role": "assistant", "content": "", "tool_calls": [told]},
            {"role": "tool", "content": "noon", "tool_call_id": "call00003", "name": "now"},
            {"role": "tool", "content": "", "tool_call_id": "call00003", "name": "later"},
        ]
    ]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "x", "function_call": {"name": "f"}}, "messages[0].function_call"),
        ({"role": "assistant", "content": [{"type": "refusal"}]}, "messages[0].content[0].refusal"),
        ({"role": "assistant", "function_call": {"name": ""}}, "messages[0].function_call.name"),
    ],
)
async def test_what_is_wrong_in_them_is_named(post, message, param):
    assert (await post(CHAT, ASK | {"messages": [message]})).json["error"]["param"] == param


# Halves of surrogate pairs


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        (CHAT, {"messages": [USER, {"role": "user", "content": "a\ud83dz"}]}, "messages[1].content"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "\udc00"}]}]},
            "messages[0].content[0].text",
        ),
        (COMPLETION, {"prompt": "\udfff"}, "prompt"),
        ("/v1/responses", {"input": [{"role": "user", "content": "\ud800"}]}, "input[0].content"),
        (
            "/v1/messages",
            {"max_tokens": 3, "messages": [{"role": "user", "content": "\ud800"}]},
            "messages[0].content",
        ),
        (
            "/api/chat",
            {"stream": False, "messages": [{"role": "user", "content": "\ud800"}]},
            "messages[0].content",
        ),
        ("/tokenize", {"content": "\ud800"}, "content"),
    ],
)
async def test_half_a_pair_is_replaced_and_named(post, client, path, body, place):
    wire = await post(path, body)
    assert (wire.status, wire.headers["x-cobali-mended-fields"]) == (200, place)
    assert "\ufffd" in str(client.tokenized)


async def test_a_stream_names_it_too_and_whole_texts_are_let_be(app):
    body = ASK | {
        "messages": [{"role": "user", "content": "\ud83d \\ud83d \U0001f600 \n\u00e9"}],
        "stream": True,
    }
    wire = await Wire(app, CHAT, body).run()
    assert wire.headers["x-cobali-mended-fields"] == "messages[0].content"
    plain = await Wire(
        app, CHAT, ASK | {"messages": [{"role": "user", "content": "\\ud83d \U0001f600"}]}
    ).run()
    assert "x-cobali-mended-fields" not in plain.headers


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"\uD83D\uDE00"', "\U0001f600"),
        (rb'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (rb'"\ude00\ud83d"', "\ufffd\ufffd"),
        (rb'"\\ud83d"', "\\ud83d"),
        (rb'"\\\ud83d"', "\\\ufffd"),
        (rb'"\ud83d\\ude00"', "\ufffd\\ude00"),
        (rb'"\ud83d\n\ude00"', "\ufffd\n\ufffd"),
        (b'"\xed\xa0\xbd\xed\x95\x9c"', "\ufffd\ud55c"),
    ],
)
def test_what_half_a_pair_is(raw, text):
    body, places = mended(b'{"a": [%b]}' % raw)
    assert json.loads(body) == {"a": [text]}
    assert places == (("a[0]",) if "\ufffd" in text else ())


@pytest.mark.parametrize(
    "raw", [rb'{"a": "\ud800"', rb'{"a": "\ud8', rb'{"a": "\ud80x"}', b'{"a": "\xed\xa0"}']
)
async def test_what_is_no_json_is_still_refused(post, raw):
    assert mended(raw) == (raw, ())
    assert (await post(CHAT, raw)).json["error"]["code"] == "invalid_json"


def test_a_name_is_mended_like_a_text():
    body, places = mended(rb'{"a\ud800": {"b": "\ud800"}}')
    assert json.loads(body) == {"a\ufffd": {"b": "\ufffd"}}
    assert places == ("a\ufffd", "a\ufffd.b")
