"""A short form of `make chaos`: the engine stopped under a stream, and clients that leave."""

import os

import pytest

from tests.chaos.crowd import endure, ghosts, leave, n_files, stop

pytestmark = pytest.mark.ray


def pid_of(server):
    async def pid():
        return (await server.engine())["pid"]

    return pid


@pytest.mark.thorough
@pytest.mark.parametrize("server", ["narrow"], indirect=True)
async def test_nobody_notices_that_the_engine_stood_still_but_by_a_pause(server):
    report = await endure(
        server.url, pid_of(server), stop, n_streams=1, n_tokens=600, every_s=2.0, n_faults=1
    )
    print("\n".join(report.lines()))  # noqa: T201 shown with -s
    assert report.wrong == []
    assert max(report.pauses_s) > 1, "it was seen"


async def test_whoever_left_holds_nothing(server):
    await leave(server.url, n_clients=20, at_once=16, seed=0)
    pid = (await server.engine())["pid"]
    before = n_files([pid, os.getpid()])
    await leave(server.url, n_clients=40, at_once=16, seed=1)
    assert await ghosts(server.url) == []
    after = n_files([pid, os.getpid()])
    assert all(b <= a + 8 for a, b in zip(before, after, strict=True)), (before, after)
