"""The whole stack through HTTP, with the clients people use."""

import asyncio
import re

import openai as sdk
import pytest

pytestmark = pytest.mark.ray

SAY = [{"role": "user", "content": "tell me something"}]


async def whole(openai, **kwargs):
    answer = await openai.chat.completions.create(model="scripted", messages=SAY, **kwargs)
    return answer.choices[0].message.content


@pytest.mark.parametrize("server", ["narrow"], indirect=True)
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
            return await whole(openai, max_tokens=1 + i % 5, temperature=0)

    answers = await asyncio.gather(*(one(i) for i in range(24)))
    assert [len(text) for text in answers] == [1 + i % 5 for i in range(24)]
    assert (await server.engine())["n_readers"] == 2


async def test_below_the_prefix_the_page_is_whole_and_answers_are_for_pages_of_this_machine(http):
    links = re.findall(r'(?:href|src)="(ui/[^"]+)"', (await http.get("/")).text)
    assert "ui/app.js" in links
    assert {(await http.get(link)).status_code for link in links} == {200}
    for headers in ({"origin": "https://elsewhere.example"}, {"host": "rebound.example"}):
        assert (await http.get("/v1/models", headers=headers)).status_code == 403
