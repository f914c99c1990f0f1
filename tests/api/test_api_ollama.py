"""Ollama's API over HTTP, through the real `ollama` client where it shows something."""

import base64
import json
from dataclasses import replace
from datetime import datetime

import httpx
import ollama
import pytest
from fake_client import Wire, ends_with, says
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cobali_ray.chat.format import GENERIC, Format
from cobali_ray.core.request.embedding import EmbeddingKind
from cobali_ray.core.views.stats import EngineStatus
from cobali_ray.errors import (
    DeadlineExceededError,
    DrainingError,
    EngineDiedError,
    QueueFullError,
    RateLimitError,
    UnloadedError,
)

CHAT, GENERATE = "/api/chat", "/api/generate"
USER = {"role": "user", "content": "weather in Łódź?"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
ASK = {"model": "fake", "messages": [USER]}
CALLS = (
    "Let me",
    " look.\n<tool_call>\n{",
    '"name": "get_weather", "arguments": {"city": "Łó',
    'dź"}}\n</tool_c',
    'all>\n<tool_call>\n{"name": "now", "arguments": {}}</tool_call>',
)
THINKS = Format(calls=GENERIC, reasoning_start="<think>", reasoning_end="</think>", padded=True)
PNG = base64.b64encode(b"\x89PNG\r\n").decode()


@pytest.fixture
async def llama(app):
    client = ollama.AsyncClient(host="http://app", transport=httpx.ASGITransport(app=app))
    yield client
    await client.close()


def lines(wire):
    assert wire.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in wire.body.decode().splitlines()]


async def both(llama, **fields):
    """Return the message of a chat that came whole; one that came in pieces must be the same."""
    whole = await llama.chat(model="fake", messages=[USER], **fields)
    parts = [part async for part in await llama.chat(model="fake", messages=[USER], stream=True, **fields)]
    assert [part.done for part in parts] == [*(False for _ in parts[1:]), True]
    content = "".join(part.message.content for part in parts)
    thinking = "".join(part.message.thinking or "" for part in parts)
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert (content, thinking or None, calls or None) == (
        whole.message.content,
        whole.message.thinking,
        whole.message.tool_calls,
    )
    same = (
        "done_reason",
        "prompt_eval_count",
        "eval_count",
        "prompt_eval_duration",
        "eval_duration",
        "model",
    )
    assert [parts[-1][name] for name in same] == [whole[name] for name in same]
    return whole


# What comes back


async def test_text_and_numbers(llama, client):
    answer = await both(llama)
    assert answer.message.content == "Hello world!"
    assert (answer.done, answer.done_reason, answer.model) == (True, "stop", "fake")
    assert (answer.prompt_eval_count, answer.eval_count) == (client.requests[0].n_prompt, 3)
    assert (answer.prompt_eval_duration, answer.eval_duration) == (90_000_000, 400_000_000)
    assert answer.load_duration == 0
    assert answer.total_duration is not None
    assert datetime.fromisoformat(answer.created_at).year == 2027


async def test_thinking_and_calls(llama, client):
    client.form = THINKS
    client.script = says("<think>\nHm.", "\n</think>\n\n", *CALLS)
    now = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
    answer = await both(llama, tools=[WEATHER, now], think=True)
    assert answer.message.content == "Let me look."
    assert answer.message.thinking == "Hm."
    assert [(call.function.name, call.function.arguments) for call in answer.message.tool_calls] == [
        ("get_weather", {"city": "Łódź"}),
        ("now", {}),
    ]
    assert answer.done_reason == "stop"


async def test_a_call_is_told_when_it_is_whole(post, client):
    client.script = says(*CALLS[:3], reason="length")
    *said, last = lines(await post(CHAT, ASK | {"tools": [WEATHER]}))
    assert "".join(one["message"]["content"] for one in said) == "Let me look."
    assert not any("tool_calls" in one["message"] for one in (*said, last))
    assert last["done_reason"] == "length"


async def test_a_chat_streams_unless_it_is_told_not_to(post):
    assert len(lines(await post(CHAT, ASK))) == 4
    wire = await post(CHAT, ASK | {"stream": False})
    assert wire.headers["content-type"] == "application/json"


async def test_generate(llama, client):
    answer = await llama.generate(model="fake:latest", prompt="weather?", system="Be kind.")
    assert answer.response == "Hello world!"
    assert answer.model == "fake:latest"
    assert client.messages[-1] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "weather?"},
    ]
    parts = [part async for part in await llama.generate(model="fake", prompt="weather?", stream=True)]
    assert "".join(part.response for part in parts) == "Hello world!"
    assert parts[-1].done
    assert answer.context == [*client.requests[0].prompt, 1, 1, 1]


async def test_a_context_is_gone_on_from(llama, client):
    first = await llama.generate(model="fake", prompt="weather?")
    second = await llama.generate(model="fake", prompt="and now?", context=first.context)
    n_before = len(first.context)
    assert client.requests[1].prompt[:n_before] == tuple(first.context)
    assert len(client.requests[1].prompt) > n_before
    assert second.prompt_eval_count == client.requests[1].n_prompt


async def test_a_raw_prompt_is_continued_as_it_is(llama, client):
    answer = await llama.generate(model="fake", prompt="<s> weather", raw=True)
    assert client.messages == []
    assert client.tokenized[-1][0] == "<s> weather"
    assert answer.context is None


async def test_logprobs(llama, post):
    answer = await llama.chat(model="fake", messages=[USER], logprobs=True, top_logprobs=2)
    assert [one.token for one in answer.logprobs] == ["Hello", " world", "!"]
    assert [len(one.top_logprobs) for one in answer.logprobs] == [2, 2, 2]
    *said, last = lines(await post(CHAT, ASK | {"logprobs": True}))
    assert [one["logprobs"][0]["token"] for one in said] == ["Hello", " world", "!"]
    assert "logprobs" not in last
    raw = await llama.generate(model="fake", prompt="x", raw=True, logprobs=True)
    assert len(raw.logprobs) == 3


# What the model is told


async def test_history_with_calls_and_their_results(post, client):
    history = [
        USER,
        {
            "role": "assistant",
            "content": "",
            "thinking": "Hm.",
            "tool_calls": [
                {"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}},
                {"id": "b", "function": {"index": 1, "name": "now", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "noon", "tool_name": "now"},
        {"role": "tool", "content": "4 degrees"},
    ]
    assert (await post(CHAT, ASK | {"messages": history})).status == 200
    _, turn, noon, degrees = client.messages[-1]
    assert turn["reasoning_content"] == "Hm."
    ids = [call["id"] for call in turn["tool_calls"]]
    assert [len(ids[0]), ids[1]] == [9, "b"]
    assert [call["function"]["arguments"] for call in turn["tool_calls"]] == [{"city": "Oslo"}, "{}"]
    assert noon == {"role": "tool", "content": "noon", "tool_call_id": "b", "name": "now"}
    assert degrees["tool_call_id"] == ids[0]
    assert degrees["name"] == "get_weather"


async def test_results_without_a_name_are_those_of_the_calls_in_their_order(post, client):
    call = {"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    results = [{"role": "tool", "content": text} for text in ("cold", "warm")]
    history = [USER, {"role": "assistant", "tool_calls": [call, call]}, *results]
    assert (await post(CHAT, ASK | {"messages": history})).status == 200
    _, turn, *told = client.messages[-1]
    ids = [call["id"] for call in turn["tool_calls"]]
    assert len(set(ids)) == 2
    assert [one["tool_call_id"] for one in told] == ids


async def test_a_result_of_an_unknown_call_leaves_the_others_theirs(post, client):
    call = {"id": "a", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    unknown = {"role": "tool", "content": "?", "tool_call_id": "z"}
    history = [
        USER,
        {"role": "assistant", "tool_calls": [call]},
        unknown,
        {"role": "tool", "content": "cold"},
    ]
    assert (await post(CHAT, ASK | {"messages": history})).status == 200
    results = client.messages[-1][2:]
    assert [result["tool_call_id"] for result in results] == ["z", "a"]


async def test_options(post, client):
    options = {
        "num_predict": 11, "temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8,
        "seed": 5, "stop": ["a", "b"], "repeat_penalty": 1.2, "presence_penalty": 0.3,
        "frequency_penalty": 0.2, "num_ctx": 8, "num_gpu": 99, "mirostat": 0, "num_thread": 2,
    }  # fmt: skip
    wire = await post(CHAT, ASK | {"options": options, "keep_alive": "5m", "truncate": True})
    assert wire.status == 200
    (request,) = client.requests
    drawn = request.sampling
    assert (request.max_tokens, request.stop, drawn.seed) == (11, ("a", "b"), 5)
    assert (drawn.temperature, drawn.top_k, drawn.top_p, drawn.min_p) == (0.5, 7, 0.9, 0.1)
    assert (drawn.typical_p, drawn.repetition_penalty) == (0.8, 1.2)
    assert (drawn.presence_penalty, drawn.frequency_penalty) == (0.3, 0.2)
    assert "x-cobali-ignored-fields" not in wire.headers


async def test_what_changes_nothing_is_named(post, client):
    options = {"num_predict": -1, "num_ctx": 131072, "repeat_last_n": 64, "seed": -1}
    wire = await post(CHAT, ASK | {"options": options, "what": 1})
    assert wire.headers["x-cobali-ignored-fields"] == "what, options.repeat_last_n, options.num_ctx"
    assert client.requests[0].max_tokens == 64 - client.requests[0].n_prompt
    assert client.requests[0].sampling.seed not in {None, -1}  # chosen by the server


@pytest.mark.parametrize("asked", ["json", SCHEMA])
@pytest.mark.parametrize("path", [CHAT, GENERATE])
async def test_an_answer_has_a_format(post, client, asked, path):
    body = {"model": "fake", "messages": [USER], "prompt": "x", "format": asked}
    body.pop("prompt" if path == CHAT else "messages")
    assert (await post(path, body)).status == 200
    assert client.requests[0].grammar is not None
    assert ("city" in client.requests[0].grammar.text) == (asked == SCHEMA)


@pytest.mark.parametrize(
    ("think", "told"),
    [
        (None, {}),
        (True, {"enable_thinking": True, "thinking": True}),
        (False, {"enable_thinking": False, "thinking": False}),
        ("low", {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}),
    ],
)
async def test_whether_the_model_thinks(post, client, think, told):
    assert (await post(CHAT, ASK | {"think": think})).status == 200
    ending = client.endings[-1]
    ending.pop("add_generation_prompt")
    assert ending == told


@pytest.mark.parametrize("n", [-1, 0])
async def test_no_limit_is_none_whatever_the_operator_s_default(make_app, client, n):
    app = make_app(default_max_tokens=5)
    assert (await Wire(app, CHAT, ASK | {"options": {"num_predict": n}}).run()).status == 200
    assert (await Wire(app, CHAT, ASK).run()).status == 200
    assert client.requests[0].max_tokens > 5
    assert client.requests[1].max_tokens == 5


@pytest.mark.parametrize(
    ("path", "field", "empty", "answer"),
    [
        ("/api/embed", "input", [], "embeddings"),
        ("/api/embed", "input", "", "embeddings"),
        ("/api/embeddings", "prompt", "", "embedding"),
    ],
)
async def test_an_embedding_of_nothing_loads_the_model(post, client, path, field, empty, answer):
    wire = await post(path, {"model": "fake", field: empty})
    assert (wire.status, wire.json) == (200, {"model": "fake", answer: []})
    assert client.requests == []


# Models


async def test_models_are_listed_and_shown(llama, get, client):
    client.form, client.source = THINKS, "{{ messages }}"
    client.source = "{{ messages }}"
    (model,) = (await llama.list()).models
    assert model.model == "fake:latest"
    assert model.modified_at.year == 2023
    assert len(model.digest) == 64
    (running,) = (await llama.ps()).models
    assert (running.model, running.context_length) == ("fake:latest", 64)
    shown = await llama.show("fake:latest")
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert shown.template == client.source
    assert shown.modelinfo[f"{shown.modelinfo['general.architecture']}.context_length"] == 64
    version = (await get("/api/version")).json["version"]
    assert tuple(map(int, version.split("."))) > (0, 6, 4)


async def test_a_model_that_ranks_makes_no_vectors(llama, client):
    kind = EmbeddingKind(width=1, n_most=12, n_batch=64, n_together=64, n_texts=8, pooling="rank")
    for pooling, told in (("rank", []), ("mean", ["embedding"])):
        client.the_card = replace(client.card, generates=False, embedding=kind._replace(pooling=pooling))
        assert (await llama.show("fake")).capabilities == told


async def test_a_model_that_is_not_loaded_is_listed_and_not_running(make_app, client):
    app = make_app(names=("fake",))
    client.the_card, client.present = UnloadedError(), False
    listed = await Wire(app, "/api/tags", method="GET").run()
    assert [one["name"] for one in listed.json["models"]] == ["fake:latest"]
    assert (await Wire(app, "/api/ps", method="GET").run()).json == {"models": []}


async def test_a_name_with_a_tag_of_its_own_is_that_model(make_app, client):
    app = make_app(names=("fake:latest", "fake:7b"))
    client.the_card = replace(client.card, model_id="fake:latest")
    for name, status in (("fake:latest", 200), ("fake:7b", 200), ("fake", 404), ("other:latest", 404)):
        wire = await Wire(app, CHAT, ASK | {"model": name}).run()
        assert wire.status == status, name


@pytest.mark.parametrize(
    ("path", "place"),
    [(CHAT, {"message": {"role": "assistant", "content": ""}}), (GENERATE, {"response": ""})],
)
async def test_without_a_prompt_a_model_is_loaded_or_unloaded(make_app, client, path, place):
    app = make_app(names=("fake",))
    client.the_card, client.present = UnloadedError(), False
    client.engine = replace(client.engine, status=EngineStatus.UNLOADED)
    wire = await Wire(app, path, {"model": "fake"}).run()
    assert wire.status == 200
    assert wire.json.items() >= ({"done": True, "done_reason": "load"} | place).items()
    assert client.loads == ["load"]
    wire = await Wire(app, path, {"model": "fake", "keep_alive": 0}).run()
    assert wire.json["done_reason"] == "unload"
    assert client.loads == ["load", "unload"]
    assert client.requests == []


@pytest.mark.parametrize("name", ["pull", "push", "create", "copy", "delete"])
async def test_what_is_not_done_is_refused_by_name(app, name):
    method = "DELETE" if name == "delete" else "POST"
    wire = await Wire(app, f"/api/{name}", {"model": "x"}, method=method).run()
    assert wire.status == 403
    assert wire.json["error"].startswith(f"This server does not support {name}:")


# What is refused

REFUSED = [
    (CHAT, {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [USER | {"images": [PNG]}]}, "messages[0].images"),
    (CHAT, {"messages": "x"}, "messages"),
    (CHAT, {"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
    (CHAT, {"tools": [{"type": "web", "function": {"name": "a"}}]}, "'web'"),
    (CHAT, {"format": "xml"}, "format must be json"),
    (CHAT, {"format": {"type": "nothing"}}, "format"),
    (CHAT, {"think": "hardly"}, "think"),
    (CHAT, {"options": {"mirostat": 1}}, "options.mirostat"),
    (CHAT, {"options": {"temperature": -1}}, "options.temperature"),
    (CHAT, {"options": {"temperature": "warm"}}, "options.temperature"),
    (CHAT, {"options": {"stop": [""]}}, "options.stop"),
    ("/api/embed", {}, "input: missing"),
    (GENERATE, {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
    (GENERATE, {"prompt": "x", "suffix": "y"}, "suffix"),
    (GENERATE, {"prompt": "x", "raw": True, "system": "y"}, "system"),
    (GENERATE, {"prompt": "x", "context": [5, 100000]}, "100000"),
    (GENERATE, {"prompt": "x", "context": [-1]}, "context"),
    (GENERATE, {"prompt": "x", "context": [1] * 70}, "maximum context length"),
]


@pytest.mark.parametrize(("path", "fields", "told"), REFUSED)
async def test_what_cannot_be_done_is_named_in_the_words_of_the_api(post, client, path, fields, told):
    base = ASK if path == CHAT else {"model": "fake"}
    wire = await post(path, base | fields)
    assert wire.status == 400
    assert list(wire.json) == ["error"]
    assert told in wire.json["error"]
    assert "response_format" not in wire.json["error"]
    assert client.requests == []


ERRORS = [
    (QueueFullError("requests", 3, 2.1), 503),
    (DrainingError(), 503),
    (RateLimitError("requests per minute", 3, 2.0), 429),
    (DeadlineExceededError(1.0), 504),
    (EngineDiedError(), 500),
    (ValueError("secret"), 500),
]


@pytest.mark.parametrize(("error", "status"), ERRORS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors(post, client, error, status, stream):
    client.script = lambda _: iter([error])
    wire = await post(CHAT, ASK | {"stream": stream})
    assert wire.status == status
    assert list(wire.json) == ["error"]
    assert "secret" not in wire.json["error"]


async def test_the_client_knows_the_errors(llama, client):
    with pytest.raises(ollama.ResponseError) as found:
        await llama.chat(model="nope", messages=[USER])
    assert (found.value.status_code, "nope" in found.value.error) == (404, True)
    client.script = ends_with(EngineDiedError(), "Hello")
    stream = await llama.chat(model="fake", messages=[USER], stream=True)
    assert (await anext(stream)).message.content == "Hello"
    with pytest.raises(ollama.ResponseError, match="engine stopped"):
        await anext(stream)


async def test_keys(make_app):
    app = make_app(api_keys=("right",))
    assert (await Wire(app, CHAT, ASK).run()).json.keys() == {"error"}
    wire = await Wire(app, CHAT, ASK, headers=[("authorization", "Bearer right")]).run()
    assert wire.status == 200


# Whatever is sent

words = st.sampled_from(["user", "assistant", "system", "tool", "function", "x", "", "0"])
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.just(1e308) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=6,
)
names = ("content", "thinking", "images", "tool_calls", "tool_name", "tool_call_id")
turns = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"])},
    optional=dict.fromkeys(names, junk | words),
)
fields = st.dictionaries(
    st.sampled_from(
        ("tools", "options", "format", "think", "keep_alive", "context", "system", "raw", "stream")
    ),
    junk,
    max_size=3,
)


@given(st.sampled_from([CHAT, GENERATE]), st.lists(turns, max_size=4) | junk, junk | words, fields)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_is_sent_is_answered_in_the_words_of_the_api(app, path, messages, prompt, fields):
    body = {"model": "fake"} | ({"messages": messages} if path == CHAT else {"prompt": prompt})
    wire = await Wire(app, path, body | fields).run()
    assert wire.status in {200, 400}
    if wire.status == 400:
        assert list(wire.json) == ["error"]
