"""An engine and its ingress that are replaced while they answer: streams move, nobody waits for their end."""

import asyncio
import os

import pytest

from conftest import SCRIPTED, deploy, deployed
from tests.chaos.crowd import Report, read
from tests.waiting import until

pytestmark = pytest.mark.ray

NAME = "moving"
LONG_S = 8.0
"""What an undisturbed answer takes."""
ASK = {
    "prompt": "a long story", "max_tokens": 400, "ignore_eos": True, "temperature": 0.9, "seed": 7,
    "stream": True, "stream_options": {"include_usage": True},
}  # fmt: skip


def settings(**of_a):
    engines = {"a": {"model_id": "first", "n_slots": 2} | of_a}
    return SCRIPTED | {
        "model": "builtin:scripted:0.02",
        "drain_timeout_s": 30,
        "n_ctx": 2048,
        "engines": engines,
    }


@pytest.fixture
async def moving(cluster):
    """Deploy the application for one test."""
    async with deployed(cluster, NAME, settings()) as server:
        yield server


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_the_streams_of_an_engine_that_is_replaced_with_its_ingress_move(cluster, moving):
    async def runs():
        return (await http.get("/health")).json()["engine"]["n_running"] == 1

    async def gone():
        return not lives(pid)

    async with cluster["main"].http() as quick:  # the same model
        alone = await read(quick, ASK, Report(), None)
    async with moving.http() as http:
        pid = (await asyncio.to_thread(moving._call, "engine-a", "describe"))["pid"]
        report = Report()
        stream = asyncio.ensure_future(read(http, ASK, report, alone))
        await until(runs)
        deploying = asyncio.ensure_future(deploy(NAME, settings(model_id="renamed", model_aliases=["first"])))
        await until(gone)
        assert not stream.done(), "nobody waited for its end"
        await stream
        print("\n".join(report.lines()))  # noqa: T201 shown with -s
        assert report.wrong == []
        assert max(report.pauses_s) < LONG_S / 2
        await deploying
