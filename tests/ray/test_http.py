"""The whole stack through HTTP, with the clients people use."""

import asyncio
import re

import openai as sdk
import pytest

pytestmark = pytest.mark.ray

SAY = [{"role": "user", "content": "tell me something"}]
narrow = pytest.mark.parametrize("server", ["narrow"], indirect=True)


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


async def test_eight_different_streams_side_by_side(openai):
    text = await whole(openai, max_tokens=40, temperature=0)
    assert len(text) == 40
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


@narrow
async def test_a_full_queue_is_429_with_retry_after(openai, server):
    async with asyncio.timeout(60):
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


async def test_the_page_is_served_below_the_prefix(http):
    page = await http.get("/")
    assert "content-security-policy" in page.headers
    links = re.findall(r'(?:href|src)="(ui/[^"]+)"', page.text)
    assert "ui/app.js" in links
    for link in links:
        assert (await http.get(link)).status_code == 200, link


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
