"""Which fields are refused by name, which pass in silence, which are named back."""

from dataclasses import replace

import pytest
from fake_client import ASK, CHAT
from structlog.testing import capture_logs

USER = {"role": "user", "content": "hi"}

REFUSED = [
    pytest.param({"dry_multiplier": True}, "dry_multiplier", "unsupported_parameter", id="dry-bool"),
    pytest.param({"min_tokens": 6, "max_tokens": 5}, "min_tokens", "invalid_value", id="min-over-max"),
    pytest.param({"min_tokens": 64}, "min_tokens", "invalid_value", id="min-over-the-rest"),
    pytest.param({"stop": ["x" * 1001]}, "stop", "invalid_value", id="long-stop"),
    pytest.param(
        {"logit_bias": dict.fromkeys(map(str, range(4097)), 1)}, "logit_bias", "invalid_value", id="biases"
    ),
    pytest.param(
        {"response_format": {"type": "xml"}}, "response_format.type", "unsupported_parameter", id="format"
    ),
    pytest.param({"messages": []}, "messages", "invalid_value", id="no-messages"),
    pytest.param({"messages": [{"content": "hi"}]}, "messages[0].role", "invalid_value", id="no-role"),
    pytest.param({"messages": [{**USER, "role": "king"}]}, "messages[0].role", "invalid_value", id="role"),
    pytest.param(
        {"messages": [{**USER, "content": 5}]}, "messages[0].content", "invalid_value", id="content"
    ),
    pytest.param({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value", id="null-content"),
    pytest.param(
        {"messages": [{**USER, "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
        "unsupported_parameter",
        id="image",
    ),
    pytest.param(
        {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
        "messages[0].tool_calls[0].function",
        "invalid_value",
        id="tool-calls",
    ),
    pytest.param({"add_generation_prompt": 1}, "add_generation_prompt", "invalid_value", id="int-flag"),
    pytest.param(
        {"continue_final_message": True}, "continue_final_message", "invalid_value", id="continue-user"
    ),
    pytest.param(
        {
            "messages": [USER, {"role": "assistant", "content": "x"}],
            "continue_final_message": True,
            "add_generation_prompt": True,
        },
        "continue_final_message",
        "invalid_value",
        id="continue-and-open",
    ),
    pytest.param({"temperature": "1"}, "temperature", "invalid_value", id="string-number"),
    pytest.param({"temperature": True}, "temperature", "invalid_value", id="bool-number"),
    pytest.param({"temperature": -1}, "temperature", "invalid_value", id="range"),
    pytest.param({"max_tokens": True}, "max_tokens", "invalid_value", id="bool-int"),
    pytest.param({"max_tokens": 1.5}, "max_tokens", "invalid_value", id="fraction"),
    pytest.param({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value", id="zero"),
    pytest.param(
        {"max_tokens": 1, "max_completion_tokens": 2},
        "max_completion_tokens",
        "invalid_value",
        id="two-limits",
    ),
    pytest.param({"max_tokens": 2**31}, "max_tokens", "invalid_value", id="no-such-length"),
    pytest.param({"logprobs": 1}, "logprobs", "invalid_value", id="int-logprobs"),
    pytest.param({"top_logprobs": 2}, "top_logprobs", "invalid_value", id="top-without-logprobs"),
    pytest.param({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value", id="too-many-top"),
    pytest.param({"n": 0}, "n", "invalid_value", id="n-0"),
    pytest.param({"n": 129}, "n", "invalid_value", id="n-129"),
    pytest.param({"stop": 5}, "stop", "invalid_value", id="stop"),
    pytest.param({"stop": [""]}, "stop", "invalid_value", id="empty-stop"),
    pytest.param({"logit_bias": {"a": 1}}, "logit_bias", "invalid_value", id="bias-key"),
    pytest.param({"logit_bias": {"1000": 1}}, "logit_bias", "invalid_value", id="bias-outside"),
    pytest.param({"logit_bias": {"1": "x"}}, "logit_bias.1", "invalid_value", id="bias-kind"),
    pytest.param({"stream": "yes"}, "stream", "invalid_value", id="stream"),
    pytest.param({"stream_options": {}}, "stream_options", "invalid_value", id="options-without-stream"),
    pytest.param({"timeout_s": 0}, "timeout_s", "invalid_value", id="timeout"),
    pytest.param({"stop_token_ids": [1000]}, "stop_token_ids", "invalid_value", id="stop-token-outside"),
    pytest.param({"stop_token_ids": [1] * 129}, "stop_token_ids", "invalid_value", id="many-stop-tokens"),
    pytest.param({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value", id="negative-stop-token"),
    pytest.param({"allowed_token_ids": [2**70]}, "allowed_token_ids[0]", "invalid_value", id="huge-token"),
    pytest.param({"allowed_token_ids": [1] * 4097}, "allowed_token_ids", "invalid_value", id="many-allowed"),
    pytest.param({"bad_words": [" "]}, "bad_words", "invalid_value", id="empty-bad-word"),
    pytest.param({"bad_words": ["x"] * 129}, "bad_words", "invalid_value", id="many-bad-words"),
    pytest.param({"bad_words": ["x" * 1001]}, "bad_words", "invalid_value", id="long-bad-word"),
    pytest.param({"bad_words": "x"}, "bad_words", "invalid_value", id="no-list-of-bad-words"),
    pytest.param({"top_n_sigma": 1001}, "top_n_sigma", "invalid_value", id="many-deviations"),
    pytest.param({"include_stop_str_in_output": 1}, "include_stop_str_in_output", "invalid_value", id="int"),
    pytest.param({"seed": 1e30}, "seed", "invalid_value", id="seed"),
]


@pytest.mark.parametrize(("fields", "param", "code"), REFUSED)
async def test_refusals_name_the_field(post, client, fields, param, code):
    wire = await post(CHAT, ASK | fields)
    error = wire.json["error"]
    assert (wire.status, error["type"], error["param"], error["code"]) == (
        400,
        "invalid_request_error",
        param,
        code,
    )
    assert error["message"]
    assert client.requests == []


NEUTRAL = {
    "user": "u",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "parallel_tool_calls": True,
    "tools": [],
    "functions": [],
    "tool_choice": "auto",
    "function_call": "none",
    "response_format": {"type": "text"},
    "guided_decoding_backend": "auto",
    "modalities": ["text"],
    "logprobs": False,
    "top_logprobs": 0,
    "verbosity": "medium",
    "audio": None,
    "temperature": None,
    "stop": None,
    "stream": None,
    "stream_options": None,
    "n": None,
    "top_k": -1,
    # what chat front ends send with every request, at its defaults
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "mirostat": 0,
    "mirostat_mode": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "tfs_z": 1,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "skip_special_tokens": True,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "samplers": ["penalties", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "temperature"],
    "nobody_knows": None,
}


async def test_what_asks_for_nothing_is_accepted_even_when_strict(make_app, post):
    wire = await post(CHAT, ASK | NEUTRAL, app=make_app(strict=True))
    assert wire.status == 200
    assert "x-cobali-ignored-fields" not in wire.headers


async def test_how_far_back_penalties_look_is_named_where_the_model_s_own_may_be_on(post):
    wire = await post(CHAT, ASK | {"repeat_last_n": 64})
    assert (wire.status, wire.headers["x-cobali-ignored-fields"]) == (200, "repeat_last_n")
    assert (await post(CHAT, ASK | {"repeat_last_n": 64, "repeat_penalty": 1.1})).status == 400


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"content": None, "refusal": None, "audio": None, "function_call": None}, id="nulls"),
        pytest.param({"content": "x", "annotations": [], "refusal": "", "parsed": None}, id="openai"),
        pytest.param({"content": "x", "provider_specific_fields": {"refusal": None}}, id="litellm"),
    ],
)
async def test_what_clients_send_back_of_an_answer_is_accepted_even_when_strict(make_app, post, message):
    body = {"messages": [*ASK["messages"], {"role": "assistant"} | message, *ASK["messages"]]}
    wire = await post(CHAT, ASK | body, app=make_app(strict=True))
    assert wire.status == 200
    assert "x-cobali-ignored-fields" not in wire.headers


async def test_a_refusal_says_what_to_send_instead(post):
    wire = await post(CHAT, ASK | {"stop_sequences": ["x"]})
    assert wire.json["error"]["message"].endswith("send stop instead")


async def test_unknown_fields_are_named_in_header_and_log(post):
    message = {**USER, "mood": "good"}
    with capture_logs() as logs:
        wire = await post(CHAT, {"messages": [message], "wild": 1, "a\r\nb": 2})
    assert wire.status == 200
    assert wire.headers["x-cobali-ignored-fields"] == "wild, a%0D%0Ab, messages[].mood"
    warnings = [line for line in logs if line["event"] == "ignored_fields"]
    assert [line["log_level"] for line in warnings] == ["warning", "warning"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param(ASK | {"wild": 1}, "wild", id="top"),
        pytest.param({"messages": [{**USER, "mood": 1}]}, "messages[0].mood", id="message"),
        pytest.param(ASK | {"stream": True, "stream_options": {"x": 1}}, "x", id="options"),
    ],
)
async def test_strict_refuses_unknown_fields(make_app, post, client, body, param):
    wire = await post(CHAT, body, app=make_app(strict=True))
    assert (wire.status, wire.json["error"]["code"], wire.json["error"]["param"]) == (
        400,
        "unknown_parameter",
        param,
    )
    assert client.requests == []


async def test_bans_and_ends_reach_the_engine(post, client):
    client.tokenize(" once upon")
    asked = {
        "stop_token_ids": [3, 4],
        "allowed_token_ids": [5],
        "bad_words": ["once upon"],
        "top_n_sigma": 1.5,
        "include_stop_str_in_output": True,
    }
    await post(CHAT, ASK | asked)
    (request,) = client.requests
    sampling = request.sampling
    assert (sampling.stop_token_ids, sampling.allowed_token_ids, sampling.top_n_sigma) == ((3, 4), (5,), 1.5)
    spelt = [tuple(client.vocabulary[token] for token in word) for word in sampling.bad_words]
    assert spelt == [("once", " upon"), (" once", " upon")], "at the beginning of a text, and behind a space"
    assert request.include_stop
    assert [given for given in client.tokenized if given[0] == " once upon"][-1] == (
        " once upon",
        False,
        False,
    )


async def test_what_asks_for_nothing_is_nothing(post, client):
    nothing = {"stop_token_ids": [], "allowed_token_ids": None, "bad_words": [], "top_n_sigma": -1}
    await post(CHAT, ASK | nothing | {"include_stop_str_in_output": False})
    await post(CHAT, ASK)
    asked, plain = client.requests
    assert replace(asked.sampling, seed=plain.sampling.seed) == plain.sampling, "the seed is our own"
    assert not asked.include_stop
