"""Several engines in one application: all answer, and a change of one leaves the others alone."""

import asyncio

import pytest

from cobali_ray.actors.processes import has_ended
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
        "c": {
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
    """Deploy the application once; the last test changes it."""
    slow = settings(model="builtin:scripted:0.05")  # or a story might end before it is changed
    async with deployed(cluster, NAME, slow) as server:
        await until(lambda: all_ready(server))
        yield server


async def all_ready(server):
    async with server.http() as http:
        answer = await http.get("/ready")
    states = [engine["status"] for engine in answer.json().get("engines", ())]
    return (answer.status_code, states) == (200, ["ready", "ready", "ready", "unloaded"])


async def pid_of(server, engine):
    return (await asyncio.to_thread(server._call, f"engine-{engine}", "describe"))["pid"]


async def slots_of(server, engine):
    async with server.http() as http:
        return len((await http.get("/slots", params={"engine": engine})).json())


async def test_a_replica_more_is_loaded_while_requests_wait_and_let_go_when_idle(several):
    async with several.openai() as openai, several.http() as http:

        async def status():
            return (await http.get("/v1/models/elastic")).json()["status"]["engines"]

        async def at_work():
            text = (await http.get("/metrics")).text
            both = await status() == {"c-0": "ready", "c-1": "ready"}
            return both and any(
                line.startswith("cobali_tokens_total{")
                and 'engine="c-1"' in line
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
        stop.set()
        await asyncio.gather(*clients)

        async def let_go():
            return await status() == {"c-0": "ready", "c-1": "unloaded"}

        await until(let_go)


STORY = {
    "model": "first", "prompt": "a long story", "max_tokens": 1500, "ignore_eos": True, "temperature": 0.9,
    "seed": 7, "stream": True, "stream_options": {"include_usage": True},
}  # fmt: skip


async def test_a_changed_engine_and_the_ingress_are_replaced_alone_and_streams_move(several):
    """Nobody waits for their end."""
    async with several.http() as http:

        async def run():
            slots = [(await http.get(f"/slots?engine={engine}")).json() for engine in "ab"]
            return all(any(slot["is_processing"] for slot in some) for some in slots)

        beside = STORY | {"model": "second"}
        alone = await read(http, beside, Report(), None)
        n_slots = await slots_of(several, "a")
        before, report = [await pid_of(several, engine) for engine in "ab"], Report()
        streams = [asyncio.ensure_future(read(http, body, report, alone)) for body in (STORY, beside)]
        await until(run)
        renamed = settings(n_slots=n_slots + 1, model_id="renamed", model_aliases=["first"])
        deploying = asyncio.ensure_future(deploy(NAME, renamed))
        await until(lambda: has_ended(before[0]))
        assert not streams[0].done(), "nobody waited for its end"
        await asyncio.gather(*streams)
        print("\n".join(report.lines()))  # noqa: T201 shown with -s
        assert report.wrong == []
        await deploying
        assert (await pid_of(several, "b"), await slots_of(several, "a")) == (before[1], n_slots + 1)
        metrics = set((await http.get("/metrics")).text.splitlines())
        assert {f'cobali_engine_up{{engine="{engine}"}} 1.0' for engine in "ab"} <= metrics
