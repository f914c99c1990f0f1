"""Workers that Ray places: a model lies on several, and is answered with as by one process."""

import os
import signal
from contextlib import suppress

import psutil
import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group

from cobali_ray.backend import rpc_build
from cobali_ray.engine.opening import worker_cache
from conftest import deployed
from tests.waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]  # the first fetches a source and compiles it

NAME = "placed"
DEVICES = ["ray-cpu-1", "ray-cpu-2"]
MEMORY_MIB = 64
LENT = {"devices": "ray-cpu,ray-cpu", "worker_memory_mib": MEMORY_MIB}
ONE = {
    "model": "builtin:synthetic-tiny",
    "n_slots": 2,
    "n_ctx": 512,
    "n_threads": 1,
    "flash_attn": "on",  # which is not measured then
    "log_level": "warning",
    "drain_timeout_s": 1,
}
SETTINGS = ONE | {"engines": {"split": {"model_id": "split"} | LENT, "whole": {"model_id": "whole"}}}
ASK = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "extra_body": {"ignore_eos": True}}


def workers():
    """Return the processes that lend a device to an engine of this Ray."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "cobali_ray.backend.worker" in (words := process.cmdline()) and "--listen" in words:
                found.append(process.pid)
    return set(found)


@pytest.fixture(scope="module")
async def placed(cluster):
    rpc_build.built(worker_cache())
    others = workers()
    async with deployed(cluster, NAME, SETTINGS) as server:
        yield server, lambda: workers() - others
    await until(lambda: workers() == others)


async def engine(server, name):
    async with server.http() as http:
        engines = (await http.get("/health")).json()["engines"]
    return next(one for one in engines if one["engine_id"] == name)


async def test_a_model_lies_on_two_workers_and_answers_as_on_none(placed):
    server, own = placed
    split = await engine(server, "split")
    assert [device["name"] for device in split["devices"]] == DEVICES
    assert all(device["total_bytes"] == 64 << 20 for device in split["devices"])
    assert not (await engine(server, "whole"))["devices"]
    assert len(own()) == 2
    async with server.openai() as openai:
        texts = [
            (await openai.completions.create(model=model, **ASK)).choices[0].text
            for model in ("split", "whole", "split")
        ]
    assert texts[0] == texts[1] == texts[2]


async def test_they_are_gone_while_the_model_is_and_others_are_placed_for_it_later(placed):
    server, own = placed
    async with server.openai() as openai, server.http() as http:
        before, expected = own(), await openai.completions.create(model="whole", **ASK)
        assert (await http.post("/v1/models/unload", json={"model": "split"})).status_code == 200
        await until(lambda: not own())
        again = await openai.completions.create(model="split", **ASK)
    assert again.choices[0].text == expected.choices[0].text
    assert len(own() - before) == 2


async def test_a_stream_goes_on_with_new_workers_where_one_is_lost(placed):
    server, own = placed
    lost, texts = own(), []

    async def is_named():
        return "lost ray-cpu-" in (await engine(server, "split"))["detail"]

    async with server.openai() as openai:
        expected = await openai.completions.create(model="whole", **ASK | {"max_tokens": 300})
        async for piece in await openai.completions.create(
            model="split", **ASK | {"max_tokens": 300}, stream=True
        ):
            texts.append(piece.choices[0].text)
            if len(texts) == 20:
                os.kill(min(lost), signal.SIGKILL)
                await until(is_named)
    assert "".join(texts) == expected.choices[0].text
    await until(lambda: len(own() - lost) == 2 and not own() & lost)


@pytest.fixture
def little_room(cluster):
    """Leave Ray room for one worker; what is returned gives the rest back."""
    most = int(ray.available_resources()["memory"])
    taken = placement_group([{"memory": most - (MEMORY_MIB * 3 << 19)}])
    assert taken.wait(60)
    yield lambda: remove_placement_group(taken)
    remove_placement_group(taken)


@pytest.mark.thorough
async def test_an_engine_goes_without_a_worker_that_there_is_no_room_for_until_there_is(
    cluster, placed, little_room
):
    async with deployed(cluster, "short", ONE | LENT | {"split_fallback": True}) as server:

        async def says():
            async with server.openai() as openai:
                return (await openai.completions.create(model="synthetic-tiny", **ASK)).choices[0].text

        async def state():
            answer = await server.state()
            return answer["detail"], [device["there"] for device in answer["devices"]]

        assert await state() == ("without ray-cpu-2", [True, False])
        text = await says()
        little_room()

        async def is_whole():
            return await state() == ("", [True, True])

        await until(is_whole, timeout_s=90)
        assert await says() == text
