"""The whole stack through HTTP, with the clients people use."""

import asyncio
import re

import openai as sdk
import pytest

pytestmark = pytest.mark.ray

SAY = [{"role": "user", "content": "tell me something"}]
LONG = [{"role": "user", "content": "x" * 4096}]
narrow = pytest.mark.parametrize("server", ["narrow"], indirect=True)
tiny = pytest.mark.parametrize("server", ["tiny"], indirect=True)


async def whole(openai, model="scripted", **kwargs):
    answer = await openai.chat.completions.create(model=model, messages=SAY, **kwargs)
    return answer.choices[0].message.content


async def streamed(openai, model="scripted", **kwargs):
    """Return each choice's text and finish reason."""
    texts, reasons = {}, {}
    stream = await openai.chat.completions.create(model=model, messages=SAY, stream=True, **kwargs)
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    return [(texts[index], reasons[index]) for index in sorted(texts)]


async def test_a_stream_says_what_the_whole_answer_says(openai):
    text = await whole(openai, max_tokens=20, temperature=0)
    assert len(text) == 20
    assert await streamed(openai, max_tokens=20, temperature=0) == [(text, "length")]


async def test_usage_counts_both_ways(openai):
    answer = await openai.chat.completions.create(model="scripted", messages=SAY, max_tokens=7)
    assert answer.usage.completion_tokens == 7
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 7
    stream = await openai.chat.completions.create(
        model="scripted", messages=SAY, max_tokens=7, stream=True, stream_options={"include_usage": True}
    )
    usages = [chunk.usage async for chunk in stream if chunk.usage]
    assert usages == [answer.usage]


async def test_eight_different_streams_side_by_side(openai):
    text = await whole(openai, max_tokens=40, temperature=0)
    stop = text[10:13]
    cut = text.index(stop)
    cases = [
        {"n": 2, "seed": 1},
        {"temperature": 0, "stop": [stop]},
        {"seed": 7},
        {"seed": 7},
        {"temperature": 0, "logprobs": True, "top_logprobs": 2},
        {"temperature": 0},
        {"max_tokens": 3},
        {"extra_body": {"min_tokens": 40, "ignore_eos": True}},
    ]
    answers = await asyncio.gather(*(streamed(openai, **{"max_tokens": 40} | case) for case in cases))
    pair, stopped, seeded, seeded_too, with_logprobs, greedy, short, forced = answers
    assert len(pair) == 2
    assert pair[0] != pair[1], "two choices draw for themselves"
    assert stopped == [(text[:cut], "stop")]
    assert seeded == seeded_too
    assert seeded != greedy
    assert with_logprobs == greedy == [(text, "length")]
    assert [len(text) for text, _ in short] == [3]
    assert forced[0][1] == "length"


async def test_logprobs_come_with_the_tokens(openai):
    answer = await openai.chat.completions.create(
        model="scripted", messages=SAY, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert "".join(token.token for token in content) == answer.choices[0].message.content
    assert all(token.top_logprobs[0].token == token.token for token in content), "greedy takes the first"


@tiny
async def test_a_real_model_answers(openai, http):
    (model,) = (await openai.models.list()).data
    (answer,) = await streamed(
        openai, model=model.id, max_tokens=8, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer[1] == "length"
    again = await whole(openai, model=model.id, max_tokens=8, temperature=0, extra_body={"ignore_eos": True})
    assert again == answer[0]
    tokens = (await http.post("/tokenize", json={"content": "hello world"})).json()["tokens"]
    assert (await http.post("/detokenize", json={"tokens": tokens})).json()[
        "content"
    ].strip() == "hello world"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        pytest.param(b"{not json", 400, "invalid_json", id="malformed"),
        pytest.param({"messages": SAY, "temperature": -1}, 400, "invalid_value", id="bad-value"),
        pytest.param({"messages": LONG}, 400, "context_length_exceeded", id="too-long"),
        pytest.param({"model": "gpt-9", "messages": SAY}, 404, "model_not_found", id="no-such-model"),
    ],
)
async def test_a_wrong_request_is_told_what_is_wrong(http, body, status, code):
    given = {"content": body} if isinstance(body, bytes) else {"json": {"model": "other-name"} | body}
    response = await http.post("/v1/chat/completions", **given)
    assert response.status_code == status, response.text
    assert response.json()["error"]["code"] == code


@tiny
async def test_an_answer_longer_than_its_slot_ends_where_the_slot_does(openai):
    asked = {"model": "synthetic-tiny", "n": 2, "max_tokens": 100_000, "extra_body": {"ignore_eos": True}}
    chat = await openai.chat.completions.create(messages=SAY, **asked)
    plain = await openai.completions.create(prompt="Once", **asked)
    for answer in (chat, plain):
        assert [choice.finish_reason for choice in answer.choices] == ["length"] * 2
        assert answer.usage.completion_tokens == 2 * (512 - answer.usage.prompt_tokens)


@narrow
async def test_a_body_over_the_limit_is_413(http):
    response = await http.post("/v1/completions", json={"model": "scripted", "prompt": "x" * 5000})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


@narrow
async def test_a_full_queue_is_429_with_retry_after(openai, server):
    async with asyncio.timeout(30):
        running = await openai.chat.completions.create(model="scripted", messages=SAY, stream=True)
        await anext(aiter(running))
        tasks = {asyncio.ensure_future(whole(openai, max_tokens=1)) for _ in range(3)}
        refused = set()
        while len(refused) < 2:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            refused |= done
        for task in refused:
            assert isinstance(error := task.exception(), sdk.RateLimitError)
            assert int(error.response.headers["retry-after"]) >= 1
            assert "max_queue" in error.body["message"]
        await running.close()
        (queued,) = tasks
        assert len(await queued) == 1


async def test_every_ingress_reads_its_own_socket(server):
    async def one(i):
        async with server.openai() as openai:  # a connection of its own, so the front end may choose
            return await streamed(openai, max_tokens=1 + i % 5, temperature=0)

    answers = await asyncio.gather(*(one(i) for i in range(24)))
    assert [len(text) for ((text, _),) in answers] == [1 + i % 5 for i in range(24)]
    assert (await server.engine())["n_readers"] == 2


async def test_the_feed_of_ticks_shows_a_request_that_ended(openai, http):
    await whole(openai, max_tokens=3)
    feed = (await http.get("/debug/ticks", params={"last": 5})).json()
    assert feed["engine"]["n_slots"] == 8
    assert feed["next"] == feed["ticks"][-1]["tick_id"] + 1
    assert (feed["requests"][-1]["state"], feed["requests"][-1]["n_output"]) == ("ended", 3)


async def test_the_page_is_served_below_the_prefix(http):
    page = await http.get("/")
    assert "content-security-policy" in page.headers
    links = re.findall(r'(?:href|src)="(ui/[^"]+)"', page.text)
    assert "ui/app.js" in links
    for link in links:
        assert (await http.get(link)).status_code == 200, link


async def test_metrics_have_every_family(openai, http):
    await whole(openai, max_tokens=3)
    text = (await http.get("/metrics")).text
    for family in ("cobali_", "vllm:"):
        assert any(line.startswith(family) for line in text.splitlines()), family


async def test_pages_of_this_machine_may_ask_and_others_may_not(http):
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    body = {"messages": SAY, "max_tokens": 5, "stream": True}
    for origin, status in (("http://localhost:3000", 200), ("https://elsewhere.example", 403)):
        headers = {"origin": origin}
        preflight = await http.options("/v1/chat/completions", headers=headers | asked)
        answer = await http.post("/v1/chat/completions", headers=headers, json=body)
        assert (preflight.status_code, answer.status_code) == (status, status)
        assert answer.headers.get("access-control-allow-origin") == (origin if status == 200 else None)
        assert ("[DONE]" in answer.text) == (status == 200)
    rebound = await http.get("/v1/models", headers={"host": "rebound.example"})
    assert (rebound.status_code, rebound.json()["error"]["code"]) == (403, "host_not_allowed")
