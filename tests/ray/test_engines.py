"""Several engines in one application: all answer, and a change of one leaves the others alone."""

import asyncio
import os

import pytest
from openai import NotFoundError

from conftest import SCRIPTED, deploy, deployed
from tests.chaos.crowd import Report, read
from tests.waiting import until

pytestmark = pytest.mark.ray

NAME = "several"
SAY = [{"role": "user", "content": "tell me something"}]


def settings(**of_a):
    engines = {
        "a": {"model_id": "first", "n_slots": 2} | of_a,
        "b": {"model_id": "second"},
        "c": {"model_id": "rare", "load": "on_demand", "adapters": {"rarer": "any.gguf"}},
        "d": {
            "model_id": "elastic",
            "n_slots": 1,
            "replicas": 2,
            "min_replicas": 1,
            "scale_up_wait_s": 0.1,
            "keep_alive_s": 1,
        },
    }
    return SCRIPTED | {"n_ctx": 2048, "drain_timeout_s": 30, "engines": engines}


@pytest.fixture(scope="module")
async def several(cluster):
    """Deploy the application once; the last two tests change it."""
    async with deployed(cluster, NAME, settings()) as server:
        await until(lambda: all_ready(server))
        yield server


async def all_ready(server):
    async with server.http() as http:
        answer = await http.get("/ready")
    return answer.status_code == 200 and [engine["status"] for engine in answer.json()["engines"]] == [
        "ready",
        "ready",
        "unloaded",
        "ready",
        "unloaded",
    ]


async def pid_of(server, engine):
    return (await asyncio.to_thread(server._call, f"engine-{engine}", "describe"))["pid"]


async def slots_of(server, engine):
    async with server.http() as http:
        return len((await http.get("/slots", params={"engine": engine})).json())


async def test_a_model_on_demand_is_loaded_by_the_first_request_for_it(several):
    async with several.openai() as openai, several.http() as http:

        async def status():
            return (await http.get("/v1/models/rare")).json()["status"]["value"]

        assert await status() == "unloaded"
        pid = await pid_of(several, "c")
        first = await openai.chat.completions.create(model="rare", messages=SAY, max_tokens=4, temperature=0)
        assert first.usage.completion_tokens == 4
        assert await status() == "loaded"
        unloaded = await http.post("/v1/models/unload", json={"model": "rare"})
        assert (unloaded.status_code, await status()) == (200, "unloaded")
        assert (await http.get("/v1/models/rarer")).json()["parent"] == "rare"
        answer = await openai.chat.completions.create(
            model="rarer", messages=SAY, max_tokens=4, temperature=0
        )
        assert answer.model == "rarer", "its adapter asks for it as well"
        assert answer.choices[0].message.content != first.choices[0].message.content
        assert (await http.get("/lora-adapters?model=rare")).json()[0]["model"] == "rarer"
        assert await pid_of(several, "c") == pid, "the process is the same all the while"


async def test_a_replica_more_is_loaded_while_requests_wait_and_let_go_when_idle(several):
    async with several.openai() as openai, several.http() as http:

        async def status():
            return (await http.get("/v1/models/elastic")).json()["status"]["engines"]

        async def at_work():
            text = (await http.get("/metrics")).text
            return any(
                line.startswith("cobali_tokens_total{")
                and 'engine="d-1"' in line
                and not line.endswith(" 0.0")
                for line in text.splitlines()
            )

        async def client():
            while not stop.is_set():
                answer = await openai.chat.completions.create(
                    model="elastic", messages=SAY, max_tokens=40, extra_body={"ignore_eos": True}
                )
                assert answer.usage.completion_tokens == 40

        stop = asyncio.Event()
        clients = [asyncio.ensure_future(client()) for _ in range(6)]
        await until(at_work)
        assert await status() == {"d-0": "ready", "d-1": "ready"}
        stop.set()
        await asyncio.gather(*clients)

        async def let_go():
            return await status() == {"d-0": "ready", "d-1": "unloaded"}

        await until(let_go)


async def test_a_change_of_one_engine_restarts_that_engine_alone_and_its_streams_move(several):
    async def told(stream):
        choices = [choice async for chunk in stream for choice in chunk.choices]
        assert choices[-1].finish_reason == "length"
        return "".join(choice.delta.content or "" for choice in choices)

    async with several.openai() as openai, several.http() as http:
        answers = [
            await openai.chat.completions.create(model=model, messages=SAY, max_tokens=4, temperature=0)
            for model in ("first", "second")
        ]
        assert [answer.model for answer in answers] == ["first", "second"]
        with pytest.raises(NotFoundError) as caught:
            await openai.chat.completions.create(model="third", messages=SAY)
        assert caught.value.code == "model_not_found"
        assert await slots_of(several, "a") == 2
        before = [await pid_of(several, engine) for engine in "ab"]

        streams = []
        for model in ("first", "second"):
            stream = await openai.chat.completions.create(
                model=model, messages=SAY, max_tokens=1200, stream=True, temperature=0,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            await anext(stream)
            streams.append(asyncio.ensure_future(told(stream)))
        await deploy(NAME, settings(n_slots=3, n_ctx=1536))

        async def renewed():
            listed = (await http.get("/v1/models")).json()["data"]
            return listed[0].get("max_model_len") == 1536 and await slots_of(several, "a") == 3

        await until(renewed)
        after = [await pid_of(several, engine) for engine in "ab"]
        assert before[0] != after[0]
        assert before[1] == after[1]
        moved, undisturbed = await asyncio.gather(*streams)
        assert moved == undisturbed, "the HTTP layer is the same, too, and both streams went on"
        again = await openai.chat.completions.create(model="first", messages=SAY, max_tokens=4, temperature=0)
        assert again.choices[0].message.content == answers[0].choices[0].message.content
        metrics = set((await http.get("/metrics")).text.splitlines())
        assert {f'cobali_engine_up{{engine="{engine}"}} 1.0' for engine in "ab"} <= metrics
        assert 'cobali_continued_total{engine="a"} 1.0' in metrics


STORY = {
    "model": "first", "prompt": "a long story", "max_tokens": 1500, "ignore_eos": True, "temperature": 0.9,
    "seed": 7, "stream": True, "stream_options": {"include_usage": True},
}  # fmt: skip


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_the_streams_of_an_engine_that_is_replaced_with_its_ingress_move(several):
    """Nobody waits for their end."""
    async with several.http() as http:

        async def runs():
            return any(slot["is_processing"] for slot in (await http.get("/slots?engine=a")).json())

        alone = await read(http, STORY | {"model": "second"}, Report(), None)
        pid, report = await pid_of(several, "a"), Report()
        stream = asyncio.ensure_future(read(http, STORY, report, alone))
        await until(runs)
        renamed = settings(model_id="renamed", model_aliases=["first"])
        deploying = asyncio.ensure_future(deploy(NAME, renamed))
        await until(lambda: not lives(pid))
        assert not stream.done(), "nobody waited for its end"
        await stream
        print("\n".join(report.lines()))  # noqa: T201 shown with -s
        assert report.wrong == []
        await deploying
