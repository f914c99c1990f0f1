"""Chats through the real OpenAI client."""

from dataclasses import replace

import pytest
from fake_client import CARD, ends_with, says
from openai import APIError, APIStatusError

from cobali_ray.core.views.stats import Reuse
from cobali_ray.errors import EngineDiedError, QueueFullError

ASK = {"model": "fake", "messages": [{"role": "user", "content": "say hello"}]}


async def collect(stream):
    return [chunk async for chunk in stream]


def text_of(chunks, index=0):
    return "".join(
        choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index
    )


async def test_an_answer_has_openais_shape(openai, client):
    answer = await openai.chat.completions.create(**ASK)
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.created, answer.model) == ("chat.completion", 1_800_000_000, "fake")
    assert answer.system_fingerprint.startswith("fp_")
    choice = answer.choices[0]
    assert (choice.index, choice.finish_reason) == (0, "stop")
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello world!")
    assert {"logprobs"} <= choice.model_fields_set
    assert {"refusal"} <= choice.message.model_fields_set
    n_prompt = client.requests[0].n_prompt
    assert answer.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": n_prompt,
        "completion_tokens": 3,
        "total_tokens": n_prompt + 3,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert answer.timings["prefill_s"] == 0.09
    assert answer.timings["tokens_per_second"] == pytest.approx(5.0)
    assert client.cancelled == []
    assert client.tokenized == [("<user> say hello\n", False, True)], "the template writes the opening tokens"


async def test_roles_parts_and_null_content_reach_the_template(openai, client):
    messages = [
        {"role": "developer", "content": "be brief"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "name": "bo",
        },
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "42", "tool_call_id": "t1"},
    ]
    await openai.chat.completions.create(model="fake", messages=messages)
    assert client.messages == [
        [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": "a\nb", "name": "bo"},
            {"role": "assistant", "content": ""},
            {"role": "tool", "content": "42", "tool_call_id": "t1"},
        ]
    ]


DRAFT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once"}]


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        pytest.param({}, {"add_generation_prompt": True}, id="default"),
        pytest.param({"add_generation_prompt": None}, {"add_generation_prompt": True}, id="null"),
        pytest.param({"add_generation_prompt": False}, {"add_generation_prompt": False}, id="closed"),
        pytest.param({"continue_final_message": True}, {"continue_final_message": True}, id="open"),
        pytest.param(
            {"continue_final_message": True, "add_generation_prompt": False},
            {"continue_final_message": True},
            id="open-and-no-prompt",
        ),
    ],
)
async def test_a_prompt_may_end_three_ways(openai, client, fields, ending):
    reply = await openai.chat.completions.create(model="fake", messages=DRAFT, extra_body=fields)
    assert client.endings == [ending]
    assert reply.choices[0].message.content == "Hello world!", "the answer is what comes after"


async def test_parameters_reach_the_engine(openai, client):
    await openai.chat.completions.create(
        **ASK,
        temperature=0.5,
        top_p=0.9,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        logit_bias={"7": -5},
        seed=3,
        max_completion_tokens=9,
        stop=["END", "\n"],
        extra_body={"top_k": 40, "min_p": 0.05, "typical_p": 0.8, "repeat_penalty": 1.1, "ignore_eos": True,
                    "min_tokens": 2, "timeout_s": 1.5},
    )  # fmt: skip
    request = client.requests[0]
    sampling = request.sampling
    assert (request.max_tokens, request.stop, request.timeout_s) == (9, ("END", "\n"), 1.5)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.05)
    assert (sampling.typical_p, sampling.frequency_penalty, sampling.presence_penalty) == (0.8, 0.1, 0.2)
    assert (sampling.repetition_penalty, sampling.logit_bias, sampling.seed) == (1.1, ((7, -5.0),), 3)
    assert (sampling.ignore_eos, sampling.min_tokens, sampling.n_logprobs) == (True, 2, None)


async def test_a_stream_opens_with_the_role_and_closes_with_the_reason(openai, client):
    chunks = await collect(await openai.chat.completions.create(**ASK, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert text_of(chunks) == "Hello world!"
    assert [c.choices[0].finish_reason for c in chunks] == [None] * 4 + ["stop"]
    assert {c.id for c in chunks} == {client.requests[0].request_id}
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    assert chunks[-1].timings["decode_s"] == 0.4
    assert all("usage" not in c.model_fields_set for c in chunks)


async def test_a_stream_ends_with_its_usage_if_asked(openai):
    options = {"include_usage": True}
    chunks = await collect(await openai.chat.completions.create(**ASK, stream=True, stream_options=options))
    assert all("usage" in c.model_fields_set and c.usage is None for c in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 3
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 1
    assert chunks[-1].timings["queue_s"] == 0.01
    assert all(not hasattr(c, "timings") for c in chunks[:-1])


@pytest.mark.parametrize("stream", [False, True])
async def test_several_answers_are_one_request_each(openai, client, stream):
    client.script = lambda request: says("I am ", request.request_id[-1])(request)
    answer = await openai.chat.completions.create(**ASK, n=3, seed=10, stream=stream)
    if stream:
        chunks = await collect(answer)
        texts = [text_of(chunks, i) for i in range(3)]
        reasons = {c.index: c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason}
        assert reasons == {0: "stop", 1: "stop", 2: "stop"}
        roles = [c.index for chunk in chunks for c in chunk.choices if c.delta.role]
        assert sorted(roles) == [0, 1, 2]
        firsts = [chunk.choices[0].index for chunk in chunks if chunk.choices[0].delta.content == "I am "]
        assert firsts == [0, 1, 2], "streamed beside each other, not one after the other"
    else:
        texts = [choice.message.content for choice in answer.choices]
        assert answer.usage.prompt_tokens == client.requests[0].n_prompt
        assert answer.usage.completion_tokens == 6
    assert texts == ["I am 0", "I am 1", "I am 2"]
    assert client.most_open == 3
    assert [r.sampling.seed for r in client.requests] == [10, 11, 12]
    whole = client.requests[0].request_id.removesuffix("-0")
    assert [r.request_id for r in client.requests] == [f"{whole}-{i}" for i in range(3)]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs(openai, stream):
    answer = await openai.chat.completions.create(**ASK, logprobs=True, top_logprobs=2, stream=stream)
    if stream:
        choices = [c.choices[0] for c in await collect(answer)]
        content = [item for c in choices if c.logprobs for item in c.logprobs.content]
    else:
        content = answer.choices[0].logprobs.content
    assert [item.token for item in content] == ["Hello", " world", "!"]
    assert (content[0].bytes, content[0].logprob) == (list(b"Hello"), -0.5)
    assert [top.token for top in content[0].top_logprobs] == ["alt0", "alt1"]


async def test_logprobs_without_alternatives(openai, client):
    answer = await openai.chat.completions.create(**ASK, logprobs=True)
    assert answer.choices[0].logprobs.content[0].top_logprobs == []
    assert client.requests[0].sampling.n_logprobs == 0


FAULTS = [  # what becomes of each error: tests/unit/test_api_faults.py
    pytest.param(
        QueueFullError("requests", 4, 2.3), (429, "rate_limit_error", "queue_full", "3"), id="queue"
    ),
    pytest.param(RuntimeError("secret path"), (500, "server_error", "internal_error", None), id="bug"),
]


@pytest.mark.parametrize(("error", "expected"), FAULTS)
@pytest.mark.parametrize("how", [{}, {"n": 2}, {"stream": True}, {"stream": True, "n": 2}], ids=str)
async def test_a_failure_before_the_first_token_is_an_http_error(openai, client, error, expected, how):
    client.script = lambda _: [error]
    with pytest.raises(APIStatusError) as caught:
        await openai.chat.completions.create(**ASK, **how)
    answer = caught.value
    retry_after = answer.response.headers.get("retry-after")
    assert (answer.status_code, answer.type, answer.code, retry_after) == expected
    assert "secret" not in answer.response.text
    assert client.n_open == 0


async def test_the_model_list_says_what_of_earlier_prompts_is_reused(make_app, get, client):
    client.the_card = replace(CARD, reuse=Reuse("at states", ("slot", "copy", "host"), 1000, drafts=False))
    listed = (await get("/v1/models", app=make_app())).json
    assert listed["data"][0]["reuse"] == {
        "begins": "at states", "tiers": ["slot", "copy", "host"], "state_bytes": 1000, "drafts": False,
    }  # fmt: skip


async def test_the_model_list_names_the_aliases_too(make_app, get):
    app = make_app(names=("fake", "gpt-4o", "org/name"))
    listed = (await get("/v1/models", app=app)).json
    assert [(m["id"], m["object"], m["root"]) for m in listed["data"]] == [
        ("fake", "model", "fake"),
        ("gpt-4o", "model", "fake"),
        ("org/name", "model", "fake"),
    ]
    assert (await get("/v1/models/org/name", app=app)).json["created"] == CARD.created_s
    assert listed["data"][0]["default_sampling"] == {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "typical_p": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
    }
    assert "reuse" not in listed["data"][0], "of a model that says nothing of it"
    missing = await get("/v1/models/other", app=app)
    assert (missing.status, missing.json["error"]["code"]) == (404, "model_not_found")


async def test_a_failure_in_mid_stream_reaches_the_client(openai, client):
    client.script = ends_with(EngineDiedError(), "Hello")
    stream = await openai.chat.completions.create(**ASK, stream=True)
    seen = [await anext(stream), await anext(stream)]
    assert text_of(seen) == "Hello"
    with pytest.raises(APIError, match="engine stopped"):
        await anext(stream)
